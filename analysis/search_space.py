"""What a search may choose: for each key one of some values, or a number within a range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from kvferry.analysis.study_base import StudyBase
from kvferry.analysis.study_spec import Axes
from kvferry.scenarios.faults import input_error
from kvferry.scenarios.number_range import NumberRange, RangeFault
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.amount import amount_of
from kvferry.specs.node import Node, node_of

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass(frozen=True)
class Choice:
    """Values to choose from; `ordered`: numbers that rise; neighbours are alike."""

    values: tuple[Node, ...]
    ordered: bool

    @property
    def samples(self) -> tuple[Node, ...]:
        """Returns its values."""
        return self.values

    @property
    def size(self) -> int:
        """Returns how many there are."""
        return len(self.values)

    def every(self) -> tuple[Node, ...]:
        """Returns all its values."""
        return self.values

    def shares(self) -> Sequence[float]:
        """Returns what a trial has for each of them."""
        return range(len(self.values))

    def drawn(self, chance: Random) -> float:
        """Returns one of these at random."""
        return chance.randrange(len(self.values))

    def chosen(self, key: str, trial: Trial) -> Node:
        if self.ordered:
            return self.values[trial.suggest_int(key, 0, len(self.values) - 1)]
        return self.values[trial.suggest_categorical(key, range(len(self.values)))]


@dataclass(frozen=True)
class Within:
    """Any number of a range, asked for as a share of it, in which logarithmic ranges are even."""

    limits: NumberRange
    node: Node

    @property
    def samples(self) -> tuple[Node, ...]:
        """Returns its ends."""
        return tuple(node_of(self.limits.at(share), self.node.place) for share in (0.0, 1.0))

    @property
    def size(self) -> int | None:
        """Returns how many numbers there are, if they are whole ones."""
        return self.limits.size

    def every(self) -> tuple[Node, ...]:
        """Returns all of them, if they are whole ones."""
        return tuple(node_of(self.limits.at(share), self.node.place) for share in self.shares())

    def shares(self) -> Sequence[float]:
        """Returns the share at which each of them lies."""
        return self.limits.shares()

    def drawn(self, chance: Random) -> float:
        """Returns a share at random."""
        return chance.random()

    def chosen(self, key: str, trial: Trial) -> Node:
        return node_of(self.limits.at(trial.suggest_float(key, 0.0, 1.0)), self.node.place)


Space = dict[str, Choice | Within]


def space_of(axes: Axes, tree: Node, base: StudyBase, *, with_seeds: bool) -> Space:
    """What stands under "space" of a search's file, by key. Names of devices and models are looked up. `with_seeds`:
    each point runs with seeds of the search. Raises InputError, also for a key that sets what another one chooses."""
    found: Space = {}
    faults = []
    seen = ["seed"] if with_seeds else []
    for key in axes:
        earlier = next((other for other in seen if f"{other}.".startswith(f"{key}.")), None)
        if earlier is not None:
            by = "seeds sets" if earlier == "seed" and with_seeds else f"{earlier} chooses"
            faults.append(Complaint(("space", key), f"sets what {by}; keep one of them", at_key=True))
        seen.append(key)
        node = tree.find(("space", key))
        assert node is not None
        if isinstance(node.value, list):
            found[key] = _choice(key, node.value, base)
            continue
        try:
            limits = NumberRange.of(node)
            if limits.step is None and limits.points is None:
                found[key] = Within(limits, node)
            else:
                found[key] = _choice(key, [node_of(value, node.place) for value in limits.values()], base)
        except RangeFault as fault:
            faults += [Complaint(("space", key, *one.key), one.what, one.at_key) for one in fault.complaints]
    if faults:
        raise input_error(faults, tree)
    return found


def _choice(key: str, nodes: list[Node], base: StudyBase) -> Choice:
    amounts = [amount_of(node.value) for node in nodes]
    numbers = [amount.number for amount in amounts if amount is not None]
    ordered = len(numbers) == len(nodes) and numbers == sorted(set(numbers))
    return Choice(tuple(base.looked_up({key: node})[key] for node in nodes), ordered)
