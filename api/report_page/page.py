"""The page: every result with its table and charts, its scenario, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import count
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from kvferry.analysis.equal_memory import unequal_memory
from kvferry.analysis.figures import FIGURES, RATES, label_of
from kvferry.analysis.quality import MARK, footnotes, is_unknown, lower_quality
from kvferry.analysis.study_plots import marked
from kvferry.analysis.sureness import how_sure
from kvferry.analysis.tables import INTERVAL, NOT_KNOWN, says_more
from kvferry.analysis.variants import VARIANT
from kvferry.api.page_head import page_head
from kvferry.api.report_page.both_worlds import beside_each_other, said_of
from kvferry.api.report_page.charts import bars, claims_chart, scatter, timeline
from kvferry.api.report_page.names import names_of
from kvferry.api.report_page.overview import HEADLINES, not_measured, overview_of
from kvferry.api.report_page.results import BothWorlds, Comparison, Points, Result, RunResult, Verdicts, results_in
from kvferry.specs import human
from kvferry.specs.errors import MissingExtra
from kvferry.specs.version import VERSION

if TYPE_CHECKING:
    import pandas as pd

_MOST_FIGURES = 12
# Settings that say what a point is; a row of them tells it from others.
_PLUMBING = ("key", "version", "name")
# Told apart where a cloud takes energy, too.
_ENERGIES = ("energy_j", "cloud_energy_j", "total_energy_j")


# What a paper that names no upper bound has instead of one.
_NO_BOUND = 1e9
# Columns of sentences, and how wide they are.
_PROSE = {"why": "wider", "what": "wide", "source": "wide"}


@dataclass
class Section:
    """A part of the page. `charts` and `tables` are HTML, everything else is text."""

    title: str
    said: list[str] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)
    tables: list[tuple[str, str]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)
    inner: list[Section] = field(default_factory=list)


# Scripts and styles that the page itself holds.
_SOURCES = (
    "script-src 'unsafe-inline' 'unsafe-eval' data: blob:; style-src 'unsafe-inline' data: blob:; img-src data: blob:;"
    " worker-src blob:"
)


def report(folders: Sequence[Path]) -> str:
    """One HTML document about all results in these folders, which needs no network and no other file.

    Raises InputError for folders without results and damaged files; MissingExtra without the report extra.
    """
    results = results_in(folders)
    try:
        import itables
        import jinja2
        import plotly
    except ImportError as error:
        raise MissingExtra(f"a report needs {error.name}: pip install '.[report]'") from None
    from importlib.resources import files

    from itables.javascript import generate_init_offline_itables_html

    number = count()
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        files("kvferry.api.report_page").joinpath("page.html").read_text(encoding="utf-8")
    )
    names = names_of(results)
    sections = [_section(result, number) for result in results]
    for section, name in zip(sections, names, strict=True):
        section.title = name
    title = shorten(f"KVFerry: {', '.join(result.name for result in results)}", 120, placeholder=" ...")
    return page.render(
        head=page_head(title, _SOURCES),
        title=title,
        overview=overview_of(results, names),
        version=VERSION,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        sections=sections,
        plotly=plotly.offline.get_plotlyjs(),
        datatables=generate_init_offline_itables_html(itables.options.dt_bundle),
    )


def _section(result: Result, number: Iterator[int]) -> Section:
    made: dict[type, Callable[[Any, Iterator[int]], Section]] = {
        RunResult: _of_run,
        Comparison: _of_comparison,
        Points: _of_points,
        Verdicts: _of_verdicts,
        BothWorlds: _of_both_worlds,
    }
    return made[type(result)](result, number)


def _of_run(run: RunResult, number: Iterator[int]) -> Section:
    found = run.found
    section = Section(f"{found['scenario']}: {run.system}")
    section.said.append(
        f"Outcome: {found['outcome'].replace('_', ' ')}." + (f" {found['why']}" if "why" in found else "")
    )
    section.said += found.get("notes", [])
    section.said += _unmeasured(run)
    section.said += footnotes({run.system: found["metrics"]}) if found["outcome"] == "done" else []
    section.said += how_sure([found.get("evidence", {})])
    section.tables.append(
        ("Figures", _table(_metrics(found["metrics"], found.get("intervals", {})), number, paging=False))
    )
    if len(run.spans):
        section.charts.append(_chart(timeline(run.spans), number))
    if len(run.requests) > 1:
        section.tables.append(("Requests", _table(run.requests, number)))
    section.texts += [("Scenario", run.scenario), ("Environment", _lines(found.get("versions", {})))]
    section.tables.append(("Where its numbers come from", _table(_sources(found["provenance"]), number)))
    return section


def _of_comparison(comparison: Comparison, number: Iterator[int]) -> Section:
    import pandas as pd

    section = Section(f"{comparison.name}: systems beside each other")
    outcomes = {run.system: run.found["outcome"].replace("_", " ") for run in comparison.runs}
    outcomes |= dict.fromkeys(comparison.failed, "failed")
    whys = {run.system: run.found.get("why", "") for run in comparison.runs} | dict(comparison.failed)
    section.said += [
        f"{system}: {outcome}{': ' if whys[system] else ''}{whys[system]}"
        for system, outcome in outcomes.items()
        if outcome != "done"
    ]
    # Figures of an unfinished run would look too good beside the others.
    finished = {run.system: run.found["metrics"] for run in comparison.runs if run.found["outcome"] == "done"}
    intervals = {run.system: run.found.get("intervals", {}) for run in comparison.runs}
    lesser = lower_quality(finished)
    named = {system: f"{system} {MARK}" if system in lesser else system for system in outcomes}
    section.said += _unmeasured(comparison)
    section.said += how_sure(run.found.get("evidence", {}) for run in comparison.runs)
    section.said += [*footnotes(finished), *(f"{named[system]}: {why}" for system, why in lesser.items())]
    section.said += [line for line in [unequal_memory(finished)] if line is not None]
    shown = [
        key
        for key in FIGURES
        if any(says_more(key, one) and (key in one or is_unknown(key, one)) for one in finished.values())
    ]
    of_devices = "total_energy_j" in shown
    charted = {
        figure: {named[system]: one[figure] for system, one in finished.items() if figure in one}
        for figure in _there(shown)
        # Of answers of one token, a rate is the time to it once more.
        if "tpot_s" in shown or figure not in ("throughput_tokens_per_s", *RATES)
    }
    for figure in [one for one, values in charted.items() if _differ(values.values())][:2]:
        section.charts.append(_chart(bars(charted[figure], figure, of_devices), number))
    rows = [{"figure": "outcome", **{named[system]: outcome for system, outcome in outcomes.items()}}]
    rows += [
        {"figure": label_of(key, of_devices)}
        | {named[system]: _cell(key, finished.get(system, {}), intervals.get(system, {})) for system in outcomes}
        for key in shown
    ]
    section.tables.append(("Figures", _table(pd.DataFrame(rows), number, paging=False)))
    section.inner = [_of_run(run, number) for run in comparison.runs]
    return section


def _of_points(points: Points, number: Iterator[int]) -> Section:
    table, mark = marked(points.table)
    section = Section(f"{points.name}: {len(table):,} points")
    section.said += [*_unmeasured(points), *([mark] if mark else [])]
    counts = table["outcome"].value_counts()
    if "total_energy_j" in table.columns:
        whose = ", ".join(f"{key}: {label_of(key, True)}" for key in _ENERGIES if key in table.columns)
        section.said.append(f"Whose energy it is: {whose}.")
    section.said.append("Outcomes: " + ", ".join(f"{n:,} {str(name).replace('_', ' ')}" for name, n in counts.items()))
    varied = [
        column
        for column in table.columns
        if column not in (*_PLUMBING, *FIGURES, "why", "outcome")
        and _is_setting(column)
        and table[column].nunique(dropna=False) > 1
    ]
    figures = _there(list(table.columns))
    figures += [key for key in FIGURES if key in table.columns and key not in figures][: _MOST_FIGURES - len(figures)]
    columns = ["outcome", *varied, *figures, *(["why"] if table["why"].notna().any() else [])]
    numeric = [column for column in varied if table[column].dtype.kind in "if" and column != "seed"]
    numeric.sort(key=lambda column: -table[column].nunique())
    named = [column for column in varied if table[column].nunique(dropna=False) <= 7 and column not in numeric]
    if numeric and figures:
        by = next((column for column in (VARIANT, "system", *named) if column in named), None)
        done = table[table["outcome"] == "done"]
        telling = [key for key in figures if _differ(done[key].dropna())]
        if telling:
            section.charts.append(_chart(scatter(done, numeric, telling, by), number))
    section.tables.append(("Points", _table(table[columns], number)))
    rest = [column for column in table.columns if column not in (*columns, *_PLUMBING) and _is_setting(column)]
    fixed = {column: table[column].iloc[0] for column in sorted(rest) if table[column].notna().all()}
    section.texts.append(("What all points share", _lines(fixed)))
    section.texts.append(("Environment", _lines({"kvferry": ", ".join(sorted(set(table["version"].astype(str))))})))
    return section


def _of_verdicts(verdicts: Verdicts, number: Iterator[int]) -> Section:
    import pandas as pd

    found = verdicts.found
    section = Section(f"{found.get('paper', verdicts.name)}: the paper's figures beside ours")
    claims = pd.DataFrame(found["claims"])
    counts = claims["verdict"].value_counts()
    section.said.append("Claims: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    section.charts.append(_chart(claims_chart(found["claims"]), number))
    section.tables.append(("Claims", _table(_beside(found["claims"]), number)))
    for name in ("cells", "tables"):
        if found.get(name):
            section.tables.append((name.capitalize(), _table(_flat(found[name]), number)))
    return section


def _of_both_worlds(both: BothWorlds, number: Iterator[int]) -> Section:
    found = both.found
    section = Section(f"{found['study']}: both worlds", said=said_of(found))
    section.tables = [(name, _table(table, number)) for name, table in beside_each_other(found).items()]
    section.texts.append(("Environment", _lines(found["versions"])))
    section.tables.append(("Where its numbers come from", _table(_sources(found["provenance"]), number)))
    return section


# --- parts of these --------------------------------------------------------------------------------------------------


def _metrics(metrics: dict[str, float], intervals: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    import pandas as pd

    order = [*(key for key in FIGURES if key in metrics), *sorted(metrics.keys() - FIGURES.keys())]
    rows = [
        (label_of(key, "total_energy_j" in metrics), _written(key, metrics[key]), f"{metrics[key]:.6g}", key)
        for key in order
    ]
    frame = pd.DataFrame(rows, columns=["figure", "value", "in SI units", "key"])
    if intervals:
        frame.insert(2, INTERVAL, [_interval(key, intervals.get(key)) for key in order])
    return frame


def _interval(key: str, ends: Sequence[float] | None) -> str:
    return "" if ends is None else " to ".join(_written(key, end) for end in ends)


def _sources(provenance: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    rows: list[tuple[str, str]] = []

    def lay_out(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                lay_out(inner, f"{path}.{key}" if path else key)
        else:
            rows.append((path, str(value)))

    lay_out(provenance, "")
    return pd.DataFrame(rows, columns=["what", "source"])


def _beside(claims: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Claims with the printed figure and ours as text: a sweep's have two ends."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for claim in claims:
        low, high = claim["paper_low"], claim["paper_high"]
        printed = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
        ours = "" if claim["ours"] is None else f"{claim['ours']:.4g}"
        if claim.get("statistic") == "sweep" and claim["ours_low"] is not None:
            ours = f"{claim['ours_low']:.4g} to {claim['ours_high']:.4g}"
        if claim.get("statistic") == "bound":
            printed = f"at most {high:.4g}" if not low else f"at least {low:.4g}" if high >= _NO_BOUND else printed
        rest: dict[str, Any] = {
            key: claim[key] for key in ("verdict", "fitted", "seeds", "seeds_hit", "why") if key in claim
        }
        rows.append({"id": claim["id"], "what": claim["what"], "paper": printed, "ours": ours, **rest})
    return pd.DataFrame(rows)


def _flat(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    simple = [{key: value for key, value in row.items() if not isinstance(value, list | dict)} for row in rows]
    return pd.DataFrame(simple).dropna(axis=1, how="all")


def _there(columns: Sequence[str]) -> list[str]:
    return [key for key in HEADLINES if key in set(columns)]


def _is_setting(column: str) -> bool:
    return "." in column or column in (VARIANT, "system", "seed", "backend", "coupling", "measure")


def _differ(values: Iterable[float]) -> bool:
    """Returns whether a chart of these figures shows anything: one bar does, bars of one length do not."""
    found = list(values)
    return len(found) == 1 or (bool(found) and max(found) - min(found) > 1e-9 * max(map(abs, found)))


def _unmeasured(result: Result) -> list[str]:
    names = not_measured(result)
    if not names:
        return []
    verb = "is not a measured device: its" if len(names) == 1 else "are not measured devices: their"
    return [f"{', '.join(names)} {verb} figures are from data sheets and papers."]


def _written(key: str, value: float) -> str:
    return human.of_unit(key)(value) if value == value else ""


def _cell(key: str, metrics: dict[str, float], intervals: Mapping[str, Sequence[float]]) -> str:
    """The figure with its interval, as in "44.6 (35.2 to 53.3)"."""
    if key not in metrics:
        return NOT_KNOWN if is_unknown(key, metrics) else ""
    return _written(key, metrics[key]) + (f" ({_interval(key, intervals[key])})" if key in intervals else "")


def _lines(values: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in values.items())


def _chart(figure: Any, number: Iterator[int]) -> str:
    html: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"chart-{next(number)}",
        config={"responsive": True, "displaylogo": False},
    )
    return html


def _short(value: Any) -> Any:
    """Nine significant digits of a number, which take less room in a long table."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _table(table: pd.DataFrame, number: Iterator[int], *, paging: bool = True) -> str:
    """Sorts by its headings, and is searched and filtered by column."""
    from itables import to_html_datatable

    # Its headings are taken as HTML.
    shown = (table.map(_short) if len(table) > 1000 else table).rename(columns=lambda name: escape(str(name)))
    html: str = to_html_datatable(
        shown,
        connected=False,
        table_id=f"table-{next(number)}",
        display_logo_when_loading=False,
        maxBytes=0,
        maxColumns=0,
        showIndex=False,
        paging=paging,
        column_filters="header" if paging else False,
        scrollX=True,
        style="width:100%",
        classes="display compact",
        deferRender=True,
        columnDefs=[{"targets": n, "className": _PROSE[name]} for n, name in enumerate(table) if name in _PROSE],
    )
    return html
