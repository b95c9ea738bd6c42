"""Fidelity over many scenarios: run by run, each kept when it is done, a report and pictures at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from kvferry.analysis import style
from kvferry.analysis.code_version import plugins_version
from kvferry.analysis.compare import compare_gantt
from kvferry.analysis.envelope import provenance_of, to_json, versions
from kvferry.analysis.fidelity import (
    TwoWorlds,
    beside,
    beside_pairs,
    figures_of,
    in_both_worlds,
    summary_of,
)
from kvferry.analysis.fidelity_quality import with_recall
from kvferry.analysis.figures import FIGURES
from kvferry.analysis.folder import folder_name, write_pictures
from kvferry.analysis.remarks import how_known
from kvferry.analysis.settings import column_of, settings_of
from kvferry.analysis.study_plots import devices_of
from kvferry.analysis.style import BLACK, FAINT, GREY, MARKERS, SERIES, render
from kvferry.backends.world import Say
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import scenario_hash
from kvferry.specs import human
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kvferry.calibration.speed import Speed

_RUNS = "runs.json"
# What axes are called.
AXES = {"ttft_s": "time to first token (s)", "throughput_tokens_per_s": "throughput (tokens/s)"}


@dataclass(frozen=True, kw_only=True)
class FidelityStudy:
    """Scenarios to run in both worlds; `varied` names the settings by which they differ, `remarks` say which settings
    some of them do not have."""

    name: str
    scenarios: Sequence[Scenario]
    varied: Sequence[str]
    runs: int
    remarks: Sequence[str] = ()
    # Whether each run has tables of its own, measured before and behind it.
    paired: bool = False


def measure(
    study: FidelityStudy,
    folder: Path | None,
    *,
    progress: Callable[[int, int], None] = lambda done, of: None,
    say: Say = lambda what: None,
) -> dict[str, Any]:
    """The report: a row per scenario as ``beside`` has it, with what it was; their ``summary``; and ``remarks``, what
    the errors hold and what they do not.

    Round by round, every scenario once in each: a machine is slower for minutes now and then, and no scenario should
    have all its runs then. With a folder, runs are kept there as they come, with a picture of the last one in both
    worlds, which says how far it is off in the median of all: interrupted, the same call goes on. Raises InputError,
    KvferryError.
    """
    kept = _kept(folder)
    of = study.runs * len(study.scenarios)
    for n in range(study.runs):
        for place, scenario in enumerate(study.scenarios):
            progress(n * len(study.scenarios) + place, of)
            found = kept.setdefault(_key(study, scenario), {"measured": [], "simulated": []})
            if len(found["measured"]) + len(found.get("left_out", ())) > n:
                continue
            worlds, speed = _paired(scenario, say) if study.paired else (in_both_worlds(scenario, say=say), None)
            figures = figures_of(scenario, worlds.simulated)
            if counts := speed is None or speed.kept:
                found["simulated"] = [*found["simulated"], figures] if study.paired else figures
                found["measured"].append(figures_of(scenario, worlds.measured))
            else:
                both = {"simulated": figures, "measured": figures_of(scenario, worlds.measured)}
                found.setdefault("left_out", []).append(both | {"change": speed.change})
                changed = f"the machine's speed changed by {speed.change - 1:.0%}"
                say(f"{scenario.name}: run {n + 1} does not count: {changed}")
            if folder is not None:
                write_file(folder / _RUNS, to_json(kept).encode())
                if counts and n in (0, study.runs - 1):
                    errors = _errors(scenario, found)
                    _draw(folder, _row(study, scenario)["name"], worlds, errors, f"run {n + 1} of {study.runs}")
    progress(of, of)
    rows = []
    for scenario in study.scenarios:
        found = kept[_key(study, scenario)]
        row = _row(study, scenario)
        if not found["measured"]:
            what = f"the machine changed its speed in each of its {len(found['left_out'])} runs"
            raise KvferryError(f"{row['name']}: {what}; on a quiet machine, or with more --runs, some count")
        kept_runs = {key: each[: study.runs] if isinstance(each, list) else each for key, each in found.items()}
        errors = _errors(scenario, kept_runs)
        if "quality" in errors:
            errors["quality"] = with_recall(scenario, errors["quality"])
        rows.append(row | errors)
    first = study.scenarios[0]
    report = {
        "study": study.name,
        "runs": study.runs,
        "rows": rows,
        "summary": summary_of(rows),
        "by_system": {
            system: summary_of([row for row in rows if row["system"] == system])
            for system in dict.fromkeys(row["system"] for row in rows)
        },
        "left_out": sum(len(kept[_key(study, scenario)].get("left_out", ())) for scenario in study.scenarios),
        "remarks": list(dict.fromkeys([*study.remarks, *_remarks(study.scenarios)])),
        "versions": versions(),
        "provenance": provenance_of(first.device, first.model),
    }
    if folder is not None:
        write_file(folder / "fidelity.json", to_json(report).encode())
        for headline in dict.fromkeys(row["headline"] for row in rows):
            drawn = [row for row in rows if row["headline"] == headline and headline in row["metrics"]]
            if drawn:
                stem = folder / "plots" / headline.split("_")[0]
                title = study.name + devices_of(study.scenarios)
                write_pictures(stem, render(lambda: scatter(drawn, title=title)))  # noqa: B023
    return report


def _paired(scenario: Scenario, say: Say) -> tuple[TwoWorlds, Speed]:
    """The scenario between the halves of its tables, and the machine's speed meanwhile."""
    from kvferry.calibration.tables_around import TablesAround

    with TemporaryDirectory() as folder:
        around = TablesAround(scenario, Path(folder))
        around.half()
        worlds = in_both_worlds(scenario, say=say, priced=around.priced)
    return worlds, around.speed


