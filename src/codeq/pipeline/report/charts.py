"""Draws plots as HTML and SVG: shapes scale with the page, labels do not."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from codeq.pipeline.report import formatting

WIDTH, HEIGHT = 1000.0, 100.0
"""The size of a drawing in SVG units; the page scales it to the available space."""
LABEL_WIDTH, LABEL_HEIGHT = 0.2, 0.07
"""The part of an axis that a label takes: below one of three plots side by side, and beside a plot."""


@dataclass(frozen=True)
class Series:
    name: str
    values: Sequence[float | None]
    colour: str
    """A colour of the style sheet: blue, green, red, amber, violet, grey."""
    is_area: bool = False


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def fraction(self, value: float) -> float:
        """Returns the position of a value on the axis, from 0 to 1."""
        if self.is_log:
            span = math.log10(self.high / self.low)
            return min(1.0, max(0.0, math.log10(max(value, self.low) / self.low) / span))
        return (value - self.low) / (self.high - self.low)


def linear(values: Sequence[float]) -> Axis:
    """Returns an axis from 0 to the first round number above all values, in three to five steps."""
    most = max([*values, 1])
    power = 10 ** math.floor(math.log10(most / 4))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice * 4 >= most)
    step = max(1, step) if most >= 4 else 1
    steps = math.ceil(most / step)
    return Axis(0, step * steps, tuple(step * i for i in range(steps + 1)))


_LOG_TICKS_MS = (
    1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000, 8_640_000_000,
)  # fmt: skip


def logarithmic(values: Sequence[float]) -> Axis:
    """Returns an axis of milliseconds from the round duration below all values to the one above."""
    low = max([tick for tick in _LOG_TICKS_MS if tick <= min([*values, math.inf])], default=1)
    high = min([tick for tick in _LOG_TICKS_MS if tick >= max([*values, 1]) and tick > low], default=_LOG_TICKS_MS[-1])
    return Axis(low, high, tuple(tick for tick in _LOG_TICKS_MS if low <= tick <= high), is_log=True)


def time_plot(
    title: str,
    times: Sequence[datetime],
    series: Sequence[Series],
    *,
    show: Callable[[float | None], str],
    is_log: bool = False,
) -> str:
    """Draws lines and areas over time, with the values under the pointer, and a table of them."""
    known = [value for one in series for value in one.values if value is not None]
    axis = logarithmic(known) if is_log else linear(known)
    shapes = "".join(_shape(one, axis) for one in series)
    grid = "".join(f'<line x1="0" x2="{WIDTH:.0f}" y1="{y:.2f}" y2="{y:.2f}"/>' for y in map(_y(axis), axis.ticks))
    ys = "".join(
        f'<span style="top:{100 - 100 * axis.fraction(tick):.2f}%">{escape(show(tick))}</span>'
        for tick in apart(axis, LABEL_HEIGHT)
    )
    with_seconds = any(at.second for at in times)
    labels = [formatting.day_and_time(at, with_seconds=with_seconds) for at in times]
    tooltips = [
        {"name": one.name, "colour": one.colour, "values": [show(v) for v in one.values],
         "heights": [None if v is None else round(100 * axis.fraction(v), 2) for v in one.values]}
        for one in series
    ]  # fmt: skip
    drawn = (
        f'<div class="plot" tabindex="0" role="img" aria-label="{escape(title)}; the values are in the table below">'
        f'<div class="ys" aria-hidden="true">{ys}</div><div class="canvas">'
        f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" aria-hidden="true">'
        f'<g class="rules">{grid}</g>{shapes}</svg></div><div class="xs" aria-hidden="true">{_xs(times)}</div></div>'
        f'<script type="application/json">{_json({"labels": labels, "series": tooltips})}</script>'
    )
    rows = [[escape(cell) for cell in row] for row in zip(labels, *(map(show, s.values) for s in series), strict=True)]
    behind = table(["Time", *(one.name for one in series)], rows, caption=title)
    return figure(title, drawn, legend={one.name: one.colour for one in series}, behind=behind)


def range_plot(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> str:
    """Draws one track per row on a common logarithmic axis: a bar from the first mark to the last, a dot at each."""
    axis = logarithmic([value for _, marks in rows for _, value in marks])
    tracks = []
    for name, marks in rows:
        places = [100 * axis.fraction(value) for _, value in marks]
        dots = "".join(
            f'<b class="d{i}" style="left:{place:.2f}%" title="{escape(label)}: {formatting.duration(value)}"></b>'
            for i, (place, (label, value)) in enumerate(zip(places, marks, strict=True))
        )
        values = ", ".join(f"{label} {formatting.duration(value)}" for label, value in marks)
        bar = f'<i style="left:{places[0]:.2f}%;width:{places[-1] - places[0]:.2f}%"></i>' if places else ""
        tracks.append(
            f'<div class="range"><span class="name">{escape(name)}</span><div class="track" role="img" '
            f'aria-label="{escape(name)}: {escape(values)}">{bar}{dots}</div></div>'
        )
    ticks = "".join(
        f'<span style="left:{100 * axis.fraction(tick):.2f}%">{formatting.duration(tick)}</span>'
        for tick in apart(axis, LABEL_WIDTH)
    )
    axis_below = f'<div class="range axis" aria-hidden="true"><span></span><div class="ticks">{ticks}</div></div>'
    return f'<div class="ranges">{"".join(tracks)}{axis_below}</div>'


def apart(axis: Axis, least: float) -> list[float]:
    """Returns the ticks that are so far from each other: on a logarithmic axis a day is close to ten hours."""
    kept: list[float] = []
    for tick in reversed(axis.ticks):
        if not kept or axis.fraction(kept[-1]) - axis.fraction(tick) >= least:
            kept.append(tick)
    return kept[::-1]


def stacked_bar(parts: Sequence[tuple[str, int, str]]) -> str:
    """Draws one bar divided in proportion to numbers: name, number, colour."""
    total = sum(number for _, number, _ in parts) or 1
    inner = "".join(
        f'<i class="{colour}" style="flex-grow:{number / total:.5f}" title="{escape(name)}: {number:,} '
        f'({formatting.percent(number / total)})"></i>'
        for name, number, colour in parts
        if number
    )
    spoken = ", ".join(f"{name} {number:,}" for name, number, _ in parts if number)
    return f'<div class="stack" role="img" aria-label="{escape(spoken)}">{inner}</div>'


def columns(parts: Sequence[tuple[str, int]], *, colour: str = "blue") -> str:
    """Draws vertical bars with their numbers above."""
    most = max([number for _, number in parts] + [1])
    bars = "".join(
        f"<div><span>{formatting.count(number)}</span>"
        f'<i class="{colour}" style="height:{100 * number / most:.1f}%"></i>'
        f"<em>{escape(name)}</em></div>"
        for name, number in parts
    )
    return f'<div class="columns">{bars}</div>'


def bar(fraction: float, colour: str = "blue", mark: float | None = None) -> str:
    """Draws a thin bar inside a cell of a table, with a mark at the target."""
    marked = "" if mark is None else f'<b style="left:{100 * min(1, mark):.2f}%"></b>'
    filled = f'<i class="{colour}" style="width:{100 * min(1.0, fraction):.2f}%"></i>'
    return f'<div class="bar" aria-hidden="true">{filled}{marked}</div>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers_from: int = 1, caption: str = "") -> str:
    """Draws a table that can be sorted by its heads. Cells are HTML; those from `numbers_from` on are numbers."""
    head = "".join(f'<th scope="col"{_right(i, numbers_from)}>{escape(name)}</th>' for i, name in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{_right(i, numbers_from)}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    inner = f"{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll" tabindex="0"><table>{inner}</table></div>'


def figure(title: str, drawn: str, *, legend: Mapping[str, str] | None = None, behind: str = "") -> str:
    """Draws a plot with its title, its legend, and the table of its values."""
    keys = "".join(f'<li><i class="key {colour}"></i>{escape(name)}</li>' for name, colour in (legend or {}).items())
    listed = f'<ul class="legend">{keys}</ul>' if keys else ""
    table_of_it = f"<details><summary>Table</summary>{behind}</details>" if behind else ""
    return (
        f'<figure class="chart"><figcaption><h3>{escape(title)}</h3>{listed}</figcaption>{drawn}{table_of_it}</figure>'
    )


def _right(i: int, numbers_from: int) -> str:
    return ' class="num"' if i >= numbers_from else ""


def _y(axis: Axis) -> Callable[[float], float]:
    return lambda value: HEIGHT - HEIGHT * axis.fraction(value)


def _shape(one: Series, axis: Axis) -> str:
    """Draws each run of values without a gap as one path; a single value as a short line."""
    y = _y(axis)
    last = max(1, len(one.values) - 1)
    made = []
    for run in _runs(one.values):
        points = [(WIDTH * i / last, y(value)) for i, value in run]
        if len(points) == 1:
            points = [(max(0, points[0][0] - 4), points[0][1]), (min(WIDTH, points[0][0] + 4), points[0][1])]
        line = "L".join(f"{x:.1f},{height:.2f}" for x, height in points)
        if one.is_area:
            made.append(
                f'<path class="area {one.colour}" d="M{points[0][0]:.1f},100L{line}L{points[-1][0]:.1f},100Z"/>'
            )
        made.append(f'<path class="line {one.colour}" d="M{line}"/>')
    return "".join(made)


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is not None:
            found[-1].append((i, value))
        elif found[-1]:
            found.append([])
    return [run for run in found if run]


_TICK_EVERY_S = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    14_400,
    21_600,
    43_200,
    86_400,
    172_800,
    604_800,
    2_592_000,
)


def _xs(times: Sequence[datetime]) -> str:
    """Draws labels at round times, seven at most."""
    last = max(1, len(times) - 1)
    span = (times[-1] - times[0]).total_seconds()
    every = next((step for step in _TICK_EVERY_S if span / step <= 7), _TICK_EVERY_S[-1])
    shown = [i for i, at in enumerate(times) if at.timestamp() % every == 0] or [0]
    pattern = "%H:%M:%S" if every < 60 else "%H:%M" if span <= 86_400 else "%d %b %H:%M" if every < 86_400 else "%d %b"
    return "".join(
        f'<span{_edge(i / last)} style="left:{100 * i / last:.2f}%">{times[i].strftime(pattern)}</span>' for i in shown
    )


def _edge(place: float) -> str:
    """Aligns labels near an end inwards, so that none is cut off."""
    return ' class="first"' if place < 0.03 else ' class="last"' if place > 0.97 else ""


def _json(value: object) -> str:
    # No text in the data can end the script element.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
