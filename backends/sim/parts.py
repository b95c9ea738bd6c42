"""Modelled machines, by the sort of need."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kvferry.backends.needs import (
    ContextsInCloud,
    KvInPages,
    KvOfTurns,
    KvOfTurnsInCloud,
    KvOnStorage,
    Need,
    NoKv,
    Prompts,
)
from kvferry.backends.sim.machine_parts import SimParts
from kvferry.backends.world import Inputs
from kvferry.specs.device import DeviceSpec
from kvferry.specs.scenario import Scenario
from kvferry.traces.chunks import ChunkTrace, generate_chunks
from kvferry.traces.requests import context_requests
from kvferry.traces.stored import StoredContext


def parts_for(scenario: Scenario, need: Need, inputs: Inputs) -> SimParts:
    """Makes what the scenario's device needs. Raises InputError."""
    parts = _MAKERS[type(need)](scenario, need, inputs)
    return parts if need.runtime is None else replace(parts, device=need.runtime.laid_over(parts.device))


def _plain(scenario: Scenario, need: Need, inputs: Inputs) -> SimParts:
    return SimParts(device=scenario.device)


def _with_contexts(scenario: Scenario, need: ContextsInCloud, inputs: Inputs) -> SimParts:
    given = inputs.stored
    stored = ModelledContexts(scenario, need.codec).stored if given is None else given.__getitem__
    return SimParts(device=_decoding_at_rate(scenario, need.codec), stored=stored)


def _decoding_at_rate(scenario: Scenario, codec: str) -> DeviceSpec:
    device = scenario.device
    return device.model_copy(update={"decompressor": device.decompressor.of(codec)})


def _with_turns_in_cloud(scenario: Scenario, need: KvOfTurnsInCloud, inputs: Inputs) -> SimParts:
    model, content, turns = scenario.model, scenario.session.workload.content, need.turns

    def stored(number: int) -> StoredContext:
        turn = turns.numbered[number]
        chunks = generate_chunks(
            content,
            turn.prompt,
            model.layers,
            model.kv_heads,
            scenario.seed,
            sequence=turn.source,
            chunk_tokens=turns.block,
        )
        return StoredContext.modelled(chunks, need.codec, model.head_dim)

    given = stored if inputs.stored is None else inputs.stored.__getitem__
    return SimParts(device=_decoding_at_rate(scenario, need.codec), stored=given)


def _with_kv_on_storage(scenario: Scenario, need: KvOnStorage, inputs: Inputs) -> SimParts:
    # Keys and clusters are imported for a run that decodes.
    from kvferry.backends.sim.kv_on_storage import with_kv_on_storage

    return with_kv_on_storage(scenario, need, inputs)


# How a machine is made for each sort of need.
_MAKERS: dict[type[Need], Callable[[Scenario, Any, Inputs], SimParts]] = {
    NoKv: _plain,
    Prompts: _plain,
    KvInPages: _plain,
    KvOfTurns: _plain,
    KvOfTurnsInCloud: _with_turns_in_cloud,
    ContextsInCloud: _with_contexts,
    KvOnStorage: _with_kv_on_storage,
}


class ModelledContexts:
    """Returns what a scenario's contexts would weigh in the cloud, by the model of a codec. `tokens`: of each, in place
    of those that its workload has."""

    def __init__(self, scenario: Scenario, codec: str, tokens: Sequence[int] | None = None) -> None:
        self._scenario, self._codec = scenario, codec
        self._tokens = tokens or context_requests(scenario.context_reuse.workload, scenario.seed).contexts

    def stored(self, sequence: int) -> StoredContext:
        """Returns the context of this number. It is made on each call, so that thousands need not be in memory; a
        recorded trace stands for every context."""
        workload, model = self._scenario.context_reuse.workload, self._scenario.model
        chunks = self._recorded or generate_chunks(
            workload.content,
            self._tokens[sequence],
            model.layers,
            model.kv_heads,
            self._scenario.seed,
            sequence=sequence,
            chunk_tokens=workload.chunk_tokens,
        )
        return StoredContext.modelled(chunks, self._codec, model.head_dim)

    @cached_property
    def _recorded(self) -> ChunkTrace | None:
        path = self._scenario.context_reuse.workload.chunks
        return None if path is None else ChunkTrace.load(Path(path))
