"""The pictures that a study asks for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.axis_values import columns_under, written_values
from kvferry.analysis.bar_plots import bar, stack
from kvferry.analysis.figures import FIGURES, RATES, label_of, less_is_better
from kvferry.analysis.folder import write_pictures
from kvferry.analysis.latex import latex_of
from kvferry.analysis.pareto import pareto
from kvferry.analysis.plot_rows import kept_rows
from kvferry.analysis.plots import PLOTS, Axis
from kvferry.analysis.quality import (
    COARSER,
    MARK,
    ROUNDED,
    SHORTENED,
    SPARSE,
    coarser,
    rounded,
    shortened,
)
from kvferry.analysis.settings import column_of, key_of
from kvferry.analysis.study_spec import PlotSpec
from kvferry.analysis.style import AS_DRAWN, Print, render
from kvferry.analysis.tables import full_rate, is_energy_part
from kvferry.analysis.variants import VARIANT
from kvferry.codecs.sizes import FULL_KV_BITS
from kvferry.specs import human
from kvferry.specs.errors import InputError, quoted
from kvferry.specs.scenario import Scenario
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    import pandas as pd

# The unit of a whole axis, by the function that formats single values.
_UNITS: dict[Callable[[float], str], tuple[str, float]] = {
    human.seconds: ("s", 1.0),
    human.rate: ("Mbit/s", 8e-6),
    human.size: ("MB", 1e-6),
    human.energy: ("J", 1.0),
    human.percent: ("%", 100.0),
}
# By the name that a study's YAML uses.
_DRAWN: dict[str, Callable[..., Any]] = {**PLOTS, "bar": bar, "stack": stack, "pareto": pareto}
# Of one plot, and the column that says which of them a row is in.
MOST_PANELS = 9
_PANEL = "panel"
# Columns whose values bear the mark of lower quality.
MARKED = ("system", VARIANT)
_TOKENS = ("workload.context", "workload.question", "workload.output", "workload.chunk_tokens")


@dataclass
class Drawn:
    """What became of a study's plots: files, what stands behind their marks by name, and why one was not drawn."""

    files: list[Path] = field(default_factory=list)
    behind: dict[str, str] = field(default_factory=dict)
    not_drawn: dict[str, str] = field(default_factory=dict)


def draw_plots(
    frame: pd.DataFrame,
    plots: Sequence[PlotSpec],
    folder: Path,
    axes: Sequence[str] = (),
    about: tuple[str, str] = ("", ""),
    chance: str = "",
    how: Print = AS_DRAWN,
    latex: bool = False,
) -> Drawn:
    """Write each plot of a study's results, and with `latex` a table of what its marks show. `axes` are the keys that
    the study varies. `about`: the title of a plot that has none of its own, and what follows any title: on which
    devices. `chance`: what seeds vary of the link (`chance_of`).

    Only points whose outcome is "done" are drawn: figures of an unfinished run would look too good. No mark mixes
    values of an axis silently: where a plot names neither the axis nor that it may be pooled, each value has a panel
    of its own; a plot that would need too many is not drawn. One with conditions shows rows for which these hold.
    """
    drawn = Drawn()
    names: list[str] = []
    whole = _with_shown_texts(frame)
    all_marked = marked(whole)
    for plot in plots:
        name = _name(plot, names)
        names.append(name)
        try:
            frame, mark = marked(kept_rows(whole, plot.where)) if plot.where else all_marked
            _check_there(plot, frame)
            rows, facet = _in_panels(plot, frame[frame["outcome"] == "done"], axes)
            behind = _behind(plot, frame, rows, facet, axes, chance)
            drawn.behind[name] = f"{behind}; {mark}" if mark and {*MARKED} & {*plot.columns.values()} else behind
            drawn.behind[name] += _whose_energy(plot, frame)
            arguments = _arguments(plot, rows) | {"facet": facet, "note": drawn.behind[name]}
            arguments["title"] = (plot.title or about[0]) + about[1]
            if plot.kind == "pareto":
                arguments["same"] = _settings(axes, rows.columns)
            pictures = render(lambda plot=plot, rows=rows, what=arguments: _DRAWN[plot.kind](rows, **what), how)  # type: ignore[misc]
        except (InputError, ValueError) as error:  # no point was done, or none has this metric
            drawn.not_drawn[name] = str(error)
            drawn.behind.pop(name, None)
        else:
            drawn.files += write_pictures(folder / name, pictures)
            if latex and (table := latex_of(plot.kind, rows, arguments, drawn.behind[name])) is not None:
                drawn.files.append(write_file(folder / f"{name}.tex", table.encode()))
    return drawn


