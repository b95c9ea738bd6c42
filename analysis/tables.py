"""Tables for the terminal: one run's metrics, or several systems side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import IO, TYPE_CHECKING

from kvferry.analysis.compared import columns_of
from kvferry.analysis.figures import FIGURES, RATES, Figure, label_of
from kvferry.analysis.quality import MARK, footnotes, is_unknown, lower_quality
from kvferry.analysis.repeats import Range, within_noise
from kvferry.policies.ledger import KEPT_FREE
from kvferry.specs import human

if TYPE_CHECKING:
    from rich.table import Table

Metrics = Mapping[str, float]
# The least and the most, by metric.
Ranges = Mapping[str, Range]


# Statistics that say nothing of a single request.
_OF_SEVERAL = {f"{key}_p{q}_s" for key in ("ttft", "tpot") for q in (50, 95, 99)} | {"bound_gap", "regret_p95"}

NOT_COUNTED, NOT_KNOWN = "not counted", "not known"
# What a tilde in a comparison means.
UNCLEAR = "~: its range meets that of a system above it: which of the two is better is not known"
UNSURE = "~: one above it beats it in fewer than nine of ten samples: which of the two is better is not known"
INTERVAL = "80 % interval"
# Parts of a memory peak that are shown by themselves.
_SHOWN_SHARE = 0.002
# A system attends to as many tokens as another one where it does to at most this many times as many.
_AS_MANY_TOKENS = 2.0
# A pipe has no width, and 80 columns would cut figures that a script looks for.
_PIPE_WIDTH = 240


def run_table(
    metrics: Metrics,
    *,
    title: str = "",
    ranges: Ranges | None = None,
    median: bool = False,
    memory: Mapping[str, float] | None = None,
) -> Table:
    """One row per metric, in human units. A bound beside what was achieved, an energy above its parts, as the memory
    peak above what `memory` names; where a part is not known, there is no sum of them. `ranges`: of several runs, of
    which the metrics are the `median`; else the intervals of a run's figures."""
    table = _table(title)
    table.add_column("metric")
    table.add_column("median" if median else "value", justify="right", style="bold")
    if ranges is not None:
        table.add_column("range" if median else INTERVAL, justify="right")
    counted = "energy_j" in metrics or not metrics.get("requests")
    lacking = {} if counted else {"energy_j": NOT_COUNTED}
    lacking |= {key: NOT_KNOWN for key in FIGURES if is_unknown(key, metrics)}
    shown = [key for key in FIGURES if says_more(key, metrics) and (key in metrics or key in lacking)]
    for key in shown + sorted(key for key in metrics if key not in FIGURES and not is_energy_part(key)):
        of_runs = [] if ranges is None else [_range(key, ranges.get(key))]
        shown_as = human.of_unit(key)(metrics[key]) if key in metrics else lacking[key]
        table.add_row(_label(key, metrics), shown_as, *of_runs)
        if key == "energy_j":
            for part in sorted(k for k in metrics if is_energy_part(k)):
                table.add_row(f"  {part.removeprefix('energy_').removesuffix('_j')}", human.energy(metrics[part]))
        if key == "memory_peak_bytes":
            for name, n_bytes in memory_lines(memory or {}).items():
                # What is kept free stands beside the peak, it is no part of it.
                table.add_row(name if name == KEPT_FREE else f"  {name}", human.size(n_bytes))
    return table


def memory_lines(held: Mapping[str, float]) -> dict[str, float]:
    """What a peak of memory consists of, by name, the largest first; what takes little of it as one. At last what is
    kept free, which is no part of it."""
    parts = {name: n_bytes for name, n_bytes in held.items() if name != KEPT_FREE}
    least = _SHOWN_SHARE * sum(parts.values())
    lines = {name: n for name, n in sorted(parts.items(), key=lambda part: -part[1]) if n >= least}
    if len(lines) < len(parts):
        lines["others"] = sum(parts.values()) - sum(lines.values())
    return lines | ({KEPT_FREE: held[KEPT_FREE]} if held.get(KEPT_FREE) else {})


