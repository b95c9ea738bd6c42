"""What each sort of need makes of a modelled machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kvferry.backends.needs import ContextsInCloud, KvInPages, KvOnStorage, Need, NoKv, Prompts
from kvferry.backends.world import Inputs
from kvferry.machine.answers import Selection
from kvferry.machine.ops import DecodeAttention, Selecting
from kvferry.policies.decode.key_index import KEY_INDEXES, keeps_keys
from kvferry.policies.decode.tending import Ahead
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.chunks import ChunkTrace, generate_chunks
from kvferry.traces.cluster_answers import Clusters
from kvferry.traces.clustered_keys import ClusteredKeys
from kvferry.traces.critical_tokens import CriticalTokens, RecordedSelections
from kvferry.traces.growing_tokens import GrowingTokens
from kvferry.traces.indexed_keys import DrawnKeys, IndexedKeys, NoKeys
from kvferry.traces.key_process import KeyProcess
from kvferry.traces.key_recording import KeyRecording
from kvferry.traces.requests import context_requests
from kvferry.traces.selections import SelectionStream
from kvferry.traces.stored import StoredContext

# Keys and queries of a run, in numbers of four bytes: drawing them takes some five times as much memory.
_MOST_KEY_NUMBERS = 2**29


def _no_contexts(sequence: int) -> StoredContext:
    raise KvferryError("this workload has no contexts in a cloud")


@dataclass(frozen=True, kw_only=True)
class SimParts:
    """What a SimMachine is made with: its device as it is under this need, and what answers its ops that choose; and
    the contexts that lie in the cloud for it."""

    device: DeviceSpec
    selections: Callable[[Selecting], Selection] | None = None
    clusters: Clusters | None = None
    keys: Ahead | None = None
    # Told of attention, where an index wants to know what it takes in.
    attended: Callable[[DecodeAttention], None] | None = None
    stored: Callable[[int], StoredContext] = _no_contexts
    # The storage file is mapped into memory: its size, and how much of it may be there.
    mapped: tuple[float, float] | None = None


def parts_for(scenario: Scenario, need: Need, inputs: Inputs) -> SimParts:
    """Makes what the scenario's device needs. Raises InputError."""
    parts = _MAKERS[type(need)](scenario, need, inputs)
    return parts if need.runtime is None else replace(parts, device=need.runtime.laid_over(parts.device))


def _plain(scenario: Scenario, need: Need, inputs: Inputs) -> SimParts:
    return SimParts(device=scenario.device)


def _with_contexts(scenario: Scenario, need: ContextsInCloud, inputs: Inputs) -> SimParts:
    device = scenario.device
    at_rate = device.model_copy(update={"decompressor": device.decompressor.of(need.codec)})
    given = inputs.stored
    stored = ModelledContexts(scenario, need.codec).stored if given is None else given.__getitem__
    return SimParts(device=at_rate, stored=stored)


def _with_kv_on_storage(scenario: Scenario, need: KvOnStorage, inputs: Inputs) -> SimParts:
    mapped, keys = need.sizes.staying.mapped_bytes, generated_keys(scenario, need, inputs)
    entries = keys if isinstance(keys, IndexedKeys) else None
    return SimParts(
        device=scenario.device,
        selections=entries or selections(scenario, need, inputs),
        clusters=keys if isinstance(keys, ClusteredKeys) else inputs.clusters,
        keys=keys,
        attended=None if entries is None else entries.attended,
        mapped=None if mapped is None else (need.sizes.layout.file_bytes, mapped),
    )


# How a machine is made for each sort of need.
_MAKERS: dict[type[Need], Callable[[Scenario, Any, Inputs], SimParts]] = {
    NoKv: _plain,
    Prompts: _plain,
    KvInPages: _plain,
    ContextsInCloud: _with_contexts,
    KvOnStorage: _with_kv_on_storage,
}