def _with_shown_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows with escapes in place of characters that no font shows."""
    texts = frame.select_dtypes(include=["object", "string"])
    unshown = {
        column: {one: quoted(one) for one in texts[column].unique() if isinstance(one, str) and quoted(one) != one}
        for column in texts
    }
    return (
        frame.replace({column: names for column, names in unshown.items() if names}) if any(unshown.values()) else frame
    )


def marked(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Returns the rows with the mark of lower quality behind each system and variant that attends to a part of the
    tokens, prefills a part of the prompt, keeps KV in fewer bits than another, or streamed clearly coarser KV, and what
    it means; "" where there is none."""
    meanings: list[str] = []
    for which in (one for one in MARKED if one in frame.columns):
        sparse = set(frame.loc[frame["attended_share"] < 1, which]) if "attended_share" in frame.columns else set()
        coarse = coarser(_streamed(frame, which)).keys()
        few = rounded(_means(frame, which, "kv_bits_per_value", FULL_KV_BITS)).keys()
        part = shortened(_means(frame, which, "assisted_ratio", 1.0)).keys()
        lesser = frame[which].isin({*sparse, *coarse, *few, *part})
        whys = ((SPARSE, sparse), (SHORTENED, part), (ROUNDED, few), (COARSER, coarse))
        meanings += [meaning for meaning, systems in whys if systems]
        frame = frame.assign(**{which: frame[which].mask(lesser, frame[which] + f" {MARK}")})
    return frame, "; ".join(dict.fromkeys(meanings))


def _means(frame: pd.DataFrame, which: str, figure: str, otherwise: float) -> dict[str, dict[str, float]]:
    """Returns a figure by system or variant, the mean of its points that are done; points without have another."""
    if figure not in frame.columns:
        return {}
    done = frame[frame["outcome"] == "done"] if "outcome" in frame.columns else frame
    means = done[figure].fillna(otherwise).groupby(done[which]).mean()
    return {str(name): {figure: float(mean)} for name, mean in means.items()}


def _streamed(frame: pd.DataFrame, which: str) -> dict[str, dict[str, float]]:
    """Returns how coarse what each system or variant streamed was, by the mean of its points."""
    if "streamed_bits_per_value" not in frame.columns:
        return {}
    rows = frame[frame["streamed_bits_per_value"] > 0]
    found: dict[str, dict[str, float]] = {}
    for system, points in rows.groupby(which):
        found[str(system)] = {"streamed_bits_per_value": float(points["streamed_bits_per_value"].mean())}
        if {"kv_relative_error", "streamed_share"} <= set(points.columns):
            # Of what was streamed alone: what was computed has no error.
            errors = points["kv_relative_error"] / points["streamed_share"] ** 0.5
            if not errors.isna().any():
                found[str(system)] |= {"kv_relative_error": float(errors.mean()), "streamed_share": 1.0}
    return found


def chance_of(scenarios: Iterable[Scenario]) -> str:
    """Returns what seeds vary of a link that replays a trace, to follow their number; "" where none is replayed."""
    links: dict[int, set[tuple[float, object]]] = {}
    for one in scenarios:
        if one.workload.kind != "decode" and one.link.trace is not None:
            links.setdefault(one.seed, set()).add((one.link.begins_s, one.link.instance))
    if not links:
        return ""
    same = all(courses == next(iter(links.values())) for courses in links.values())
    return " over the same course of the link" if same else ", each over another course of the link"


