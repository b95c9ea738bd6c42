"""Which points of a study stay: those for which all of its conditions hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.analysis.condition import Condition, ConditionFault, condition_of
from kvferry.analysis.variants import VARIANT
from kvferry.scenarios.faults import input_error, nearest
from kvferry.scenarios.idle import Fitted
from kvferry.scenarios.loader import dump_scenario
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError
from kvferry.specs.node import Node


@dataclass(frozen=True)
class Filter:
    """The conditions under `where` of a study's file."""

    conditions: tuple[Condition, ...]
    tree: Node

    @classmethod
    def of(cls, where: Sequence[str], tree: Node) -> "Filter":
        """Raises InputError with a line for each that is no condition."""
        found, faults = [], []
        for n, text in enumerate(where):
            try:
                found.append(condition_of(text))
            except ConditionFault as fault:
                faults.append(Complaint(("where", n), f"{text!r:.100}: {fault}"))
        if faults:
            raise input_error(faults, tree)
        return cls(tuple(found), tree)

    def kept(
        self, tree: Node, fitted_of: Callable[[Node], Fitted], named: Mapping[str, str] | None = None
    ) -> Fitted | None:
        """The scenario of a resolved tree, None if a condition leaves it out. `named`: what conditions may name besides
        keys of a scenario, as the label of a variant. What is left out need not be a good scenario, if that can be told
        from what is written in it. Policies without effect count as they are written.

        Raises InputError as `fitted_of` does, and for a condition with a key that there is none of.
        """
        if not self.conditions:
            return fitted_of(tree)
        try:
            fitted = fitted_of(tree)
        except InputError:
            if self._leaves_out_as_written(tree.plain() | dict(named or {})):
                return None
            raise
        dumped = dump_scenario(fitted.scenario) | dict(named or {})
        if fitted.idle:
            dumped["policies"] = tree.plain()["policies"]
        return fitted if all(self._holds(n, dumped) for n in range(len(self.conditions))) else None

    def nothing_left(self) -> InputError:
        return input_error([Complaint(("where",), "leaves out every point", at_key=True)], self.tree)

    def _holds(self, n: int, dumped: dict[str, Any]) -> bool:
        try:
            return self.conditions[n].holds(lambda key: _value_of(key, dumped))
        except ConditionFault as fault:
            raise input_error([Complaint(("where", n), str(fault))], self.tree) from None
        except LookupError as fault:
            key = str(fault.args[0])
            what = f"a scenario has no key {key!r:.60}{nearest(key, _keys_of(dumped))}"
            if key == VARIANT:
                what = "the study has no variants, whose labels this would name"
            raise input_error([Complaint(("where", n), what)], self.tree) from None

    def _leaves_out_as_written(self, written: Mapping[str, Any]) -> bool:
        for condition in self.conditions:
            try:
                if not condition.holds(lambda key: _value_of(key, written)):
                    return True
            except (ConditionFault, LookupError):
                continue
        return False


def _value_of(key: str, scenario: Any) -> Any:
    """The value at a key; of what has a name, the name. Raises LookupError for a key that there is none of."""
    value = scenario
    for part in key.split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or part not in value:
            raise LookupError(key)
        value = value[part]
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return value["name"]
    if isinstance(value, dict | list):
        raise ConditionFault(f"{key} is a {'mapping' if isinstance(value, dict) else 'list'}; name a key in it")
    return value


def _keys_of(scenario: Any, above: str = "") -> list[str]:
    if not isinstance(scenario, dict):
        return [above[:-1]]
    return [name for key, below in scenario.items() for name in _keys_of(below, f"{above}{key}.")]