def compare_table(
    systems: Mapping[str, Metrics],
    *,
    title: str = "",
    outcomes: Mapping[str, str] | None = None,
    ranked_by: str = "ttft_s",
    notes: Sequence[str] = (),
    width: int = _PIPE_WIDTH,
    ranges: Mapping[str, Ranges] | None = None,
    intervals: Mapping[str, Ranges] | None = None,
    unsure: Collection[str] = (),
) -> Table:
    """One row per system, best first by `ranked_by`, the metric that the workload is about, with how many times worse
    than the best it is; the best of a column is bold.

    A system whose run did not end "done" (by `outcomes`) shows its outcome in place of figures it lacks. So that
    `width` characters hold a row, headings are broken, then the last columns are left out: `notes`, which stand
    below the table, say which. `ranges`, by system: of several runs, whose medians the metrics are; a system whose
    range of the ranked metric meets that of one above it is marked with a tilde, as those `unsure` are. `intervals`, by
    system: the ranked metric's stand in the place of ranges where there are none, others below the table.
    """
    from rich.console import Console

    columns, ranked_by = columns_of(systems.values(), ranked_by), full_rate(systems, ranked_by)
    shown = [
        key
        for key in dict.fromkeys((ranked_by, *columns))
        if any(says_more(key, one) and (key in one or is_unknown(key, one)) for one in systems.values())
    ]
    known = intervals or {}
    unclear = {*unsure} | (unclear_of(systems, ranges, ranked_by) if ranges is not None else set())
    column = None if ranges is None else ("range", ranges)
    if ranges is None and any(ranked_by in one for one in known.values()):
        column = INTERVAL, known
    below = [key for key in shown if key != ranked_by or ranges is not None]
    elsewhere = _intervals_of(below, systems, known)
    ruler = Console(width=10 * _PIPE_WIDTH, color_system=None)
    left_out: list[str] = []
    narrow = False
    while True:
        table = _comparison(systems, shown, title, outcomes or {}, ranked_by, narrow, column, unclear)
        spare = [key for key in shown if key != ranked_by]
        if ruler.measure(table).maximum <= width or (narrow and not spare):
            break
        if narrow:
            shown.remove(spare[-1])
            left_out.insert(0, _label(spare[-1], *systems.values()))
        narrow = True
    caption = [
        *notes,
        *elsewhere,
        *_tokens_note(systems, ranked_by),
        *footnotes(systems),
        *([f"left out at {width} columns: {'; '.join(left_out)}"] if left_out else []),
    ]
    table.caption, table.caption_justify = "\n".join(caption) or None, "left"
    return table


def _comparison(
    systems: Mapping[str, Metrics],
    shown: Sequence[str],
    title: str,
    outcomes: Mapping[str, str],
    ranked_by: str,
    narrow: bool,
    spread_over: tuple[str, Mapping[str, Ranges]] | None,
    unclear: Collection[str],
) -> Table:
    from rich.markup import escape

    better = FIGURES.get(ranked_by, Figure(ranked_by, "low")).better
    order = sorted(systems, key=lambda name: _rank(systems[name].get(ranked_by), better))
    table = _table(title)

    def add_column(heading: str) -> None:
        # tokens/s and I/O stay whole.
        stacked = re.sub(r"(?<=\w\w)/(?=\w\w)", "\n/", heading.replace(" ", "\n"))
        table.add_column(stacked if narrow else heading, justify="right")

    table.add_column("system", no_wrap=True)
    for key in shown:
        add_column(_label(key, *systems.values()))
        if key == ranked_by:
            if spread_over is not None:
                add_column(spread_over[0])
            add_column("vs best")
    lesser = lower_quality(systems)
    outcome_of = {name: outcomes.get(name, "done") for name in order}
    failed = any(outcome != "done" for outcome in outcome_of.values())
    if failed:
        table.add_column("outcome")
    best = {key: _best(key, systems) for key in (*shown, ranked_by)}
    for name in order:
        cells = []
        for key in shown:
            value = systems[name].get(key)
            uncounted = key == "energy_j" and value is None and ranked_by in systems[name]
            spread = systems[name].get(f"{key}_spread")
            unknown = NOT_KNOWN if is_unknown(key, systems[name]) else _cell(key, value, best[key], spread)
            cells.append(NOT_COUNTED if uncounted else unknown)
            if key == ranked_by:
                if spread_over is not None:
                    cells.append(_range(key, spread_over[1].get(name, {}).get(key)))
                times = _to_best(value, best[key], better) + _of_tokens(systems[name], systems[order[0]])
                cells.append(("~ " if name in unclear else "") + times)
        if failed:
            cells.append(outcome_of[name].replace("_", " "))
        table.add_row(escape(name) + (f" {MARK}" if name in lesser else ""), *cells)
    return table


def _of_tokens(own: Metrics, best: Metrics) -> str:
    """How many times as many tokens a system attends to as the best one does; "" where that is not known, or they are
    nearly as many."""
    tokens, of_best = own.get("attended_tokens"), best.get("attended_tokens")
    if not tokens or not of_best or 1 / _AS_MANY_TOKENS <= tokens / of_best <= _AS_MANY_TOKENS:
        return ""
    times = max(tokens / of_best, of_best / tokens)
    said = f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
    return f" ({said}x tokens)" if tokens > of_best else f" (1/{said} of the tokens)"