def devices_of(scenarios: Iterable[Scenario]) -> str:
    """Returns what a picture's title says of its devices: their names, or how many, and which were not measured."""
    measured = {scenario.device.name: scenario.device.is_measured for scenario in scenarios}
    if len(measured) == 1:
        (name,) = measured
        return f" ({name}{'' if measured[name] else ': not measured'})"
    not_measured = len(measured) - sum(measured.values())
    return f" ({len(measured)} devices{f', {not_measured} of them not measured' if not_measured else ''})"


def _check_there(plot: PlotSpec, frame: pd.DataFrame) -> None:
    """Raises ValueError for a figure that no point has, such as one of another kind of workload."""
    lacking = [named for named in plot.columns.values() if column_of(named, frame.columns) is None]
    if lacking:
        raise ValueError(f"no point has {' or '.join(lacking)}")


def _columns(plot: PlotSpec, columns: Collection[str]) -> dict[str, str]:
    return {key: column_of(named, columns) or named for key, named in plot.columns.items()}


def _in_panels(plot: PlotSpec, done: pd.DataFrame, axes: Sequence[str]) -> tuple[pd.DataFrame, str | None]:
    """The rows with a value for all that the plot names, and the column that says which panel a row is in.

    A further axis is one that differs between points of a mark with the same seed. Raises ValueError for too many
    panels.
    """
    named = _columns(plot, done.columns)
    # A part that a row lacks is nothing.
    wanted = [column for key, column in named.items() if column in done.columns and not key.startswith("parts.")]
    rows = done.dropna(subset=wanted)
    if plot.kind in ("cdf", "pareto") or rows.empty:
        return rows, None
    marks = [column for key, column in named.items() if key not in plot.values]
    pooled = {column for key in plot.pool for column in columns_under(key, done.columns)}
    same = list(dict.fromkeys(column for column in (*marks, *pooled, "seed") if column in rows.columns))
    groups = rows.groupby(same, dropna=False)
    further = [key for key in axes if _differs(groups, [c for c in columns_under(key, done.columns) if c not in same])]
    if not further:
        return rows, None
    labels = [", ".join(texts) for texts in zip(*(written_values(rows, key) for key in further), strict=True)]
    if (panels := len(set(labels))) > MOST_PANELS:
        keys = ", ".join(further)
        raise ValueError(
            f"its marks would mix {panels} values of {keys}, more than the {MOST_PANELS} panels that fit;"
            f" name one of them, or `pool: [{keys}]` to draw medians over them"
        )
    return rows.assign(**{_PANEL: labels}), _PANEL


def _settings(axes: Sequence[str], columns: Collection[str]) -> list[str]:
    """The columns of all axes but the seed."""
    found = (column for key in axes for column in columns_under(key, columns))
    return [column for column in dict.fromkeys(found) if column != "seed"]


def _differs(groups: Any, columns: Sequence[str]) -> bool:
    return any((groups[column].nunique(dropna=False) > 1).any() for column in columns)


