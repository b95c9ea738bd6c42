"""What a tuning found and what the system does on its own, both carried out: the faster one is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.repeats import Metrics
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.tuned import grouped
from kvferry.pipelines.run import run_whole
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.decode.solutions import Solutions
from kvferry.policies.decode.tuner import Solution
from kvferry.specs import human
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Tokens of each sequence that are decoded, at most.
_TOKENS = 64
_RATE = "throughput_tokens_per_s"


@dataclass(frozen=True)
class Check:
    """Figures of two runs in the modelled world, of the largest batch and context, with the memory that the tuning had:
    with the parameters that it found, and with the system's own. ``kept``: "tuned" or "default". ``why``: why a faster
    default is not kept; empty elsewhere."""

    batch: int
    context: int
    tuned: Metrics
    default: Metrics
    kept: str
    why: str = ""

    def said(self) -> str:
        """For users: which of the two is kept."""
        faster = self.tuned[_RATE] / self.default[_RATE]
        if self.kept == "default":
            return f"kept for this batch and context: the default, {1 / faster - 1:.1%} faster than what was found"
        if self.why:
            return f"the default is {1 / faster - 1:.1%} faster, and is not kept: {self.why}"
        how = "as fast as" if faster < 1.0005 else f"{faster - 1:.1%} faster than"
        return f"kept for this batch and context: what was found, {how} the default"

    def rows(self) -> list[tuple[str, ...]]:
        """What was found and the default: tokens/s, energy of a sequence, bytes read, memory for KV, reuse."""
        keys = (_RATE, "energy_j", "read_bytes", "kv_memory_peak_bytes", "reuse_rate")
        of = {"tuned": self.tuned, "default": self.default}
        return [
            (name, *(human.of_unit(key)(one[key]) if key in one else "-" for key in keys)) for name, one in of.items()
        ]


def checked(scenario: Scenario, found: Solutions) -> tuple[Solutions, Check | None]:
    """The solutions with the default in the place of one that loses to it, and the check. None where one of the two
    cannot be run, as the default with too little memory for a selection, or more sequences than memory holds."""
    limits = found.limits
    solution = found.solved[limits.most_batch, limits.most_context]
    described = _with_the_memory(scenario, found)
    system = DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
    assert isinstance(system.roles.selector, LowRankKeys)
    selector = replace(system.roles.selector, selected_tokens=limits.selected_tokens)
    own = replace(system, roles=replace(system.roles, selector=selector))
    try:
        runs = [run_whole(described, system=one) for one in (grouped(system, solution.grouping), own)]
    except InputError:
        return found, None
    if any(run.outcome != "done" for run in runs):
        return found, None
    tuned, default = (metrics_for(described, run) for run in runs)
    kept, why = "tuned", ""
    if default[_RATE] > tuned[_RATE]:
        if found.default is None:
            why = "its groups are larger, or its keys smaller, than the limits allow"
        else:
            kept, found = "default", _with(found, found.default)
    return found, Check(limits.most_batch, limits.most_context, tuned, default, kept, why)


def _with(found: Solutions, solution: Solution) -> Solutions:
    solved = found.solved | {(solution.batch, solution.context): solution}
    return Solutions(found.limits, solved.values(), found.tier, found.default)


def _with_the_memory(scenario: Scenario, found: Solutions) -> Scenario:
    """The scenario with the largest batch and context and the memory of the tuning."""
    limits, workload, budget = found.limits, scenario.decode.workload, scenario.decode.budget
    tokens = min(workload.output, workload.decoded or _TOKENS, _TOKENS)
    asked = {"batch": limits.most_batch, "context": limits.most_context, "decoded": tokens}
    return scenario.model_copy(
        update={
            "backend": "sim",
            "measure": "decode",
            "workload": workload.model_copy(update=asked),
            "budget": budget.model_copy(update={"kv_bytes": limits.budget_bytes, "kv_share": None}),
        }
    )
