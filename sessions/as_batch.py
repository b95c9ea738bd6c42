"""One turn as decoding knows it: a batch of one prompt."""

from kvferry.specs.budget import DecodeBudget
from kvferry.specs.live import DecodeLive
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import DecodeSpec

# Turns draw what they choose from seeds of their own.
_SEEDS = 1_000_003


def as_batch(scenario: Scenario, system: str, context: int, output: int, *, turn: int = 0) -> Scenario:
    """Returns the scenario of a session with one turn as its workload: a prompt of `context` tokens and its answer,
    decoded by a system of this name."""
    budget = scenario.session.budget
    granted_bytes = budget.memory_bytes or scenario.device.memory.free_bytes
    kept_bytes = budget.kept_memory_bytes or 0.0
    of_turn = DecodeBudget(
        memory_bytes=max(granted_bytes - kept_bytes, 1.0),
        prefill_chunk=budget.prefill_chunk,
        kv_bytes=budget.kv_bytes,
        kv_share=budget.kv_share,
    )
    return scenario.model_copy(
        update={
            "system": system,
            "workload": DecodeSpec(kind="decode", context=context, output=output),
            "policies": {},
            "system_policies": {},
            "coupling": "all_heads",
            "budget": of_turn,
            "live": DecodeLive(),
            "seed": (scenario.seed * _SEEDS + turn) % 2**63,
        }
    )
