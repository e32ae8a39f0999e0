"""Formats numbers, durations and times for people."""

from datetime import datetime

UNKNOWN = "-"


def count(number: float) -> str:
    """Formats up to 9,999 in full, then with three digits as 12.3 k and 1.23 M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 10_000 and number >= size * 0.9995:
            value = number / size
            return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {letter}"
    return f"{number:,.0f}" if number == int(number) else f"{number:,.2g}"


def exact(number: int) -> str:
    return f"{number:,}"


def size(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return UNKNOWN
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    for limit, each, unit in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / each:.3g} {unit}"
    return f"{seconds / 86_400:,.1f} d"


def percent(share: float | None, digits: int = 1) -> str:
    if share is None:
        return UNKNOWN
    shown = f"{share * 100:.{digits}f}"
    # A fraction below 1 must not be shown as 100 %.
    if share < 1 and float(shown) == 100:
        return f"> {100 - 10**-digits:.{digits}f} %"
    return f"{shown} %"


def day_and_time(at: datetime, *, with_seconds: bool = False) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S" if with_seconds else "%Y-%m-%d %H:%M")


def period(seconds: int) -> str:
    for each, unit in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= each:
            number = seconds // each
            return unit if number == 1 else f"{number} {unit}s"
    raise ValueError("a period is a second at least")
