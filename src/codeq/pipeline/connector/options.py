"""Parses the options of the source and the sink. Options that Kafka's source has too are named as there."""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches

from msgspec import Struct

from codeq.errors import InvalidRequest
from codeq.pipeline.client import EventFilter, ServerOptions
from codeq.pipeline.connector.offsets import EARLIEST, LATEST, Position
from codeq.wire import times
from codeq.wire.local_server import DEFAULT_URL

RETRY_S_DEFAULT = 60.0
TRIGGER_DELAY_S_DEFAULT = 900.0
"""As Kafka's source: how long a stream waits for `minOffsetsPerTrigger`."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h)?")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SERVER = ("endpoint", "tokenFile", "tokenEnv", "caFile", "retrySeconds")
SOURCE = (
    *SERVER, "subscribe", "tenant", "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp",
    "maxEventsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "failOnDataLoss", "includePayload",
)  # fmt: skip


class OptionMap:
    """Options as Spark passes them: text values under case-insensitive names. Raises InvalidRequest for wrong ones."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        # Spark's own mapping ignores case, but a plain dictionary made from it does not.
        self._values = {name.lower(): value for name, value in options.items()}
        lowered = {name.lower(): name for name in known}
        for name in self._values:
            likely = get_close_matches(name, lowered, n=1, cutoff=0.8)
            if name not in lowered and likely:  # a name unlike any of ours is an option of Spark
                raise InvalidRequest(f"there is no option {name!r}; did you mean {lowered[likely[0]]!r}?")

    def text(self, name: str, default: str = "") -> str:
        return (self._values.get(name.lower()) or default).strip()

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

    def duration_s(self, name: str, default_s: float) -> float:
        """Returns seconds: of `90`, `90s`, `15m` or `500ms`."""
        found = _DURATION.fullmatch(self.text(name, str(default_s)))
        if found is None:
            raise InvalidRequest(f"option {name} must be a duration such as 30s or 15m, not {self.text(name)!r}")
        return float(found[1]) * _UNITS_S[found[2] or "s"]

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

    def server(self) -> ServerOptions:
        if self.has("tokenFile") and self.has("tokenEnv"):
            raise InvalidRequest("give tokenFile or tokenEnv, not both")
        for name in ("token", "bearerToken", "apiKey"):
            if self.has(name):
                raise InvalidRequest(f"option {name} would show the token in query plans; give tokenFile or tokenEnv")
        return ServerOptions(
            endpoint=self.text("endpoint", DEFAULT_URL),
            token_file=self.text("tokenFile") or None,
            token_env=self.text("tokenEnv") or None,
            ca_file=self.text("caFile") or None,
        )


class ReadOptions(Struct, frozen=True, kw_only=True):
    server: ServerOptions
    event_filter: EventFilter
    starting: Position = EARLIEST
    starting_at: str | None = None
    """An RFC 3339 time; if given, it is used instead of `starting`."""
    ending: Position = LATEST
    ending_at: str | None = None
    """An RFC 3339 time; if given, it is used instead of `ending`: events of that time or later are not read."""
    events_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    """A batch of a stream has about so many bytes of Arrow at most, by a sample of its events."""
    events_per_trigger_min: int = 0
    """A batch of a stream waits for so many, for `trigger_delay_s` at most."""
    trigger_delay_s: float = TRIGGER_DELAY_S_DEFAULT
    partitions_min: int = 1
    fail_on_data_loss: bool = True
    retry_s: float = RETRY_S_DEFAULT


def read_options(options: Mapping[str, str]) -> ReadOptions:
    values = OptionMap(options, SOURCE)
    if values.has("startingOffsets") and values.has("startingTimestamp"):
        raise InvalidRequest("give startingOffsets or startingTimestamp, not both")
    if values.has("endingOffsets") and values.has("endingTimestamp"):
        raise InvalidRequest("give endingOffsets or endingTimestamp, not both")
    commands = tuple(name.strip() for name in values.text("subscribe").split(",") if name.strip())
    return ReadOptions(
        server=values.server(),
        event_filter=EventFilter(
            commands=commands,
            tenant=values.text("tenant") or None,
            with_payload=values.flag("includePayload", default=False),
        ),
        starting=_position(values.text("startingOffsets", EARLIEST), "startingOffsets"),
        starting_at=_rfc3339(values.text("startingTimestamp"), "startingTimestamp"),
        ending=_position(values.text("endingOffsets", LATEST), "endingOffsets"),
        ending_at=_rfc3339(values.text("endingTimestamp"), "endingTimestamp"),
        events_per_trigger=values.number("maxEventsPerTrigger", 0) if values.has("maxEventsPerTrigger") else None,
        bytes_per_trigger=values.number("maxBytesPerTrigger", 0) if values.has("maxBytesPerTrigger") else None,
        events_per_trigger_min=values.number("minOffsetsPerTrigger", 0, least=0),
        trigger_delay_s=values.duration_s("maxTriggerDelay", TRIGGER_DELAY_S_DEFAULT),
        partitions_min=values.number("minPartitions", 1, most=100_000),
        fail_on_data_loss=values.flag("failOnDataLoss", default=True),
        retry_s=values.seconds("retrySeconds", RETRY_S_DEFAULT),
    )


def _position(text: str, name: str) -> Position:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        found = json.loads(text)
        offsets = {int(shard): offset for shard, offset in found.items()}
    except (ValueError, AttributeError):
        offsets = {-1: 0}
    if any(shard < 0 or type(offset) is not int or offset < -2 for shard, offset in offsets.items()):
        raise InvalidRequest(
            f'option {name} must be earliest, latest, or offsets by shard such as {{"0": 17}} (-2 is the earliest, '
            f"-1 the latest), not {text!r}"
        )
    return offsets


def _rfc3339(text: str, name: str) -> str | None:
    """Returns the time as RFC 3339. Unix milliseconds are accepted too, as by Kafka's source."""
    if not text:
        return None
    try:
        return times.text(int(text) if text.isascii() and text.isdigit() else times.parse(text))
    except (ValueError, OverflowError) as fault:
        raise InvalidRequest(f"option {name} is {fault}") from None
