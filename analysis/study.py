"""A study: one scenario varied over axes and seeds, and the plots of its results."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvferry.analysis.condition import Condition, ConditionFault, condition_of, keys_in, values_of
from kvferry.analysis.dimensions import Dimension, dimensions_of
from kvferry.analysis.figures import FIGURES, less_is_better
from kvferry.analysis.settings import column_of, settings_of
from kvferry.analysis.study_base import (
    StudyBase,
    bundled_names,
    output_folder,
    read_study,
    settings_of_all,
    under,
)
from kvferry.analysis.study_filter import Filter
from kvferry.analysis.study_spec import PlotSpec, StudySpec
from kvferry.analysis.study_text import study_text
from kvferry.analysis.variants import VARIANT, Variants, keys_set, variants_in
from kvferry.scenarios.faults import MOST_LINES, complaints_of, input_error, nearest
from kvferry.scenarios.idle import IdlePolicies
from kvferry.scenarios.loader import Check, scenario_hash
from kvferry.scenarios.resolve import Complaint
from kvferry.specs import human
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
    # Of each point the label of its variant; none: the study has no variants.
    labels: tuple[str, ...] = ()
    plots: tuple[PlotSpec, ...]
    output: Path
    # What its file would say that extends nothing, and the overrides of policies, which hold for all systems.
    text: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    # Which policies that it varies, or that overrides set, have no effect on which systems.
    idle: IdlePolicies = field(default_factory=IdlePolicies)
    # Lines to print below the figures: those, and which policies of the base only one of its systems has.
    remarks: tuple[str, ...] = ()


def load_study(
    source: str | Mapping[str, Any], overrides: Sequence[str] = (), check: Check | None = None, *, is_whole: bool = True
) -> Study:
    """The study of a bundled name, a path or a mapping, each point validated; ``a.b=c`` overrides apply to the base. A
    policy that some systems do not have has no effect on these, which run once for all of its values.

    `is_whole`: its systems are all that run, so that a policy which none of them has is refused. Raises InputError with
    one line per fault: FILE:LINE: key.path: what came and what would do.
    """
    tree, stem = read_study("study", source)
    try:
        spec = StudySpec.model_validate(tree.plain())
    except ValidationError as error:
        raise input_error(complaints_of(error, StudySpec), tree) from None
    name = spec.name or stem
    output = output_folder(spec.output, tree, name)
    variants = variants_in(tree)
    dimensions = dimensions_of(spec, tree, keys_set(variants))
    axes = tuple(key for dimension in dimensions for key in dimension)
    base = StudyBase(tree, overrides, (*axes, *keys_set(variants)), check)
    idle = IdlePolicies()
    where = Filter.of(spec.where, tree)
    _check_labels(where, variants, tree)
    found = list(_points(base, variants, dimensions, where, idle))
    if is_whole:
        idle.check()
    points = tuple(point for _, point in found)
    labels = tuple(label for label, _ in found) if variants else ()
    _check_apart(points, labels, tree)
    _check_plots(spec, tree, points, labels)
    of_base = [*base.idle_settings(points), *base.remarks({point.system for point in points})]
    remarks = (*(idle.remarks() if is_whole else ()), *of_base)
    return Study(
        name=name,
        points=points,
        axes=(VARIANT, *axes) if variants else axes,
        labels=labels,
        text=study_text(name, spec, tree, base, variants),
        settings=settings_of_all(overrides),
        plots=spec.plots,
        output=output,
        idle=idle,
        remarks=remarks,
    )


def study_names() -> list[str]:
    """The bundled studies, sorted."""
    return bundled_names("study")


def _points(
    base: StudyBase, variants: Variants, dimensions: Sequence[Dimension], where: Filter, idle: IdlePolicies
) -> Iterator[tuple[str, Scenario]]:
    """Every combination that the filter keeps, as a valid scenario with the label of its variant ("": there are none);
    `idle` learns what has no effect. Raises InputError with each distinct fault once and the systems that have it,
    after the last one, and when none is left."""
    faults: dict[str, dict[str, None]] = {}
    systems: set[str] = set()
    kept = 0
    known: set[tuple[str, str]] = set()
    named = [(label, base.looked_up(values)) for label, values in variants.items()] or [("", {})]
    varied = (_looked_up(base, dimension) for dimension in dimensions)
    places = [{key: node for one in together for key, node in one.items()} for together in product(*varied)]
    for (label, values), settings in product(named, places):
        own = values if "system" in values else ()
        system = base.system_of(values | settings)
        systems.add(system)
        try:
            labelled = {VARIANT: label} if variants else {}
            found = where.kept(base.with_values(values | settings), partial(base.fitted, own=own), labelled)
            if found is not None:
                kept += 1
                idle.add(system, found.idle, found.heard)
                if not (found.idle and _is_known(found.scenario, label, known)):
                    yield label, found.scenario
        except InputError as error:
            for line in str(error).splitlines():
                faults.setdefault(line, {})[system] = None
        if len(faults) > MOST_LINES:
            break
    if faults:
        raise InputError("\n".join(line + ("" if of.keys() == systems else under(of)) for line, of in faults.items()))
    if not kept:
        raise where.nothing_left()


def _is_known(scenario: Scenario, label: str, known: set[tuple[str, str]]) -> bool:
    """Returns whether the scenario was there before: a value without effect makes no other one."""
    key = label, scenario_hash(scenario)
    known_before = key in known
    known.add(key)
    return known_before


def _looked_up(base: StudyBase, dimension: Dimension) -> list[dict[str, Node]]:
    """The values along one dimension. Names of devices and models are looked up here, not at every point."""
    return [base.looked_up(dict(zip(dimension, nodes, strict=True))) for nodes in zip(*dimension.values(), strict=True)]


def _check_apart(points: Sequence[Scenario], labels: Sequence[str], tree: Node) -> None:
    """Raises InputError for variants that make the same point."""
    known: dict[str, str] = {}
    for point, label in zip(points, labels, strict=False):
        other = known.setdefault(scenario_hash(point), label)
        if other != label:
            what = f"is the same scenario as {other}; let it set something else, or leave it out"
            raise input_error([Complaint(("variants", label), what, at_key=True)], tree)


def _faults_of(where: Sequence[str], known: Sequence[str], labels: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yields what is wrong with conditions of a plot, by their number."""
    for k, text in enumerate(where):
        try:
            condition = condition_of(text)
        except ConditionFault as fault:
            yield k, f"{text!r:.100}: {fault}"
            continue
        for key in (one for one in keys_in(condition) if column_of(one, known) is None):
            yield k, f"{key!r:.60} is neither a setting nor a metric{nearest(key, known)}"
        yield from ((k, what) for what in _no_labels(condition, labels))


