"""Quality of selections: figures known of a way of decoding as a system composes it; recall where keys are known."""

import math
from dataclasses import fields, is_dataclass
from typing import Any

from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.systems import ROLES, DecodeSystem
from kvferry.policies.decode.attention_mass import AttentionMass, attention_mass
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.selector import Window
from kvferry.policies.decode.upkeep import Ahead, Recalls
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import PolicySpec, Scenario

# The most that keys were compressed where a selector was measured (studies/attention_mass.py): by narrower ones it
# chooses worse. KVSwap's 8 of the bundled model, whose keys are narrow, stands for its 32 of wide ones.
_MOST_COMPRESSION = {"low-rank-keys": 32.0, "partial-keys": 4.0, "principal-keys": 4.0}
# Steps at which keys are asked: what queries want most takes a look at every key.
_ASKED = 16


def attention_mass_of(
    roles: Roles, attended_share: float, block_tokens: int, compression: float = 1.0
) -> AttentionMass | None:
    """Returns the share of attention mass on that share of the tokens, as measured for this selector; None where it is
    not known, as of a selector of a plugin, or of keys that are compressed further than measured."""
    selector = _name("selector", roles.selector)
    if attended_share < 1 and compression > _MOST_COMPRESSION.get(selector, math.inf):
        return None
    if isinstance(roles.selector, Window) and roles.selector.sink_tokens:
        selector += "+sinks"
    upkeep, per_head = _name("upkeep", roles.upkeep), roles.selector.per_head
    return attention_mass(selector, attended_share, per_head=per_head, upkeep=upkeep, block_tokens=block_tokens)


def attention_mass_in(plan: DecodePlan, attended_share: float) -> AttentionMass | None:
    """Returns the same as a plan is sized."""
    index, width = plan.keys.index, plan.model.key_width
    compression = width / index.rank if index else 1.0
    return attention_mass_of(plan.roles, attended_share, plan.choice.group_tokens, compression)


def _name(role: str, part: object) -> str:
    """Returns the name by which a scenario calls it; empty without one."""
    return next((name for name, maker in ROLES[role].items() if maker is type(part)), "")


# Parameters of a selector that say how many tokens it selects, which a scenario may also name by themselves.
_HOW_MANY = ("selected_tokens", "selected_share", "window_tokens")


def attending_to(scenario: Scenario, system: DecodeSystem, tokens: int) -> Scenario:
    """Returns the scenario with `tokens` selected by its system, which the scenario's policies are part of already;
    unchanged where the system attends to all of them. Whole blocks and the newest tokens may come on top.

    Raises InputError for a selector that cannot be told how many."""
    selector = system.roles.selector
    if not system.roles.selective and not selector.evicts:
        return scenario
    known = {one.name for one in fields(selector)} if is_dataclass(selector) else set[str]()
    if isinstance(selector, Window):
        if tokens <= selector.sink_tokens:
            raise InputError(f"{tokens:,} tokens are no more than its {selector.sink_tokens:,} sink_tokens")
        asked: dict[str, Any] = {"window_tokens": tokens - selector.sink_tokens}
    elif "selected_tokens" in known:
        asked = {"selected_tokens": tokens} | ({"selected_share": None} if "selected_share" in known else {})
    else:
        raise InputError("its selector has no parameter selected_tokens, so it cannot be given a number of tokens")
    values = {role: value for role, value in scenario.policy_values.items() if role not in _HOW_MANY}
    own = values.get("selector", {})
    values["selector"] = {**(own if isinstance(own, dict) else {"name": own}), **asked}
    others = {name: of for name, of in scenario.system_policies.items() if name != scenario.system}
    policies = {role: PolicySpec.model_validate(value) for role, value in values.items()}
    return scenario.model_copy(update={"policies": policies, "system_policies": others})


class SampledRecall:
    """Asks keys at some steps, evenly over ``steps``, how much of what their queries want most was chosen."""

    def __init__(self, plan: DecodePlan, steps: int) -> None:
        self._selector, self._every = plan.roles.selector, max(1, (steps - 1) // _ASKED)
        self._found: list[float] = []

    def at(self, tokens: int, stored_tokens: int, keys: Ahead | None) -> None:
        """Looks whether to ask, once the token of this number has been decoded; the first one comes from prefill."""
        if isinstance(keys, Recalls) and tokens > 1 and (tokens - 1) % self._every == 0:
            found = keys.recall(self._selector.wanted_tokens(stored_tokens))
            if found is not None:
                self._found.append(found[0])

    @property
    def mean(self) -> float | None:
        """Returns the mean over the steps; None: nothing is known of any."""
        return sum(self._found) / len(self._found) if self._found else None
