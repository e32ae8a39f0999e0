"""Options of the source and the sink: named as Kafka's where Kafka has them, refused where they are wrong."""

import json
from collections.abc import Mapping
from difflib import get_close_matches

from msgspec import Struct

from codeq.errors import InvalidRequest
from codeq.pipeline.client import Connection, Wanted
from codeq.pipeline.connector.offsets import EARLIEST, LATEST, Place
from codeq.sdk.client import DEFAULT_URL
from codeq.wire import times

RETRY_S_DEFAULT = 60.0
CONNECTION = ("endpoint", "tokenFile", "tokenEnv", "caFile", "retrySeconds")
SOURCE = (
    *CONNECTION, "subscribe", "tenant", "startingOffsets", "startingTimestamp", "endingOffsets",
    "maxEventsPerTrigger", "minPartitions", "failOnDataLoss", "includePayload",
)  # fmt: skip


class Given:
    """Options as Spark hands them over: text, by names whose case does not count."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        # Spark's own mapping ignores case, a copy of it as a plain dictionary does not.
        self._given = {name.lower(): value for name, value in options.items()}
        lowered = {name.lower(): name for name in known}
        for name in self._given:
            likely = get_close_matches(name, lowered, n=1, cutoff=0.8)
            if name not in lowered and likely:  # what is like none of ours is Spark's own
                raise InvalidRequest(f"there is no option {name!r}; did you mean {lowered[likely[0]]!r}?")

    def text(self, name: str, default: str = "") -> str:
        return (self._given.get(name.lower()) or default).strip()

    def has(self, name: str) -> bool:
        return bool(self.text(name))

    def number(self, name: str, default: int, *, least: int = 1, most: int = 1 << 40) -> int:
        text = self.text(name, str(default))
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise InvalidRequest(f"option {name} must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    def seconds(self, name: str, default: float) -> float:
        text = self.text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise InvalidRequest(f"option {name} must be a number of seconds, not {text!r}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name, str(default)).lower()
        if text not in ("true", "false"):
            raise InvalidRequest(f"option {name} must be true or false, not {text!r}")
        return text == "true"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        text = self.text(name, choices[0]).upper()
        if text not in choices:
            raise InvalidRequest(f"option {name} must be one of {', '.join(choices)}, not {text!r}")
        return text

    def connection(self) -> Connection:
        if self.has("tokenFile") and self.has("tokenEnv"):
            raise InvalidRequest("give tokenFile or tokenEnv, not both")
        for name in ("token", "bearerToken", "apiKey"):
            if self.has(name):
                raise InvalidRequest(f"option {name} would be part of the query plan; give tokenFile or tokenEnv")
        return Connection(
            endpoint=self.text("endpoint", DEFAULT_URL),
            token_file=self.text("tokenFile") or None,
            token_env=self.text("tokenEnv") or None,
            ca_file=self.text("caFile") or None,
        )


class ReadOptions(Struct, frozen=True, kw_only=True):
    connection: Connection
    wanted: Wanted
    starting: Place = EARLIEST
    starting_at: str | None = None
    """An RFC 3339 time, which wins over `starting`."""
    ending: Place = LATEST
    events_per_trigger: int | None = None
    partitions_min: int = 1
    fail_on_data_loss: bool = True
    retry_s: float = RETRY_S_DEFAULT


def read_options(options: Mapping[str, str]) -> ReadOptions:
    given = Given(options, SOURCE)
    if given.has("startingOffsets") and given.has("startingTimestamp"):
        raise InvalidRequest("give startingOffsets or startingTimestamp, not both")
    names = tuple(name.strip() for name in given.text("subscribe").split(",") if name.strip())
    return ReadOptions(
        connection=given.connection(),
        wanted=Wanted(
            commands=names,
            tenant=given.text("tenant") or None,
            with_payload=given.flag("includePayload", default=False),
        ),
        starting=_place(given.text("startingOffsets", EARLIEST), "startingOffsets"),
        starting_at=_moment(given.text("startingTimestamp")),
        ending=_place(given.text("endingOffsets", LATEST), "endingOffsets"),
        events_per_trigger=given.number("maxEventsPerTrigger", 0) if given.has("maxEventsPerTrigger") else None,
        partitions_min=given.number("minPartitions", 1, most=100_000),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        retry_s=given.seconds("retrySeconds", RETRY_S_DEFAULT),
    )


def _place(text: str, name: str) -> Place:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        found = json.loads(text)
        places = {int(shard): offset for shard, offset in found.items()}
    except (ValueError, AttributeError):
        places = {-1: 0}
    if any(shard < 0 or type(offset) is not int or offset < -2 for shard, offset in places.items()):
        raise InvalidRequest(
            f'option {name} must be earliest, latest or offsets by shard such as {{"0": 17}} (-2 is the earliest, '
            f"-1 the latest), not {text!r}"
        )
    return places


def _moment(text: str) -> str | None:
    """As RFC 3339. Unix milliseconds are taken too, as Kafka takes them."""
    if not text:
        return None
    try:
        return times.text(int(text) if text.isascii() and text.isdigit() else times.parse(text))
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"option startingTimestamp is {fault}") from None