def _errors(scenario: Scenario, found: Mapping[str, Any]) -> dict[str, Any]:
    headline, simulated = WORKLOADS[scenario.workload.kind].headline, found["simulated"]
    if not isinstance(simulated, list):
        return beside(simulated, found["measured"], headline)
    pairs = zip(simulated, found["measured"], strict=True)
    return beside_pairs([{"simulated": ours, "measured": theirs} for ours, theirs in pairs], headline)


def scatter(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> Figure:
    """Simulated over measured headline metric, the same for all rows: a mark per scenario and a kind of mark per
    system, with the 5 and 15 % lines."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    headline = rows[0]["headline"]
    figure = style.new_figure(6.2, 5.6)
    axis = figure.subplots()
    points = {
        system: [
            (row["metrics"][headline]["measured"], row["metrics"][headline]["simulated"])
            for row in rows
            if row["system"] == system
        ]
        for system in dict.fromkeys(row["system"] for row in rows)
    }
    values = [value for found in points.values() for point in found for value in point]
    values += [value for row in rows for value in row["runs"] if value is not None]
    ends = [min(values) / 1.2, max(values) * 1.2]
    axis.plot(ends, ends, color=BLACK, linewidth=1.0)
    for share, line in ((0.05, "--"), (0.15, ":")):
        for factor in (1 + share, 1 / (1 + share)):
            label = f"{100 * share:.0f} % off" if factor > 1 else None
            axis.plot(ends, [factor * end for end in ends], color=GREY, linewidth=0.9, linestyle=line, label=label)
    for n, (system, found) in enumerate(points.items()):
        if found:
            colour, marker = SERIES[n % len(SERIES)], MARKERS[n % len(MARKERS)]
            axis.plot(*zip(*found, strict=True), linestyle="none", marker=marker, color=colour, label=system, alpha=0.8)
            for row in (row for row in rows if row["system"] == system):
                runs = [value for value in row["runs"] if value is not None]
                axis.plot(
                    [min(runs), max(runs)], [row["metrics"][headline]["simulated"]] * 2, color=colour, linewidth=1
                )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(*ends)
    axis.set_ylim(*ends)
    for numbers in (axis.xaxis, axis.yaxis):
        numbers.set_major_locator(MaxNLocator(5) if ends[1] / ends[0] < 10 else LogLocator(subs=(1, 2, 5)))
        numbers.set_minor_locator(NullLocator())
        numbers.set_major_formatter("{x:g}")
    axis.grid(color=FAINT, which="both")
    axis.set_xlabel(f"measured {AXES[headline]}: median, line: least to most of the runs")
    axis.set_ylabel(f"simulated {AXES[headline]}")
    axis.set_title(title)
    axis.legend(loc="upper left")
    return figure


def _key(study: FidelityStudy, scenario: Scenario) -> str:
    """Under which runs are kept: those of a policy that was changed are another's."""
    return scenario_hash(scenario) + plugins_version() + ("paired" if study.paired else "")


def _row(study: FidelityStudy, scenario: Scenario) -> dict[str, Any]:
    settings = settings_of(scenario)
    columns = {key: column_of(key, settings) for key in study.varied if key != "system"}
    varied = {key: settings[column] for key, column in columns.items() if column is not None}
    values = [f"{value:g}".replace("+", "") if isinstance(value, float) else str(value) for value in varied.values()]
    return {
        "name": folder_name("-".join([scenario.name, scenario.system, *values])),
        "system": scenario.system,
        "varied": varied,
        "remark": WORKLOADS[scenario.workload.kind].remark(scenario),
    }


def _remarks(scenarios: Iterable[Scenario]) -> Iterator[str]:
    """Remarks on what the errors leave out, and on profiles that were not measured: their error is in the figures as
    well."""
    for scenario in scenarios:
        yield from filter(None, (WORKLOADS[scenario.workload.kind].remark(scenario), how_known(scenario.device)))


def _draw(folder: Path, name: str, worlds: TwoWorlds, errors: Mapping[str, Any], which: str) -> None:
    both = {"simulated": worlds.simulated, "measured": worlds.measured}
    if any(run.spans for run in both.values()):
        what = f"{worlds.scenario.system} in both worlds{devices_of([worlds.scenario])}, {which}"
        title = f"{worlds.scenario.name}: {what}\n{_told(errors)}"
        write_pictures(folder / "plots" / name, render(lambda: compare_gantt(both, title=title)))


def _told(errors: Mapping[str, Any]) -> str:
    """The error of the headline metric over all runs so far, as the table has it; a single run is drawn below it."""
    headline, runs = errors["headline"], len(errors["runs"])
    if headline not in errors["metrics"]:
        return f"no {AXES.get(headline, headline)} in both"
    found, write = errors["metrics"][headline], human.of_unit(headline)
    told = f"{FIGURES[headline].label}: simulated {write(found['simulated'])}, measured {write(found['measured'])}"
    told += f" in the median of {runs}" if runs > 1 else ""
    told += "" if found["error"] is None else f": {100 * found['error']:+.1f} %"
    return told + ("" if found["spread"] is None else f", spread {human.percent(found['spread'])}")


def _kept(folder: Path | None) -> dict[str, dict[str, Any]]:
    path = None if folder is None else folder / _RUNS
    if path is None or not path.is_file():
        return {}
    try:
        kept = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(
            f"{path}: not the runs of an earlier call ({error}); remove it, or name another folder"
        ) from None
    if not isinstance(kept, dict):
        raise InputError(f"{path}: not the runs of an earlier call; remove it, or name another folder")
    return kept
