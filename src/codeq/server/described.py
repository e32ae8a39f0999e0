"""Describes a setting: what it means, and its bounds."""

from typing import Any

from msgspec import Meta


def described(description: str, **bounds: Any) -> Meta:
    return Meta(description=description, **bounds)