def _behind(
    plot: PlotSpec, frame: pd.DataFrame, rows: pd.DataFrame, facet: str | None, axes: Sequence[str], chance: str
) -> str:
    """How many points and seeds a mark stands for, what it pools, and the points that are in no mark."""
    named = _columns(plot, frame.columns)
    marks = [column for key, column in named.items() if key not in plot.values] + ([facet] if facet else [])
    parts = []
    if not rows.empty:
        if plot.kind == "pareto":
            marks = _settings(axes, rows.columns)
        groups = [group for _, group in rows.groupby(marks, dropna=False)] if marks else [rows]
        mark = {"line": "mark", "cdf": "line", "heat_map": "cell", "bar": "bar", "stack": "bar", "pareto": "mark"}[
            plot.kind
        ]
        parts.append(f"each {mark}: {_range(map(len, groups), 'point')}")
        if "seed" in rows.columns:
            seeds = [group["seed"].nunique() for group in groups]
            parts[0] += f", {_range(seeds, 'seed')}{chance if max(seeds) > 1 else ''}"
    if plot.pool:
        parts.append(f"pooled: {', '.join(plot.pool)}")
    without = [
        f"{missing:,} without {plot.columns[key]}"
        for key, column in named.items()
        if column in frame.columns
        and not key.startswith("parts.")
        and (missing := int(frame.loc[frame["outcome"] == "done", column].isna().sum()))
    ]
    if unfinished := int((frame["outcome"] != "done").sum()):
        without.append(f"{unfinished:,} not done")
    if without:
        parts.append(f"{len(frame) - len(rows):,} of {len(frame):,} points not drawn: {', '.join(without)}")
    return "; ".join(parts)


def _whose_energy(plot: PlotSpec, frame: pd.DataFrame) -> str:
    """Returns that a plot's energy is that of devices without their cloud's, which may turn an order round."""
    columns = set(_columns(plot, frame.columns).values())
    alone = "total_energy_j" in frame.columns and any(one == "energy_j" or is_energy_part(one) for one in columns)
    return "; energy of devices alone: total_energy_j has the cloud's, too" if alone else ""


def _range(counts: Iterable[int], what: str) -> str:
    """ "5 seeds", "1-8 points"."""
    found = sorted(set(counts))
    return f"{'-'.join(dict.fromkeys(map(str, (found[0], found[-1]))))} {what}{'' if found[-1] == 1 else 's'}"


def _name(plot: PlotSpec, taken: Collection[str]) -> str:
    name = plot.name or "-".join(
        (plot.kind, *(one for key, one in plot.columns.items() if not key.startswith("parts.")))
    )
    return name if name not in taken else f"{name}-{len(taken) + 1}"


def _arguments(plot: PlotSpec, rows: pd.DataFrame) -> dict[str, Any]:
    """The arguments of the plot's function in analysis.plots."""
    found: dict[str, Any] = {}
    columns = rows.columns
    # By which whole name the rate goes that each scenario measures.
    table: dict[Any, Any] = (
        rows[[one for one in ("throughput_tokens_per_s", *RATES) if one in columns]].dropna().to_dict("index")
    )
    rate = full_rate(table, "throughput_tokens_per_s")
    of_devices = "total_energy_j" in columns
    for key, named in plot.columns.items():
        column = column_of(named, columns) or named
        if key.startswith("parts."):
            found.setdefault("parts", []).append(axis_of(named, column, log=False, of_devices=of_devices))
        else:
            figure = rate if column == "throughput_tokens_per_s" else column
            found[key] = (
                column if key == "by" else axis_of(named, column, key in plot.log, of_devices=of_devices, figure=figure)
            )
    if plot.kind == "cdf":
        found["value"] = found.pop("x")
    if plot.kind == "pareto":
        found["lower"] = tuple(bool(less_is_better(plot.columns[key])) for key in ("x", "y"))
    if plot.kind in ("line", "bar"):
        found["band"] = plot.band
    return found


def axis_of(named: str, column: str, log: bool, *, of_devices: bool = False, figure: str | None = None) -> Axis:
    """What stands along an axis; `of_devices`: figures are of devices with a cloud. `figure`: whose label it has, where
    that is another's than the column's."""
    key = key_of(named)
    # A long path reads best as it is written.
    written = key if key.count(".") > 1 else key.replace(".", " ").replace("_", " ")
    figure = figure or column
    is_named = figure in FIGURES or (of_devices and is_energy_part(figure))
    label = label_of(figure, of_devices) if is_named else written
    unit, scale = ("Ki tokens", 1 / 1024) if column in _TOKENS else _UNITS.get(human.of_unit(column), ("", 1.0))
    return Axis(column, f"{label} ({unit})" if unit else label, scale, log)
