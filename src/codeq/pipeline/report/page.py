"""Renders the report as one HTML page that needs no other file and no network, and shows everything without scripts."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from html import escape
from importlib.resources import files
from math import gcd

from codeq.pipeline.report import formatting
from codeq.pipeline.report.charts import Series, bar, columns, figure, range_plot, stacked_bar, table, time_plot
from codeq.pipeline.report.data import DeadLetter, Latency, Percentiles, ReportData
from codeq.pipeline.report.formatting import UNKNOWN, count, duration, exact, percent

_MEASURES = {
    "wait": "Wait, from ready to claimed",
    "run": "Run, from claimed to ended",
    "end_to_end": "From enqueue to end",
}
_PERCENTILES = ("p50", "p90", "p95", "p99")
_OUTCOMES = {"completed": "green", "failed": "amber", "dead": "red", "cancelled": "grey", "live": "violet"}
_TOOK = ("1", "2", "3", "4", "5", "6-10", "more")


def render(data: ReportData) -> str:
    """Returns the whole page."""
    assets = files("codeq.pipeline.report") / "assets"
    style, script = ((assets / name).read_text("utf-8") for name in ("report.css", "report.js"))
    sections = [
        ("flow", "Throughput", _flow(data)),
        ("latency", "Latency", _latency(data)),
        ("outcomes", "Outcomes", _outcomes(data)),
        ("dead-letters", "Dead letters", _dead_letters(data)),
        ("service-levels", "Service levels", _service_levels(data)),
        ("retries", "Retries", _retries(data)),
        ("tenants", "Tenants", _tenants(data)),
        ("workers", "Workers", _workers(data)),
        ("capacity", "Capacity", _capacity(data)),
        ("audit", "Audit", _audit(data)),
        ("pipeline", "Pipeline", _pipeline(data)),
    ]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    body = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{inner}</section>'
        for name, title, inner in sections
    )
    # The policy blocks everything from outside, whatever text is in the data.
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(data.title)}</title><style>{style}</style></head><body>"
        f'<a class="skip" href="#flow">To the figures</a>{_header(data)}<nav aria-label="Sections">{links}</nav>'
        f"<main>{body}</main><footer>Made {formatting.day_and_time(data.made_at)} UTC from the gold tables of the "
        f"lake. Times are in UTC.</footer><script>{script}</script></body></html>\n"
    )


def _header(data: ReportData) -> str:
    span = "no events yet"
    if data.first_at and data.last_at:
        is_short = data.step_seconds < 60
        first, last = (formatting.day_and_time(at, with_seconds=is_short) for at in (data.first_at, data.last_at))
        span = f"{first} to {last} UTC"
    name = f'<div><h1>{escape(data.title)}</h1><p class="span">{span}</p></div>'
    return f'<header><div class="head">{name}{_verdict(data)}</div>{_tiles(data)}</header>'


def _verdict(data: ReportData) -> str:
    """Shows first whether the audit found anything lost or broken."""
    broken = [rule for rule in data.audit if rule.violations]
    checked = [rule for rule in data.audit if rule.checked]
    if not checked:
        kind, strong, more = "none", "Not audited", "this report was made without an audit"
    elif broken:
        kind, strong = "bad", f"✕ {len(broken)} of {len(checked)} rules broken"
        more = ", ".join(rule.rule for rule in broken)
    else:
        kind, strong = "good", f"✓ All {len(checked)} rules hold"
        more = f"audited over {exact(max(rule.checked for rule in checked))} events"
    return f'<a class="verdict {kind}" href="#audit"><strong>{strong}</strong><span>{escape(more)}</span></a>'


def _tiles(data: ReportData) -> str:
    totals = data.totals
    ended = totals.completed + totals.failed + totals.dead
    done = percent(totals.completed / ended if ended else None)
    each = f"{totals.deliveries / totals.enqueued:.2f} per task" if totals.enqueued else "none"
    sent = f"{formatting.size(totals.payload_bytes)} of payloads"
    sent += f", {count(totals.webhooks)} webhooks" if totals.webhooks else ""
    tiles = [
        ("Enqueued", totals.enqueued, sent, "blue"),
        ("Completed", totals.completed, f"{done} of those that ended", "green"),
        ("Failed", totals.failed, "by a worker's verdict", "amber"),
        ("Dead", totals.dead, "out of tries, and not replayed", "red"),
        ("Live", totals.live, f"{count(totals.running)} of them in progress", "violet"),
        ("Deliveries", totals.deliveries, each, "grey"),
    ]
    made = "".join(
        f'<div class="tile {colour}"><dt>{name}</dt><dd><strong title="{exact(number)}">{count(number)}</strong>'
        f"<span>{escape(more)}</span></dd></div>"
        for name, number, more, colour in tiles
    )
    return f'<dl class="tiles">{made}</dl>'


def _flow(data: ReportData) -> str:
    if not data.timeline:
        return _nothing("No events yet.")
    times = [moment.at for moment in data.timeline]
    flow = [
        Series("enqueued", [moment.enqueued for moment in data.timeline], "blue"),
        Series("completed", [moment.completed for moment in data.timeline], "green", is_area=True),
        Series("failed", [moment.failed for moment in data.timeline], "amber"),
        Series("dead", [moment.dead for moment in data.timeline], "red"),
    ]
    backlog = [
        Series("live", [moment.backlog for moment in data.timeline], "violet", is_area=True),
        Series("in progress", [moment.running for moment in data.timeline], "blue", is_area=True),
    ]

    def shown(value: float | None) -> str:
        return count(value or 0)

    first = time_plot(f"Tasks per {formatting.period(data.step_seconds)}", times, flow, show=shown)
    return first + time_plot("Backlog", times, backlog, show=shown)


def _latency(data: ReportData) -> str:
    known = [of for of in data.latency if of.run.number]
    if not known:
        return _nothing("Nothing has ended yet.")
    parts = []
    by_time = {of.at: of.end_to_end for of in data.latency_over_time if of.at}
    moments = _evenly(list(by_time))
    if len(moments) > 1:
        shown = {"p50": "blue", "p95": "amber", "p99": "red"}
        series = [
            Series(name, [getattr(by_time[at], name) if at in by_time else None for at in moments], colour)
            for name, colour in shown.items()
        ]
        parts.append(time_plot("From enqueue to end, over time", moments, series, show=duration, is_log=True))
    cards = []
    for measure, title in _MEASURES.items():
        rows = [(of.command or "", _marks(getattr(of, measure))) for of in known if getattr(of, measure).number]
        if rows:
            cards.append(figure(title, range_plot(rows), behind=_percentile_table(known, measure)))
    note = "Each bar reaches from p50 (first dot) over p90 and p95 to p99 (last dot), on a logarithmic scale."
    return "".join(parts) + f'<div class="grid">{"".join(cards)}</div>{_note(note)}'


def _evenly(times: Sequence[datetime]) -> Sequence[datetime]:
    """Returns all steps of time from the first to the last: those in which nothing ended are gaps in a plot."""
    step_s = gcd(*(round((at - times[0]).total_seconds()) for at in times))
    steps = range(round((times[-1] - times[0]).total_seconds()) // step_s + 1) if step_s else ()
    return [times[0] + timedelta(seconds=step_s * step) for step in steps] or times


def _marks(of: Percentiles) -> list[tuple[str, float]]:
    return [(name, value) for name in _PERCENTILES if (value := getattr(of, name)) is not None]


def _percentile_table(known: Sequence[Latency], measure: str) -> str:
    rows = []
    for of in known:
        values: Percentiles = getattr(of, measure)
        shown = [duration(getattr(values, name)) for name in _PERCENTILES]
        rows.append([escape(of.command or ""), exact(values.number), *shown])
    return table(["Command", "Number", *_PERCENTILES], rows)


def _outcomes(data: ReportData) -> str:
    if not data.outcomes:
        return _nothing("No tasks yet.")
    bars = "".join(
        f'<div class="range"><span class="name">{escape(of.command)}</span>'
        f"{stacked_bar([(name, getattr(of, name), colour) for name, colour in _OUTCOMES.items()])}</div>"
        for of in data.outcomes
    )
    shown = ("enqueued", *_OUTCOMES)
    rows = [[escape(of.command), *(exact(getattr(of, name)) for name in shown)] for of in data.outcomes]
    behind = table(["Command", *(name.capitalize() for name in shown)], rows)
    return figure("Where tasks are, by command", f'<div class="ranges">{bars}</div>', legend=_OUTCOMES, behind=behind)


def _dead_letters(data: ReportData) -> str:
    if not data.dead_letters:
        return _nothing("No task has died.")
    most = max(letter.deaths for letter in data.dead_letters)
    return f'<div class="letters">{"".join(_letter(letter, most) for letter in data.dead_letters)}</div>'


def _letter(letter: DeadLetter, most: int) -> str:
    def listed(items: Sequence[str]) -> str:
        return ", ".join(f"<code>{escape(item)}</code>" for item in items) or UNKNOWN

    errors = "".join(f"<pre>{escape(error)}</pre>" for error in letter.errors)
    tasks = "".join(f"<li><code>{escape(task)}</code></li>" for task in letter.task_ids)
    first, last = formatting.day_and_time(letter.first_at), formatting.day_and_time(letter.last_at)
    return (
        f'<details class="letter"><summary><strong>{exact(letter.deaths)}</strong>'
        f'<code>{escape(letter.signature)}</code><span class="when">last {last}</span>'
        f"{bar(letter.deaths / most, 'red')}</summary><dl><dt>Seen</dt><dd>{first} to {last}</dd>"
        f"<dt>Commands</dt><dd>{listed(letter.commands)}</dd><dt>Tenants</dt><dd>{listed(letter.tenants)}</dd>"
        f"<dt>Workers</dt><dd>{listed(letter.workers)}</dd><dt>In full</dt><dd>{errors}</dd>"
        f"<dt>Examples</dt><dd><ul>{tasks}</ul></dd></dl></details>"
    )


def _service_levels(data: ReportData) -> str:
    if not data.service_levels:
        return _nothing("Nothing has ended yet.")
    rows = []
    for of in data.service_levels:
        burn = of.burn or 0
        badge = f'<span class="badge {"good" if burn <= 1 else "bad"}">{burn:.2f}</span>'
        share = percent(of.share, 2) + bar(of.share or 0, "green" if burn <= 1 else "red", of.objective)
        counts = [exact(number) for number in (of.tasks, of.late, of.failed)]
        rows.append([escape(of.command), duration(of.target_ms), percent(of.objective), share, badge, *counts])
    heads = ["Command", "Completed within", "Objective", "Share", "Budget burn", "Tasks", "Late", "Failed or dead"]
    note = "Burn 1 uses the error budget up exactly. The mark on each bar is the objective."
    return table(heads, rows) + _note(note)


def _retries(data: ReportData) -> str:
    if not data.retries:
        return _nothing("Nothing was delivered yet.")
    took = [sum(of.took[i] for of in data.retries) for i in range(len(_TOOK))]
    rows = []
    for of in data.retries:
        counts = [exact(number) for number in (of.nacks, of.expiries, of.abandons, of.deaths)]
        share = percent(of.retry_share) + bar(of.retry_share or 0, "amber")
        rows.append([escape(of.command), exact(of.deliveries), share, *counts])
    heads = ["Command", "Deliveries", "Given back", "Nacks", "Expiries", "Abandons", "Deaths"]
    drawn = figure("Deliveries that finished tasks took", columns(list(zip(_TOOK, took, strict=True))))
    return f'<div class="grid side">{drawn}{table(heads, rows)}</div>'


def _tenants(data: ReportData) -> str:
    if not data.tenants:
        return _nothing("No tenants yet.")
    most = max(of.run_seconds for of in data.tenants) or 1
    rows = []
    for of in data.tenants:
        counts = [exact(number) for number in (of.tasks, of.completed, of.deliveries)]
        run = duration(of.run_seconds * 1000) + bar(of.run_seconds / most)
        files = f"{exact(of.artifacts)}, {formatting.size(of.artifact_bytes)}" if of.artifacts else "0"
        sent = [exact(number) for number in (of.webhooks, of.webhook_attempts)]
        rows.append([escape(of.tenant), *counts, formatting.size(of.payload_bytes), run, files, *sent])
    heads = ["Tenant", "Tasks", "Completed", "Deliveries", "Payloads", "Run", "Artifacts", "Webhooks", "Attempts"]
    return table(heads, rows) + _note("Webhooks are result callbacks, and attempts those to deliver them.")


def _workers(data: ReportData) -> str:
    if not data.workers:
        return _nothing("No worker has ended a delivery yet.")
    most = max(of.busy_seconds for of in data.workers) or 1
    rows = []
    for of in data.workers:
        counts = [exact(number) for number in (of.deliveries, of.completed, of.failures, of.expiries)]
        busy = duration(of.busy_seconds * 1000) + bar(of.busy_seconds / most)
        rows.append([escape(of.worker), escape(of.tenant), *counts, percent(of.failure_share), busy])
    heads = ["Worker", "Tenant", "Deliveries", "Completed", "Failures", "Expiries", "Failing", "Busy"]
    return table(heads, rows, numbers_from=2)


def _capacity(data: ReportData) -> str:
    if not data.capacity:
        return _nothing("Nothing has arrived yet.")
    rows = []
    for of in data.capacity:
        needed = UNKNOWN if of.workers_needed is None else exact(of.workers_needed)
        is_short = of.workers_needed is not None and of.workers < of.workers_needed
        badge = f'<span class="badge {"bad" if is_short else "good"}">{needed}</span>'
        load = UNKNOWN if of.load is None else f"{of.load:.2f}"
        rows.append([
            escape(of.command), formatting.day_and_time(of.hour), f"{of.arrivals_per_second:.2f}/s",
            duration(of.service_ms), load, percent(of.utilisation, 0), exact(of.workers), badge,
        ])  # fmt: skip
    heads = ["Command", "Busiest hour", "Arrivals", "Mean run", "Load", "Utilisation", "Workers seen", "Workers needed"]
    return table(heads, rows, numbers_from=2) + _note(
        f"Needed for a mean wait of {duration(data.capacity[0].wait_target_ms)} with one task at a time per worker "
        "(Erlang C). A worker that takes several tasks at once counts as several."
    )


def _audit(data: ReportData) -> str:
    if not data.audit:
        return _nothing("This report was made without an audit.")
    rows = []
    for rule in data.audit:
        badge = f'<span class="badge {_KINDS.get(rule.label, "none")}">{escape(rule.label)}</span>'
        counts = [exact(number) for number in (rule.checked, rule.violations)]
        rows.append([badge, f"<code>{escape(rule.rule)}</code>", escape(rule.text), *counts])
    shown = table(["Verdict", "Rule", "What must hold", "Checked", "Violations"], rows, numbers_from=3)
    names = ("tenant", "task_id", "shard", "seq", "detail")
    evidence = [
        [
            f"<code>{escape(rule.rule)}</code>",
            *(UNKNOWN if row.get(name) is None else escape(str(row[name])) for name in names),
        ]
        for rule in data.audit
        for row in rule.examples
    ]
    if evidence:
        heads = ["Rule", "Tenant", "Task", "Shard", "Event", "What is wrong"]
        shown += "<h3>Evidence</h3>" + table(heads, evidence, numbers_from=len(heads))
    return shown


def _pipeline(data: ReportData) -> str:
    """How new the lake is, and what its last runs took."""
    freshness = data.freshness
    newest = UNKNOWN if data.last_at is None else duration((data.made_at - data.last_at).total_seconds() * 1000)
    behind = UNKNOWN if freshness.events_behind is None else f"{exact(freshness.events_behind)} events"
    sizes = ", ".join(f"{layer} {formatting.size(size)}" for layer, size in freshness.size_bytes.items()) or UNKNOWN
    facts = [
        ("Freshness", f"{newest} from the newest event to this report"),
        ("Lag", f"{behind} in the server's log that the lake does not have"),
        ("Size", sizes),
    ]
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    if not freshness.runs:
        return f'<dl class="facts">{listed}</dl>' + _nothing("No run has left its figures yet.")
    layers = list(dict.fromkeys(layer for run in freshness.runs for layer in run.seconds))
    rows = []
    for run in freshness.runs:
        took = [duration(run.seconds[layer] * 1000) if layer in run.seconds else UNKNOWN for layer in layers]
        at = formatting.day_and_time(run.at, with_seconds=True)
        rows.append([at, exact(run.events), formatting.size(run.size_bytes), *took])
    heads = ["Events ingested at", "Events", "Written", *(layer.capitalize() for layer in layers)]
    return f'<dl class="facts">{listed}</dl>' + table(heads, rows, caption="The last runs, and how long they took")


_KINDS = {"ok": "good", "FAIL": "bad"}


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _nothing(text: str) -> str:
    return f'<p class="nothing">{escape(text)}</p>'
