"""Finds what would fit where a batch does not: the part of a message that says what to change."""

from collections.abc import Callable, Mapping
from typing import Any

from kvferry.pipelines.decoding.budget import left_bytes
from kvferry.policies.decode.roles import Roles
from kvferry.policies.engine_memory import passing_tokens
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Prompts in smaller chunks than this launch a layer for few tokens.
_LEAST_CHUNK = 128


def would_fit(scenario: Scenario, roles: Roles, batch: int, fits: Callable[[Scenario], bool]) -> str:
    """Returns the largest smaller batch that `fits`, or else the largest half, quarter ... of a prompt's chunk, or else
    what makes KV smaller."""
    for fewer in range(batch - 1, 0, -1):
        if _does(fits, _changed(scenario, "workload", {"batch": fewer})):
            return f"workload.batch of {fewer}"
    chunk = passing_tokens(scenario) // 2
    while chunk >= _LEAST_CHUNK:
        if _does(fits, _changed(scenario, "budget", {"prefill_chunk": chunk})):
            return f"budget.prefill_chunk of {chunk:,}"
        chunk //= 2
    # Before any KV there is too little, or KV lies there already.
    elsewhere = left_bytes(scenario, roles) > 0 and roles.placement.away != "storage"
    kinds = "a shorter context", "fewer bits of weights or KV", *(["KV on storage"] if elsewhere else [])
    return f"{', '.join(kinds[:-1])}{',' if len(kinds) > 2 else ''} or {kinds[-1]}"


def _changed(scenario: Scenario, part: str, values: Mapping[str, Any]) -> Scenario:
    return scenario.model_copy(update={part: getattr(scenario, part).model_copy(update=dict(values))})


def _does(fits: Callable[[Scenario], bool], scenario: Scenario) -> bool:
    try:
        return fits(scenario)
    except InputError:
        return False
