"""What studies and searches vary: a base scenario in a file of theirs, and how its points are made and checked."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry.pipelines.idle_settings import idle_settings_of_points
from kvferry.scenarios.faults import input_error, nearest
from kvferry.scenarios.idle import Fitted, fitted
from kvferry.scenarios.library import BUNDLED, locate
from kvferry.scenarios.library import names as names_of
from kvferry.scenarios.loader import Check, checked_scenario
from kvferry.scenarios.resolve import (
    Complaint,
    check_systems_of,
    extended,
    keys_in,
    overridden,
    policies_left_out,
    resolve,
)
from kvferry.scenarios.sources import with_value
from kvferry.specs.document import read_document, regular_file
from kvferry.specs.errors import InputError, unknown_name
from kvferry.specs.link import LinkSpec, LoadSpec
from kvferry.specs.node import Node, Place, node_of
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import drawn_link, link_trace, load_trace

_FOLDERS = {"study": "studies", "search": "searches"}


def bundled_names(kind: str) -> list[str]:
    """The bundled studies or searches (`kind`: study, search), sorted."""
    return sorted(path.stem for path in (BUNDLED / _FOLDERS[kind]).glob("*.yaml"))


def located(kind: str, source: str) -> Path:
    """The file of a bundled study or search, or the one at a path. Raises InputError."""
    names = bundled_names(kind)
    if source in names:
        return BUNDLED / _FOLDERS[kind] / f"{source}.yaml"
    problem = regular_file(Path(source))
    if problem is None:
        return Path(source)
    if source in names_of("scenario"):
        base = f"a {kind}'s file names it as `base: {source}`"
        raise InputError(f"{source!r} is a scenario: kvferry run {source}; {base}")
    if "/" in source or Path(source).suffix:
        raise InputError(f"{source!r:.200} {problem}{nearest(Path(source).stem, names)}")
    raise unknown_name(kind, source, names)


def read_study(kind: str, source: str | Mapping[str, Any]) -> tuple[Node, str]:
    """Returns what a study or a search says (`kind`), and how it is called where it does not say so. `source`: a
    bundled name, a path, or what its file would hold. Raises InputError."""
    if isinstance(source, Mapping):
        tree, path = node_of(dict(source), Place("(mapping)", None, Path.cwd())), Path(f"{kind}.yaml")
    else:
        path = located(kind, source)
        tree = read_document(path)
    check_kind(kind, tree, path)
    return tree, path.stem


def check_kind(kind: str, tree: Node, path: Path) -> None:
    """Raises InputError for a file of another kind: a scenario, or the one of studies and searches that was not
    asked for."""
    if tree.child("base") is None and tree.child("workload") is not None:
        raise InputError(f"{tree.place}: this is a scenario: kvferry run {path}; a {kind} names it as `base: {path}`")
    if kind == "search" and tree.child("space") is None and any(map(tree.child, ("axes", "variants", "plots"))):
        raise InputError(f"{tree.place}: this is a study: kvferry sweep {path}; a search has a `space`")
    if kind == "study" and tree.child("space") is not None:
        raise InputError(f"{tree.place}: this is a search: kvferry search {path}; a study has `axes`")


def output_folder(named: str | None, tree: Node, name: str) -> Path:
    """The results folder. The file may come from another user, so it cannot point out of the current folder."""
    output = Path(named or f"runs/{name}")
    if output.is_absolute() or ".." in output.parts:
        what = f"{named!r:.100} leads out of the current folder; use --output for that"
        raise input_error([Complaint(("output",), what)], tree)
    return output


def settings_of_all(overrides: Sequence[str]) -> tuple[str, ...]:
    """Returns the overrides of policies, which hold for all systems, whatever the base's own."""
    return tuple(one for one in overrides if one.partition("=")[0].strip().split(".")[0] == "policies")


def under(systems: Collection[str]) -> str:
    """Returns what stands behind a fault that a point has under these systems."""
    return f" (under {', '.join(systems)})"


