"""A study: one scenario varied over axes and seeds, and the plots of its results."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pydantic import ValidationError

from kvferry.analysis.dimensions import Dimension, dimensions_of
from kvferry.analysis.figures import FIGURES, less_is_better
from kvferry.analysis.settings import column_of, settings_of
from kvferry.analysis.study_base import StudyBase, bundled_names, located, output_folder
from kvferry.analysis.study_filter import Filter
from kvferry.analysis.study_spec import PlotSpec, StudySpec
from kvferry.scenarios.faults import MOST_LINES, complaints_of, input_error, nearest
from kvferry.scenarios.loader import Check
from kvferry.scenarios.resolve import Complaint
from kvferry.specs import human
from kvferry.specs.document import read_document
from kvferry.specs.errors import InputError
from kvferry.specs.node import Node
from kvferry.specs.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study, resolved: its points in the order of its axes, the last one varying fastest, seeds fastest of all."""

    name: str
    points: tuple[Scenario, ...]
    # The keys that vary, in order, as the file writes them.
    axes: tuple[str, ...]
    plots: tuple[PlotSpec, ...]
    output: Path
    # Lines to print below the figures: which policies of the base only one of its systems has.
    remarks: tuple[str, ...] = ()


def load_study(source: str, overrides: Sequence[str] = (), check: Check | None = None) -> Study:
    """The study of a bundled name or a path, each point validated; ``a.b=c`` overrides apply to the base.

    Raises InputError with one line per fault: FILE:LINE: key.path: what came and what would do.
    """
    path = located("study", source)
    tree = read_document(path)
    try:
        spec = StudySpec.model_validate(tree.plain())
    except ValidationError as error:
        raise input_error(complaints_of(error, StudySpec), tree) from None
    name = spec.name or path.stem
    output = output_folder(spec.output, tree, name)
    dimensions = dimensions_of(spec, tree)
    axes = tuple(key for dimension in dimensions for key in dimension)
    base = StudyBase(tree, overrides, axes, check)
    points = tuple(_points(base, dimensions, Filter.of(spec.where, tree)))
    _check_plots(spec, tree, points)
    remarks = tuple(base.remarks({point.system for point in points}))
    return Study(name=name, points=points, axes=axes, plots=spec.plots, output=output, remarks=remarks)


def study_names() -> list[str]:
    """The bundled studies, sorted."""
    return bundled_names("study")


def _points(base: StudyBase, dimensions: Sequence[Dimension], where: Filter) -> Iterator[Scenario]:
    """Every combination that the filter keeps, as a valid scenario. Raises InputError with each distinct fault once,
    after the last one, and when none is left."""
    faults: dict[str, None] = {}
    kept = 0
    for settings in product(*(_looked_up(base, dimension) for dimension in dimensions)):
        try:
            tree = base.with_values({key: node for together in settings for key, node in together.items()})
            scenario = where.kept(tree, base.scenario)
            if scenario is not None:
                kept += 1
                yield scenario
        except InputError as error:
            faults |= dict.fromkeys(str(error).splitlines())
        if len(faults) > MOST_LINES:
            break
    if faults:
        raise InputError("\n".join(faults))
    if not kept:
        raise where.nothing_left()


def _looked_up(base: StudyBase, dimension: Dimension) -> list[dict[str, Node]]:
    """The values along one dimension. Names of devices and models are looked up here, not at every point."""
    return [base.looked_up(dict(zip(dimension, nodes, strict=True))) for nodes in zip(*dimension.values(), strict=True)]


def _check_plots(spec: StudySpec, tree: Node, points: Sequence[Scenario]) -> None:
    """Raises InputError if a plot names a setting or metric that the results will not have, before anything runs."""
    if not spec.plots:
        return
    known = sorted({column for point in points for column in settings_of(point)} | set(FIGURES))
    faults = [
        Complaint(("plots", n, key), f"{column!r:.60} is neither a setting nor a metric{nearest(column, known)}")
        for n, plot in enumerate(spec.plots)
        for key, column in (*plot.columns.items(), *(("pool", key) for key in plot.pool))
        if column_of(column, known) is None and not re.fullmatch(r"energy_\w+_j", column)
    ]
    for n, plot in enumerate(spec.plots):
        for key in ("x", "y") if plot.kind == "pareto" else ():
            if less_is_better(named := plot.columns[key]) is None:
                what = f"{named!r:.60} is no metric of which it is known whether less of it is better, as of ttft_s"
                faults.append(Complaint(("plots", n, key), what))
        units = {human.of_unit(column_of(part, known) or part).__name__ for part in plot.parts or ()}
        if len(units) > 1:
            what = f"are of several units ({', '.join(plot.parts or ())}), whose sum says nothing"
            faults.append(Complaint(("plots", n, "parts"), f"{what}; figures of one unit would do"))
    if faults:
        raise input_error(faults, tree)