class ModelledContexts:
    """What a scenario's contexts would weigh in the cloud, by the model of a codec."""

    def __init__(self, scenario: Scenario, codec: str) -> None:
        self._scenario, self._codec = scenario, codec
        self._tokens = context_requests(scenario.context_reuse.workload, scenario.seed).contexts

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


def selections(scenario: Scenario, need: KvOnStorage, inputs: Inputs) -> Callable[[Selecting], Selection] | None:
    """Answers the Select ops of a run, from `inputs` or the scenario's recording or generated; None where all is read.

    Raises InputError for a recording of another context.
    """
    workload, sizes, given = scenario.decode.workload, need.sizes, inputs.selections
    if sizes.choice.selected is None or (sizes.keys.index is not None and sizes.keys.index.clusters):
        return None
    if given is None and workload.selections is not None:
        given = SelectionStream.load(Path(workload.selections))
    if given is not None:
        if given.groups > sizes.layout.blocks:
            raise InputError(
                f"workload.selections: recorded over {given.groups:,} groups, this run has {sizes.layout.blocks:,}"
            )
        return RecordedSelections(given, sizes.layout.sequences)
    try:
        if sizes.keys.index is not None and sizes.keys.index.for_all_layers:
            return GrowingTokens(
                sequences=sizes.layout.sequences,
                heads=sizes.choice.heads,
                blocks=sizes.layout.blocks,
                block_tokens=sizes.choice.group_tokens,
                reach=workload.reach,
                persistence=workload.retrieval_persistence or workload.persistence,
                lasting=workload.lasting,
                seed=scenario.seed,
            )
        return CriticalTokens(
            layers=sizes.model.layers,
            sequences=sizes.layout.sequences,
            heads=sizes.choice.heads,
            context=workload.context,
            selected=sizes.choice.selected * sizes.choice.group_tokens,
            group_tokens=sizes.choice.group_tokens,
            reach=workload.reach,
            persistence=workload.persistence,
            lasting=workload.lasting,
            seed=scenario.seed,
        )
    except ValueError as error:
        raise InputError(f"workload: {error}") from None


def generated_keys(scenario: Scenario, need: KvOnStorage, inputs: Inputs) -> ClusteredKeys | IndexedKeys | None:
    """Keys of the run's own, where its KV blocks are chosen by what keys say: clusters of them, or an index over their
    arrays. None: they are not, or `inputs` or the scenario's recording have what they said."""
    sizes, workload = need.sizes, scenario.decode.workload
    if sizes.keys.index is None or inputs.clusters is not None:
        return None
    shape = {"layers": sizes.model.layers, "sequences": sizes.layout.sequences}
    length = {"context": workload.context, "output": workload.output}
    indexed = sizes.keys.index.kind in KEY_INDEXES and inputs.selections is None and workload.selections is None
    if not (sizes.keys.index.clusters or indexed):
        return None
    path = workload.recorded_keys
    process = KeyProcess(workload.keys) if path is None else KeyRecording.load(Path(path))
    drawn: DrawnKeys = NoKeys(process) if indexed and not keeps_keys(sizes.keys.index) else process
    rows, tokens = sizes.layout.sequences * sizes.choice.heads, workload.context + workload.output
    if (numbers := 2 * process.kinds(sizes.model.layers) * rows * tokens * drawn.width) > _MOST_KEY_NUMBERS:
        what = f"keys and queries of {rows:,} rows (sequences x KV heads) of {tokens:,} tokens make {numbers:,} numbers"
        raise InputError(f"workload.context: {what}; at most {_MOST_KEY_NUMBERS:,} will do; shorten it, or the batch")
    if sizes.keys.index.clusters:
        most = sizes.layout.blocks
        return ClusteredKeys(process, **shape, **length, heads=sizes.choice.heads, most=most, seed=scenario.seed)
    return IndexedKeys(drawn, sizes.keys.index, **shape, **length, room_blocks=sizes.layout.blocks, seed=scenario.seed)