class StudyBase:
    """A base scenario, with `check` on all that is made of it."""

    def __init__(self, tree: Node, overrides: Sequence[str], axes: Collection[str], check: Check | None) -> None:
        """The scenario under "base" of a file, after `overrides`; the axes may supply keys that it lacks. Raises
        InputError."""
        self._check = check
        # What is wrong with a trace, or "": points share traces.
        self._traces: dict[LinkSpec | LoadSpec, str] = {}
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
        self._source, self._given = base, [*keys_in(overrides), *(tuple(axis.split(".")) for axis in axes)]
        for override in overrides:
            key = override.partition("=")[0].strip()
            varied = next(
                (axis for axis in axes if f"{key}.".startswith(f"{axis}.") or axis.startswith(f"{key}.")), None
            )
            if varied is not None:
                raise InputError(f"--set {override:.100}: {varied} is an axis of this study; change it there")
        self._base, complaints = overridden(base, overrides)
        left = [complaint for complaint in complaints if ".".join(map(str, complaint.key)) not in axes]
        if left:
            raise input_error(left, self._base)
        # The same for points of another system than the base's own, whose policies are not theirs.
        self._of_others = self._base
        if "system" in axes and base.child("policies"):
            self._of_others, _ = overridden(base.without(("policies",)), overrides)

    @property
    def resolved(self) -> Node:
        """Returns the scenario after overrides, names replaced by what they name."""
        return self._base

    @property
    def systems(self) -> list[str]:
        """The system that the base names, after overrides, if it names one."""
        system = self._base.child("system")
        return [] if system is None else [str(system.value)]

    def idle_settings(self, points: Iterable[Scenario]) -> list[str]:
        """Returns a line for each setting or axis beside policies that has no effect on all points of a system."""
        return idle_settings_of_points(self._given, ((point.system, point) for point in points))

    def remarks(self, systems: Collection[str]) -> list[str]:
        """Returns a line for each policy of the base that one of these systems leaves out. Raises InputError for
        settings that belong to none of them."""
        check_systems_of(self._given, systems)
        return policies_left_out(self._source, systems, self._given)

    def looked_up(self, together: Mapping[str, Node]) -> dict[str, Node]:
        """The values of keys, names of devices and models replaced by what they name. Raises InputError."""
        found = {}
        for key, node in together.items():
            path = tuple(key.split("."))
            resolved, _ = resolve(self._base.with_child(path, node))
            found[key] = resolved.find(path) or node
        return found

    def with_values(self, together: Mapping[str, Node]) -> Node:
        """The base with these values, which were looked up. Raises InputError."""
        own, system = self._base.child("system"), together.get("system")
        is_own = own is None or system is None or system.value == own.value
        tree = self._base if is_own else self._of_others
        for key, node in together.items():
            tree = with_value(tree, tuple(key.split(".")), node, node.place)
        return tree

    def system_of(self, together: Mapping[str, Node]) -> str:
        """Returns the system that a point with these values has, as it is written; "" where none is named."""
        system = together.get("system") or self._base.child("system")
        return "" if system is None else str(system.value)

    def scenario(self, tree: Node) -> Scenario:
        """A tree as a valid scenario. Raises InputError."""
        return checked_scenario(*resolve(tree), self._complaints)

    def fitted(self, tree: Node, own: Collection[str] = ()) -> Fitted:
        """A tree as a valid scenario, but for policies of axes and overrides that its system does not have. What stands
        under the keys `own` was said for this system. Raises InputError."""
        said = {tuple(key.split(".")) for key in own}
        given = [key for key in self._given if key[0] == "policies" and key not in said]
        # Without a system of its own, the base says its policies for all.
        given += [("policies",)] if self._source.child("system") is None else []
        return fitted(*resolve(tree), given, self._complaints)

    def _complaints(self, scenario: Scenario) -> Iterator[Complaint]:
        yield from self._check(scenario) if self._check else ()
        for key, replayed in (("link", scenario.link), ("load", scenario.load)):
            if replayed is not None and replayed.trace is not None:
                if replayed not in self._traces:
                    self._traces[replayed] = _fault_of(replayed)
                if self._traces[replayed]:
                    yield Complaint((key, "trace"), self._traces[replayed])


def _fault_of(replayed: LinkSpec | LoadSpec) -> str:
    try:
        link_trace(drawn_link(replayed, 0)) if isinstance(replayed, LinkSpec) else load_trace(replayed)
    except InputError as error:
        return str(error)
    return ""