def _no_labels(condition: Condition, labels: Collection[str]) -> Iterator[str]:
    for one in values_of(condition, VARIANT) if labels else ():
        if one not in labels:
            yield f"no variant is called {str(one)!r:.60}{nearest(str(one), labels)}"


def _check_labels(where: Filter, labels: Collection[str], tree: Node) -> None:
    """Raises InputError for conditions that name other variants."""
    faults = [
        Complaint(("where", n), what)
        for n, condition in enumerate(where.conditions)
        for what in _no_labels(condition, labels)
    ]
    if faults:
        raise input_error(faults, tree)


def _check_plots(spec: StudySpec, tree: Node, points: Sequence[Scenario], labels: Sequence[str]) -> None:
    """Raises InputError if a plot names a setting or metric that the results will not have, before anything runs."""
    if not spec.plots:
        return
    own = {VARIANT} if labels else set()
    known = sorted({column for point in points for column in settings_of(point)} | set(FIGURES) | own)
    faults = [
        Complaint(("plots", n, key), f"{column!r:.60} is neither a setting nor a metric{nearest(column, known)}")
        for n, plot in enumerate(spec.plots)
        for key, column in (*plot.columns.items(), *(("pool", key) for key in plot.pool))
        if column_of(column, known) is None and not re.fullmatch(r"energy_\w+_j", column)
    ]
    for n, plot in enumerate(spec.plots):
        faults += [Complaint(("plots", n, "where", k), what) for k, what in _faults_of(plot.where, known, set(labels))]
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
