"""Policies that a user sets for systems of which some do not have them: these run without, and it is said."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvferry.scenarios.faults import input_error
from kvferry.scenarios.loader import Check, checked_scenario
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError
from kvferry.specs.node import Node
from kvferry.specs.scenario import Scenario

Key = tuple[str, ...]


@dataclass(frozen=True)
class Fitted:
    """A scenario without the policies that its system does not have. ``idle``: these, with what is wrong with each;
    ``heard``: the other ones that were set."""

    scenario: Scenario
    idle: Mapping[Key, str]
    heard: Collection[Key]


def fitted(tree: Node, complaints: Sequence[Complaint], given: Collection[Key], check: Check) -> Fitted:
    """Returns the scenario of a resolved tree, but for what a user gave below the keys `given` of its policies that its
    system does not have. Raises InputError."""
    scenario = checked_scenario(tree, complaints)
    faults = list(check(scenario))
    idle = [fault for fault in faults if (fault.idle or fault.at_key) and _is_below(fault.key, given)]
    if faults and not idle:
        raise input_error(faults, tree)
    why = {tuple(map(str, fault.key)): str(input_error([fault], tree)) for fault in idle}
    kept = tree
    for key in why:
        kept = kept.without(key)
    if idle:
        scenario = checked_scenario(kept, complaints, check)
    heard = [key for at in given if (node := kept.find(at)) is not None for key in _leaves(node, at)]
    return Fitted(scenario, why, heard)


def _is_below(key: Sequence[str | int], given: Collection[Key]) -> bool:
    """Returns whether the key belongs to what was given: below it, or the role that it is of."""
    return any(all(mine == theirs for mine, theirs in zip(key, one, strict=False)) for one in given)


def _leaves(node: Node, at: Key) -> Iterator[Key]:
    if not isinstance(node.value, dict):
        yield at
        return
    for key, below in node.value.items():
        yield from _leaves(below, (*at, key))


@dataclass
class IdlePolicies:
    """Which of the policies that a user set have an effect on which of the systems that run."""

    _systems: set[str] = field(default_factory=set)
    _why: dict[Key, dict[str, dict[str, None]]] = field(default_factory=dict)
    _heard: dict[str, set[Key]] = field(default_factory=dict)

    def add(self, system: str, idle: Mapping[Key, str], heard: Collection[Key]) -> None:
        """Takes one more scenario into account, under a system."""
        self._systems.add(system)
        self._heard.setdefault(system, set()).update(heard)
        for key, why in idle.items():
            self._why.setdefault(key, {}).setdefault(system, {})[why] = None

    def include(self, other: "IdlePolicies") -> None:
        """Takes all the scenarios into account that another one did."""
        for system in other._systems:
            self.add(system, {}, other._heard[system])
        for key, of in other._why.items():
            for system, why in of.items():
                self._why.setdefault(key, {}).setdefault(system, {}).update(why)

    @property
    def unheard(self) -> list[Key]:
        """Returns the policies that have no effect on any scenario so far."""
        return [key for key in self._why if not any(self._is_heard(key, system) for system in self._systems)]

    def check(self) -> None:
        """Raises InputError for a policy that none of the systems has."""
        lines = [line for key in self.unheard for of in self._why[key].values() for line in of]
        if lines:
            raise InputError("\n".join(dict.fromkeys(lines)))

    def remarks(self) -> list[str]:
        """Returns a line for each policy that one of the systems runs without."""
        return [
            f"{'.'.join(key)} has no effect on "
            + ", ".join(f"some points of {system}" if self._is_heard(key, system) else system for system in of)
            for key, of in self._why.items()
        ]

    def _is_heard(self, key: Key, system: str) -> bool:
        return any(one[: len(key)] == key for one in self._heard[system])