def _tokens_note(systems: Mapping[str, Metrics], ranked_by: str) -> list[str]:
    """What is to be said of tokens in the column of how many times worse a system is."""
    better = FIGURES.get(ranked_by, Figure(ranked_by, "low")).better
    ranked = sorted(systems.values(), key=lambda one: _rank(one.get(ranked_by), better))
    found = [text for one in ranked if (text := _of_tokens(one, ranked[0]))]
    return ["(Nx tokens): attends to N times as many tokens as the best one: more work, and more quality"] * bool(found)


def full_rate(systems: Mapping[str, Metrics], ranked_by: str) -> str:
    """By its whole name the rate that systems are ranked by: of decoding alone, or with prefill, whichever the
    scenario measured as ``throughput_tokens_per_s``."""
    ranked = [metrics for metrics in systems.values() if ranked_by in metrics]
    if ranked_by != "throughput_tokens_per_s" or not ranked:
        return ranked_by
    return next((key for key in RATES if all(one.get(key) == one[ranked_by] for one in ranked)), ranked_by)


def terminal_width() -> int:
    """The width of standard output; large if it is not a terminal."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else _PIPE_WIDTH


def show(table: Table, file: IO[str] | None = None) -> None:
    """Print a table: coloured and fitted on a terminal, plain and whole elsewhere."""
    from rich.console import Console

    file = file or sys.stdout
    Console(file=file, width=None if file.isatty() else _PIPE_WIDTH, highlight=False).print(table)


def _table(title: str) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    return Table(
        title=escape(title) or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
    )


def _label(key: str, *systems: Metrics) -> str:
    """As it is called in a table of these systems' metrics."""
    return label_of(key, any("total_energy_j" in metrics for metrics in systems))


def is_energy_part(key: str) -> bool:
    return key.startswith("energy_") and key.endswith("_j") and key != "energy_j"


def says_more(key: str, metrics: Metrics) -> bool:
    """False if another figure already has the value: statistics of a single request, tokens/s of single tokens."""
    if key in _OF_SEVERAL:
        return metrics.get("requests") != 1
    if key == "requests_finished":
        return metrics.get(key) != metrics.get("requests")
    if key.startswith("planned_tokens"):
        return metrics.get(key) != metrics.get(key.replace("planned", "assisted"))
    if key != "throughput_tokens_per_s":
        return True
    # Of decoding, both rates stand there by their whole names.
    return not metrics.keys() >= set(RATES) and ("ttft_s" not in metrics or "tpot_s" in metrics)


def _range(key: str, of_runs: Range | None) -> str:
    return "" if of_runs is None or of_runs[0] == of_runs[1] else " to ".join(map(human.of_unit(key), of_runs))


def _intervals_of(keys: Sequence[str], systems: Mapping[str, Metrics], intervals: Mapping[str, Ranges]) -> list[str]:
    """A line for each of these figures that has intervals."""
    lines = []
    for key in keys:
        said = {name: _range(key, of.get(key)) for name, of in intervals.items()}
        if found := ", ".join(f"{name} {text}" for name, text in said.items() if text):
            lines.append(f"{INTERVAL} of {_label(key, *systems.values())}: {found}")
    return lines


def unclear_of(systems: Mapping[str, Metrics], ranges: Mapping[str, Ranges], ranked_by: str) -> set[str]:
    """The systems whose range of the metric that ranks them meets that of a better one. Without a range a figure is
    known."""
    key = full_rate(systems, ranked_by)
    better = FIGURES.get(key, Figure(key, "low")).better
    order = sorted(systems, key=lambda name: _rank(systems[name].get(key), better))
    values = {name: systems[name][key] for name in order if key in systems[name]}
    known = {name: ranges.get(name, {}).get(key, (value, value)) for name, value in values.items()}
    return within_noise(known)


def _rank(value: float | None, better: str | None) -> tuple[bool, float]:
    """The sort key: best first, missing figures last."""
    return value is None, (0.0 if value is None else -value if better == "high" else value)


def _best(key: str, systems: Mapping[str, Metrics]) -> float | None:
    better = FIGURES[key].better if key in FIGURES else None
    values = [metrics[key] for metrics in systems.values() if key in metrics]
    if better is None or len(values) < 2:
        return None
    return min(values) if better == "low" else max(values)


def _cell(key: str, value: float | None, best: float | None, spread: float | None) -> str:
    if value is None:
        return "-"
    text = human.of_unit(key)(value) + ("" if spread is None else f" ± {human.of_unit(key)(spread)}")
    return f"[bold green]{text}[/]" if value == best else text


def _to_best(value: float | None, best: float | None, better: str | None) -> str:
    """How many times worse than the best: 1.00x is the best itself."""
    if not value or not best:
        return "-"
    return human.ratio(best / value if better == "high" else value / best)
