"""What decoding with KV on storage needs of a real world: a real model, and a real file that may be paced."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.kv_file import UnitFormat
from kvferry.backends.live.decoding.low_rank import LowRankKeys, low_rank_adapters
from kvferry.backends.live.decoding.runner import OffloadRunner, source
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.model.prompts import Prompts
from kvferry.backends.live.model.scenario_model import model_of
from kvferry.backends.live.storage.direct_storage import Storage
from kvferry.backends.live.storage.paced_storage import PacedStorage
from kvferry.backends.world import DecodeSizes, Inputs, Say
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.arrays import check_writable
from kvferry.traces.selections import SelectionStream
from kvferry.traces.stored import StoredContext

# Systems whose choices are made here from real tensors. The others are told apart by how they choose.
SYSTEMS = ("kvswap", "flexgen")
# Text that the low-rank adapters are made from, at most: keys of so many tokens tell the directions of all.
_SAMPLE_TOKENS = 8192


class DecodingParts:
    """A runner and a storage file, for a LiveMachine; `stack` closes them."""

    def __init__(self, scenario: Scenario, sizes: DecodeSizes | None, say: Say, stack: ExitStack) -> None:
        sizes = checked(scenario, sizes)
        workload, live = scenario.workload, scenario.live
        torch.set_num_threads(live.threads)
        self.model, folder = model_of(scenario)
        text = None if live.text is None else Path(live.text)
        prompts = Prompts(folder, scenario.model.vocabulary, text, scenario.seed)
        units = UnitFormat(
            sizes.layout,
            group_tokens=sizes.group_tokens,
            kv_heads=scenario.model.kv_heads,
            head_dim=scenario.model.head_dim,
            dtype=self.model.dtype,
        )
        self._scenario, self._sizes, self._say = scenario, sizes, say
        self.runner = OffloadRunner(
            self.model,
            [prompts.tokens(n, workload.context, 0)[0] for n in range(workload.batch)],
            units,
            output=workload.output,
            slots=sizes.slots,
            keys=None if sizes.selected is None else _keys(scenario, self.model, prompts, sizes, say),
        )
        _warm_up(self.model)
        self._storage = stack.enter_context(_storage(scenario, sizes, stack))
        if self._storage.note is not None:
            say(self._storage.note)

    def machine_options(self) -> dict[str, Any]:
        return {"storage": self._storage, "source": source}

    def warm_up(self, machine: LiveMachine) -> None:
        """The model was warmed before it was handed to the machine."""

    def stored(self, sequence: int) -> StoredContext:
        raise KvferryError("this workload has no contexts in a cloud")

    def inputs(self) -> Inputs:
        """What was selected, where every step selected as many KV blocks."""
        return Inputs(selections=self._selections())

    def measured(self) -> dict[str, Any]:
        """Answers, memory and storage as they were. Writes the selections where the scenario wants them; "not_recorded"
        says why they could not be written."""
        runner, storage = self.runner, self._storage
        told: dict[str, Any] = {
            "answers": {str(sequence): answer for sequence, answer in enumerate(runner.answers)},
            "kv_metadata_bytes": runner.metadata_bytes,
            "kv_buffer_bytes": runner.buffer_bytes,
            "kv_read_bytes": storage.peak_buffer_bytes,
            "storage_engine": storage.engine,
        }
        if isinstance(storage, PacedStorage):
            told |= {"storage_batches": storage.batches, "storage_batches_late": storage.late}
        if self._scenario.live.record_selections is not None:
            told |= self._record(Path(self._scenario.live.record_selections))
        return told

    def _record(self, path: Path) -> dict[str, str]:
        """Write the selections. A failure does not lose the run: it is said, and returned under its key."""
        selections = self._selections()
        try:
            if selections is None:
                raise InputError(
                    "live.record_selections: no step selected, or later steps more groups than earlier ones; "
                    "select fewer tokens than the context has"
                )
            selections.save(path)
        except (OSError, InputError) as error:
            why = str(error) if isinstance(error, InputError) else f"live.record_selections: {path}: {error.strerror}"
            self._say(f"the selections are not recorded: {why}")
            return {"not_recorded": why}
        return {}

    def _selections(self) -> SelectionStream | None:
        """What was selected, step by step, sequence after sequence: as many sequences find each its own when it is
        replayed. None where there is nothing of one length."""
        layers, chosen = self._sizes.shape.layers, self.runner.chosen
        steps = len(chosen) // layers
        if not steps or len({ids.shape for ids in chosen[: steps * layers]}) != 1:
            return None
        ids = torch.stack(chosen[: steps * layers]).unflatten(0, (steps, layers))  # steps layers sequences heads k
        by_sequence = ids.permute(2, 0, 1, 3, 4).flatten(0, 1).numpy()
        return SelectionStream(np.sort(by_sequence, axis=-1), self._sizes.layout.units)


def checked(scenario: Scenario, sizes: DecodeSizes | None) -> DecodeSizes:
    """The sizes, where a real world can carry them out. Raises InputError where not."""
    if sizes is None or scenario.system not in SYSTEMS:
        raise InputError(f"system: backend torch decodes with {' or '.join(SYSTEMS)}, not yet with {scenario.system}")
    if scenario.load is not None:
        raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
    for policy in ("landmarks", "values_only"):
        if scenario.policy_values.get(policy):
            raise InputError(f"policies.{policy}: backend torch scores compressed keys of all tokens; leave it out")
    if scenario.workload.selections is not None:
        raise InputError("workload.selections: backend torch selects with the model itself; leave selections out")
    if scenario.live.record_selections is not None:
        check_writable(Path(scenario.live.record_selections), "live.record_selections")
    return sizes


def _keys(scenario: Scenario, model: PreTrainedModel, prompts: Prompts, sizes: DecodeSizes, say: Say) -> LowRankKeys:
    """Empty compressed keys; their adapters come from text behind that of the contexts."""
    workload = scenario.workload
    say("making low-rank adapters")
    sample, _ = prompts.tokens(workload.batch, workload.context, 0)
    ids = torch.tensor([sample[:_SAMPLE_TOKENS]], device=model.device)
    return LowRankKeys(
        low_rank_adapters(model, ids, sizes.rank),
        sequences=workload.batch,
        room=sizes.layout.units * sizes.group_tokens,
        group_tokens=sizes.group_tokens,
        by_head=sizes.index is not None and sizes.index.scores == "by_head",
    )


def _storage(scenario: Scenario, sizes: DecodeSizes, stack: ExitStack) -> Storage:
    """The file, which goes with the run."""
    live, like = scenario.live, scenario.device.storage
    try:
        made = tempfile.TemporaryDirectory(prefix="kvferry-kv-", dir=live.kv_folder)
    except OSError as error:
        raise InputError(f"live.kv_folder: {live.kv_folder}: no file can be made there: {error.strerror}") from None
    path = Path(stack.enter_context(made)) / "kv.bin"
    n_bytes = sizes.layout.file_bytes
    if like is None or not live.paced:
        storage: Storage = Storage.create(path, n_bytes, depth=32 if like is None else like.queue_depth)
    else:
        storage = PacedStorage.create(path, n_bytes, depth=like.queue_depth, like=like)
    # It has no name from now on: however this process ends, its room is given back.
    path.unlink()
    path.parent.rmdir()
    return storage


def _warm_up(model: PreTrainedModel) -> None:
    """First times are slow: kernels are chosen. None of it belongs to a run."""
    with torch.no_grad():
        for _ in range(2):
            model(torch.zeros((1, 16), dtype=torch.long, device=model.device), logits_to_keep=1)
