"""The settings, from environment variables that begin with CODE_REVIEW_."""

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from .signatures import PROVIDERS

REVIEWERS = "RuffReviewer", "SizeReviewer", "UnreadReviewer"


class Settings(Struct, frozen=True, kw_only=True):
    queue: str
    """`redis://...` for codeq.priority, `http://...` for the codeQ service."""
    database: Path
    repositories: Path
    """The folder of the local repositories: `<owner>/<name>.git`, or `<owner>/<name>` with a `.git` inside."""
    secrets: Mapping[str, str]
    """By provider. The webhooks of a provider without a secret are not accepted."""
    reviewers: tuple[str, ...]
    host: str
    port: int
    lock_s: float
    """How long a claim lasts without renewal, and so how long the reviews of a killed worker wait."""
    offer_again_s: float
    """When the outbox offers a review again that has not ended: after a queue lost its data."""
    retry_s: float
    """The delay after the first failed try; it doubles with each."""


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    def value(name: str, default: str) -> str:
        return environment.get(f"CODE_REVIEW_{name}") or default

    data = Path(value("DATA", "data/code-review"))
    secrets = {provider: value(f"{provider.upper()}_SECRET", "") for provider in PROVIDERS}
    reviewers = value("REVIEWERS", ",".join(f"{__package__}.reviewers:{name}" for name in REVIEWERS))
    return Settings(
        queue=value("QUEUE", "redis://127.0.0.1:6379/0"),
        database=data / "reviews.sqlite",
        repositories=Path(value("REPOSITORIES", str(data / "repositories"))),
        secrets={provider: secret for provider, secret in secrets.items() if secret},
        reviewers=tuple(name.strip() for name in reviewers.split(",")),
        host=value("HOST", "127.0.0.1"),
        port=int(value("PORT", "8400")),
        lock_s=float(value("LOCK_SECONDS", "60")),
        offer_again_s=float(value("OFFER_AGAIN_SECONDS", "600")),
        retry_s=float(value("RETRY_SECONDS", "5")),
    )
