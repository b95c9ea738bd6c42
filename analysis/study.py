"""A study: one scenario varied over axes and seeds, and the plots of its results."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pydantic import ValidationError

from kvferry.analysis.dimensions import Dimension, dimensions_of
from kvferry.analysis.figures import FIGURES
from kvferry.analysis.settings import column_of, settings_of
from kvferry.analysis.study_filter import Filter
from kvferry.analysis.study_spec import PlotSpec, StudySpec
from kvferry.scenarios.faults import MOST_LINES, complaints_of, input_error, nearest
from kvferry.scenarios.library import BUNDLED, locate
from kvferry.scenarios.loader import Check, checked_scenario
from kvferry.scenarios.resolve import Complaint, extended, resolve, with_override
from kvferry.scenarios.sources import with_value
from kvferry.specs.document import read_document, regular_file
from kvferry.specs.errors import InputError, unknown_name
from kvferry.specs.link import LinkSpec
from kvferry.specs.load import LoadSpec
from kvferry.specs.node import Node
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import link_trace, load_trace


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study, resolved: its points in the order of its axes, the last one varying fastest, seeds fastest of all."""

    name: str
    points: tuple[Scenario, ...]
    # The keys that vary, in order, as the file writes them.
    axes: tuple[str, ...]
    plots: tuple[PlotSpec, ...]
    output: Path


def load_study(source: str, overrides: Sequence[str] = (), check: Check | None = None) -> Study:
    """The study of a bundled name or a path, each point validated; ``a.b=c`` overrides apply to the base.

    Raises InputError with one line per fault: FILE:LINE: key.path: what came and what would do.
    """
    path = _locate(source)
    tree = read_document(path)
    try:
        spec = StudySpec.model_validate(tree.plain())
    except ValidationError as error:
        raise input_error(complaints_of(error, StudySpec), tree) from None
    name = spec.name or path.stem
    output = _output(spec, tree, name)
    dimensions = dimensions_of(spec, tree)
    axes = tuple(key for dimension in dimensions for key in dimension)
    points = tuple(_points(base_of(tree, overrides, axes), dimensions, check, Filter.of(spec.where, tree)))
    _check_plots(spec, tree, points)
    return Study(name=name, points=points, axes=axes, plots=spec.plots, output=output)


def study_names() -> list[str]:
    """The bundled studies, sorted."""
    return sorted(path.stem for path in (BUNDLED / "studies").glob("*.yaml"))


def _locate(source: str) -> Path:
    if source in study_names():
        return BUNDLED / "studies" / f"{source}.yaml"
    problem = regular_file(Path(source))
    if problem is None:
        return Path(source)
    if "/" in source or Path(source).suffix:
        raise InputError(f"{source!r:.200} {problem}{nearest(Path(source).stem, study_names())}")
    raise unknown_name("study", source, study_names())


def _output(spec: StudySpec, tree: Node, name: str) -> Path:
    """The results folder. A study's file may come from another user, so it cannot point out of the current folder."""
    output = Path(spec.output or f"runs/{name}")
    if output.is_absolute() or ".." in output.parts:
        what = f"{spec.output!r:.100} leads out of the current folder; use --output for that"
        raise input_error([Complaint(("output",), what)], tree)
    return output


def base_of(tree: Node, overrides: Sequence[str], axes: Collection[str]) -> Node:
    """The base scenario; the axes may supply keys that it lacks. Raises InputError."""
    node = tree.find(("base",))
    assert node is not None
    if isinstance(node.value, str):
        try:
            path = locate("scenario", node.value, node.place.folder)
        except InputError as error:
            raise InputError(f"{node.place}: base: {error}") from None
        base = extended("scenario", read_document(path), (path,))
    else:
        base = extended("scenario", node)
    base, complaints = resolve(base)
    for override in overrides:
        key = override.partition("=")[0].strip()
        varied = next((axis for axis in axes if f"{key}.".startswith(f"{axis}.") or axis.startswith(f"{key}.")), None)
        if varied is not None:
            raise InputError(f"--set {override:.100}: {varied} is an axis of this study; change it there")
        base, complaints = resolve(with_override(base, override))
    left = [complaint for complaint in complaints if ".".join(map(str, complaint.key)) not in axes]
    if left:
        raise input_error(left, base)
    return base


def _points(base: Node, dimensions: Sequence[Dimension], check: Check | None, where: Filter) -> Iterator[Scenario]:
    """Every combination that the filter keeps, as a valid scenario. Raises InputError with each distinct fault once,
    after the last one, and when none is left."""
    faults: dict[str, None] = {}
    traces: dict[LinkSpec | LoadSpec, str] = {}
    kept = 0
    for settings in product(*(_looked_up(base, dimension) for dimension in dimensions)):
        tree = base
        try:
            for key, node in (setting for together in settings for setting in together.items()):
                tree = with_value(tree, tuple(key.split(".")), node, node.place)
            scenario = where.kept(tree, lambda tree=tree: _scenario(tree, check, traces))  # type: ignore[misc]
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


def _looked_up(base: Node, dimension: Dimension) -> list[dict[str, Node]]:
    """The values along one dimension. Names of devices and models are looked up here, not at every point."""
    found = []
    for nodes in zip(*dimension.values(), strict=True):
        together = dict(zip(dimension, nodes, strict=True))
        for key, node in together.items():
            path = tuple(key.split("."))
            resolved, _ = resolve(base.with_child(path, node))
            together[key] = resolved.find(path) or node
        found.append(together)
    return found


def _scenario(tree: Node, check: Check | None, traces: dict[LinkSpec | LoadSpec, str]) -> Scenario:
    """The tree as a scenario; `traces` remembers what is wrong with a trace, or ""."""

    def all_checks(scenario: Scenario) -> Iterator[Complaint]:
        yield from check(scenario) if check else ()
        for key, replayed in (("link", scenario.link), ("load", scenario.load)):
            if replayed is not None and replayed.trace is not None:
                if replayed not in traces:
                    traces[replayed] = _fault_of(replayed)
                if traces[replayed]:
                    yield Complaint((key, "trace"), traces[replayed])

    return checked_scenario(*resolve(tree), all_checks)


def _fault_of(replayed: LinkSpec | LoadSpec) -> str:
    try:
        link_trace(replayed) if isinstance(replayed, LinkSpec) else load_trace(replayed)
    except InputError as error:
        return str(error)
    return ""


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
    if faults:
        raise input_error(faults, tree)
