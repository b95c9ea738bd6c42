"""Inputs of a modelled machine that decodes from KV on storage: selections, keys, and clusters of them."""

from collections.abc import Callable
from pathlib import Path

from kvferry.backends.needs import KvOnStorage
from kvferry.backends.sim.machine_parts import SimParts
from kvferry.backends.sim.op_answers import OpAnswers
from kvferry.backends.world import Inputs
from kvferry.machine.answers import Selection
from kvferry.machine.ops import Selecting
from kvferry.policies.decode.key_index import KEY_INDEXES, keeps_keys
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.clustered_keys import ClusteredKeys
from kvferry.traces.critical_tokens import CriticalTokens, RecordedSelections
from kvferry.traces.drawn_clusters import DrawnClusters
from kvferry.traces.growing_tokens import GrowingTokens
from kvferry.traces.indexed_keys import DrawnKeys, IndexedKeys, NoKeys
from kvferry.traces.key_process import KeyProcess
from kvferry.traces.key_recording import KeyRecording
from kvferry.traces.selections import SelectionStream

# Keys and queries of a run, in numbers of four bytes: drawing them takes some five times as much memory.
_MOST_KEY_NUMBERS = 2**29


def with_kv_on_storage(scenario: Scenario, need: KvOnStorage, inputs: Inputs) -> SimParts:
    """Returns the parts of a machine with this need. Raises InputError for recordings that do not fit."""
    mapped, keys = need.sizes.staying.mapped_bytes, generated_keys(scenario, need, inputs)
    entries = keys if isinstance(keys, IndexedKeys) else None
    return SimParts(
        device=scenario.device,
        answers=OpAnswers(
            entries or selections(scenario, need, inputs),
            DrawnClusters(keys) if isinstance(keys, ClusteredKeys) else inputs.clusters,
            None if entries is None else entries.attended,
        ),
        keys=keys,
        mapped=None if mapped is None else (need.sizes.layout.file_bytes, mapped),
    )


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
