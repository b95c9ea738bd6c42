"""A search: which settings to try next is learnt from what was tried, under objectives and constraints."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, product
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from kvferry.analysis.code_version import code_version
from kvferry.analysis.dataset import Dataset
from kvferry.analysis.executors.choice import InProcess
from kvferry.analysis.executors.executor import Executor
from kvferry.analysis.figures import FIGURES
from kvferry.analysis.interval_columns import LEAST, MOST, IntervalsOf
from kvferry.analysis.journal import Row
from kvferry.analysis.point import Point, Work
from kvferry.analysis.search_points import points_of, size_of
from kvferry.analysis.search_space import Choice, Space, space_of
from kvferry.analysis.search_spec import Constraint, SearchSpec, constraint_of
from kvferry.analysis.study_base import (
    StudyBase,
    output_folder,
    read_study,
    settings_of_all,
    under,
)
from kvferry.analysis.study_filter import Filter
from kvferry.analysis.study_text import search_text
from kvferry.analysis.tried import Tried
from kvferry.pipelines.plugins import used
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.faults import complaints_of, input_error, nearest
from kvferry.scenarios.idle import IdlePolicies
from kvferry.scenarios.loader import Check, scenario_hash
from kvferry.scenarios.named_files import portable
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.amount import amount_of
from kvferry.specs.base import BadKey
from kvferry.specs.errors import InputError
from kvferry.specs.node import Node, node_of
from kvferry.specs.scenario import Scenario

Progress = Callable[[int, int], None]
# Points that are looked through for one at which a policy has an effect.
_MOST_CHECKED = 200


@dataclass(frozen=True)
class Search:
    """A search, resolved. `seeds` are the ones that each point is run with; none: the base's own. `remarks`: what its
    figures do not say by themselves: policies of the base that only one of its systems has."""

    name: str
    spec: SearchSpec
    base: StudyBase
    space: Space
    constraints: tuple[Constraint, ...]
    where: Filter
    seeds: tuple[Node, ...]
    output: Path
    # What its file would say that extends nothing, and the overrides of policies, which hold for all systems.
    text: Mapping[str, Any] = field(default_factory=dict)
    settings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def load_search(source: str | Mapping[str, Any], overrides: Sequence[str] = (), check: Check | None = None) -> Search:
    """The search of a bundled name, a path or a mapping; ``a.b=c`` overrides apply to the base.

    Raises InputError with one line per fault: FILE:LINE: key.path: what came and what would do.
    """
    tree, stem = read_study("search", source)
    try:
        spec = SearchSpec.model_validate(tree.plain())
    except ValidationError as error:
        raise input_error(complaints_of(error, SearchSpec), tree) from None
    faults, constraints = [], []
    for n, text in enumerate(spec.constraints):
        try:
            constraints.append(constraint_of(text))
        except ValueError as error:
            faults.append(Complaint(("constraints", n), str(error)))
    amounts = [key for key, values in spec.space.items() if _are_amounts(values)]
    for key, n, metric in [
        *(("objectives", n, objective.metric) for n, objective in enumerate(spec.objectives)),
        *(("constraints", n, constraint.metric) for n, constraint in enumerate(constraints)),
    ]:
        if metric not in FIGURES and metric not in amounts and not re.fullmatch(r"energy_\w+_j", metric):
            faults.append(Complaint((key, n), f"{metric!r:.60} is no metric{nearest(metric, FIGURES)}"))
    unknown = {fault.key for fault in faults}
    for n, objective in enumerate(spec.objectives):
        if ("objectives", n) in unknown:
            continue
        try:
            _ = objective.lower
        except BadKey as error:
            faults.append(Complaint(("objectives", n, error.key), str(error)))
    if faults:
        raise input_error(faults, tree)
    name = spec.name or stem
    base = StudyBase(tree, overrides, list(spec.space), check)
    space = space_of(spec.space, tree, base, with_seeds=spec.seeds is not None)
    _check_heard(space, base)
    seeds = tree.find(("seeds",))
    return Search(
        name=name,
        spec=spec,
        base=base,
        space=space,
        constraints=tuple(constraints),
        where=Filter.of(spec.where, tree),
        seeds=tuple(node_of(seed, seeds.place) for seed in spec.seeds or () if seeds is not None),
        output=output_folder(spec.output, tree, name),
        text=search_text(name, spec, tree, base),
        settings=settings_of_all(overrides),
        remarks=tuple(base.remarks(_systems_in(space, base))),
    )


def _are_amounts(values: Any) -> bool:
    """Returns whether whatever is chosen of these values, or of this range, is an amount: a number, with or without a
    unit."""
    ends = [values.get("from"), values.get("to")] if isinstance(values, Mapping) else list(values)
    return all(amount_of(one) is not None for one in ends)


def _systems_in(space: Space, base: StudyBase) -> list[str]:
    systems = space.get("system")
    return [str(node.value) for node in systems.values] if isinstance(systems, Choice) else base.systems


def _check_heard(space: Space, base: StudyBase) -> None:
    """Raises InputError for a policy that none of the systems has, whichever others are chosen beside it."""
    chosen = {key: part for key, part in space.items() if key == "system" or key.split(".")[0] == "policies"}
    heard = IdlePolicies()
    for nodes in islice(product(*(part.samples for part in chosen.values())), _MOST_CHECKED):
        values = dict(zip(chosen, nodes, strict=True))
        try:
            found = base.fitted(base.with_values(values))
        except InputError:
            return  # there may be points at which it has an effect
        heard.add(base.system_of(values), found.idle, found.heard)
        if not heard.unheard:
            return
    if math.prod(len(part.samples) for part in chosen.values()) <= _MOST_CHECKED:
        heard.check()


def run_search(
    search: Search,
    folder: Path,
    executor: Executor,
    progress: Progress = lambda done, of: None,
    run: Callable[[Scenario], Run] = run_scenario,
    intervals_of: IntervalsOf | None = None,
    allow: Callable[[Sequence[Scenario]], None] = lambda _: None,
) -> tuple[list[Tried], int]:
    """Try as many points as the search says, or all of a space that has no more, and return them in their order, with
    how many scenarios were run now.

    The folder is a ``Dataset``, as a sweep's. A search that was killed begins again and takes what is there: the same
    seed chooses the same points, whatever the executor and its workers, so nothing is run twice. No point comes twice.
    Points are chosen
    `at_once` by `at_once`; a scenario that is not valid, or that a condition leaves out, is not run and counts as a
    point that breaks a constraint. So does one that failed, ran out of memory, or lacks a metric. `allow` raises for
    scenarios that may not run.

    Raises InputError when none of the first ones is valid, KvferryError when the folder cannot be used, MissingExtra.
    """
    made = partial(_tried, search)
    points, most = points_of(search.spec, search.space, search.constraints), points_in(search)
    tried: list[Tried] = []
    n_new = 0
    with Dataset(folder) as data, executor:
        known = _known(data, search)
        try:
            progress(0, most)
            while together := points.next(min(search.spec.at_once, most - len(tried)), made):
                if not any(one.is_valid for one in (*tried, *together)):
                    raise InputError(invalid_under(together[0]))
                allow([scenario for one in together for scenario in one.scenarios.values()])
                for row in _rows(together, known, executor, Work(run, code_version(), used(), intervals_of)):
                    data.add(row)
                    known[row["key"]] = row
                    n_new += 1
                    progress(len(tried) + _finished(together, known), most)
                for one in together:
                    _judge(search, one, known)
                    points.tell(one)
                tried += together
                progress(len(tried), most)
        finally:
            data.compact()
    return tried, n_new


def points_in(search: Search) -> int:
    """Returns how many points are tried, at most: all that the space has, where these are few."""
    size = size_of(search.space)
    return search.spec.points if size is None else min(size, search.spec.points)


def _finished(together: Sequence[Tried], known: Mapping[str, Row]) -> int:
    """Points of these that have run whole: what an interrupted search has kept, in the middle of a round too."""
    return sum(bool(one.scenarios) and one.scenarios.keys() <= known.keys() for one in together)


def _known(data: Dataset, search: Search) -> dict[str, Row]:
    """The rows that are there already, of this version of KVFerry, by key."""
    table = data.compact()
    if table.empty:
        return {}
    table = table[(table["version"] == code_version()) & (table["outcome"] != "failed")]
    metrics = _metrics(search)
    ends = (f"{end}{metric}" for end in (LEAST, MOST) for metric in metrics)
    wanted = [column for column in ("key", "outcome", "why", *metrics, *ends) if column in table]
    rows: list[Row] = table[wanted].to_dict("records")  # type: ignore[assignment]
    return {row["key"]: row for row in rows}


def _metrics(search: Search) -> list[str]:
    named = [objective.metric for objective in search.spec.objectives]
    return list(dict.fromkeys([*named, *(constraint.metric for constraint in search.constraints)]))


def _tried(search: Search, number: int, chosen: Mapping[str, Node]) -> Tried:
    """Returns the point that these choices make: its scenarios, or why it has none."""
    shown = {key: _shown(node) for key, node in chosen.items()}
    found = Tried(number, shown, system=search.base.system_of(chosen))
    try:
        for seed in search.seeds or (None,):
            tree = search.base.with_values({**chosen} | ({} if seed is None else {"seed": seed}))
            point = search.where.kept(tree, search.base.fitted)
            if point is None:
                found.scenarios, found.why = {}, "left out by a condition"
                return found
            found.scenarios[scenario_hash(point.scenario)] = point.scenario
            found.idle, found.heard = point.idle, point.heard
    except InputError as error:
        found.scenarios, found.why, found.is_valid = {}, str(error), False
    without_effect = {".".join(key) for key in found.idle}
    found.settings = {key: value for key, value in shown.items() if key not in without_effect}
    return found


def invalid_under(one: Tried) -> str:
    """Returns what is wrong with a point that is no valid scenario, with the system that it has."""
    return "\n".join(f"{line}{under([one.system])}" for line in (one.why or "").splitlines())


def _shown(node: Node) -> Any:
    """Returns a value as a table has it: what has a name by this, a file the same wherever it lies."""
    value = node.plain()
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return value["name"]
    return portable(value)


def _rows(tried: Sequence[Tried], known: Mapping[str, Row], executor: Executor, work: Work) -> Iterator[Row]:
    missing = {key: one for each in tried for key, one in each.scenarios.items() if key not in known}
    if not missing:
        return
    # Real runs have the machine to themselves.
    where = InProcess() if any(one.backend != "sim" for one in missing.values()) else executor
    with closing(where.rows((Point.of(one, key) for key, one in missing.items()), work)) as rows:
        yield from rows


def _judge(search: Search, one: Tried, known: Mapping[str, Row]) -> None:
    """Fill in the figures of a point, and what keeps it from being a solution."""
    rows = [known[key] for key in one.scenarios]
    if one.why is not None:
        return
    unfinished = next((row for row in rows if row["outcome"] != "done"), None)
    if unfinished is not None:
        one.why = f"{unfinished['outcome'].replace('_', ' ')}: {unfinished['why']}"
        return
    chosen = {key: amount_of(one.settings[key]) for key in _metrics(search) if key in one.settings}
    one.figures = {key: amount.number for key, amount in chosen.items() if amount is not None}
    for metric in (key for key in _metrics(search) if key not in one.settings):
        values = [row[metric] for row in rows if row.get(metric) is not None and row[metric] == row[metric]]
        if len(values) < len(rows):
            one.why = f"it has no {metric}"
            return
        one.figures[metric] = float(median(values))
        least, most = ([row.get(f"{end}{metric}", math.nan) for row in rows] for end in (LEAST, MOST))
        if not any(math.isnan(value) for value in (*least, *most)):
            one.intervals[metric] = median(least), median(most)
    broken = [bound.text for bound in search.constraints if bound.excess(one.figures[bound.metric]) > 0]
    one.why = f"breaks {' and '.join(broken)}" if broken else None
