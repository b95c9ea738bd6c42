"""Real parts for decoding with KV on storage: a model, and its KV in a file that may be paced."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from kvferry.backends.live.decoding.build import (
    DecodeRunner,
    check_plan,
    contexts_of,
    decode_runner,
    decode_storage,
    storage_measured,
)
from kvferry.backends.live.decoding.copies import CudaCopies
from kvferry.backends.live.decoding.kept_file import begin, check_kept, kept_log
from kvferry.backends.live.decoding.noted_keys import NotedKeys
from kvferry.backends.live.decoding.paged_layers import PagedLayers
from kvferry.backends.live.decoding.recorded import chosen_in, selections_of
from kvferry.backends.live.decoding.tiers import KvTiers
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.engine.stream import streams_of
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.live.quality.run_quality import RunQuality, quality_of
from kvferry.backends.needs import KvInPages, KvOnStorage
from kvferry.backends.world import Inputs, Say
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.arrays import check_replaced, check_writable
from kvferry.traces.key_recording import KIND as KEYS
from kvferry.traces.selections import KIND as SELECTIONS

# The kind of trace in the file of each key.
_KINDS = {"record_selections": SELECTIONS, "record_keys": KEYS}


class PagedParts(MachineParts):
    """A runner of prompts whose KV is in pages of memory."""

    runner: PagedLayers

    def __init__(self, scenario: Scenario, need: KvInPages, say: Say, stack: ExitStack) -> None:
        if scenario.load is not None:
            raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
        if need.evicts:
            what = f"{scenario.system} gives up KV for good, which backend torch does not do"
            raise InputError(f"system: {what}; backend: sim would")
        check_kept(scenario, None)
        self.model, prompts = warm_model(scenario)
        self._say, self._quality = say, quality_of(scenario, prompts, need.prompts, need.output)
        followed: dict[str, Any] = {}
        if self._quality is not None:
            followed = {"follow": self._quality.follow, "listen": self._quality.listen}
        of_requests = contexts_of(prompts, need.prompts, self._quality)
        self.runner = PagedLayers(self.model, of_requests, output=need.output, pages=need.pages, **followed)

    def warm_up(self, machine: LiveMachine) -> None:
        # Loading the model is no part of the run.
        machine.warm(lambda: None)

    def measured(self) -> dict[str, Any]:
        return _measured(self.runner) | _quality(self._quality, self.model, self.runner, self._say)


class StoredKvParts(MachineParts):
    """A runner and a storage file for a LiveMachine; `stack` closes them."""

    runner: DecodeRunner

    def __init__(self, scenario: Scenario, need: KvOnStorage, say: Say, stack: ExitStack) -> None:
        check(scenario)
        sizes = need.sizes
        check_plan(sizes, scenario.decode.live.processor)
        check_kept(scenario, sizes)
        # Even where all KV is on storage: its placement may move some of it later.
        processor = scenario.decode.live.processor
        copies = CudaCopies(processor) if processor.startswith("cuda") else None
        by_layer = not isinstance(sizes.layout, ClusterLayout)
        self._tiers = KvTiers(sizes.file_bytes, copies, sizes.model.layers, layers=by_layer)
        self._tiers.have_ready(sizes.tiers)
        self.model, prompts = warm_model(scenario)
        self._scenario, self._sizes, self._say = scenario, sizes, say
        self._noted = None if scenario.decode.live.record_keys is None else NotedKeys(sizes.model.layers)
        kept = scenario.decode.live.kv_file
        self._log = None if kept is None else kept_log(Path(kept), stack)
        lengths = [scenario.decode.workload.context] * need.sequences
        self._quality = quality_of(scenario, prompts, lengths, scenario.decode.workload.output)
        self.runner = decode_runner(
            scenario, need, self.model, prompts, self._tiers, self._noted, self._log, self._quality, say
        )
        self._storage = decode_storage(scenario, sizes, stack)
        if self._log is not None:
            begin(self._log, self._storage, sizes, scenario.decode.workload.context, self.model.dtype)
        if self._storage.note is not None:
            say(self._storage.note)

    def machine_options(self) -> dict[str, Any]:
        return {
            "storage": self._storage,
            "source": self._tiers.source,
            "place": self._tiers.place,
            "stream": streams_of(self._scenario.decode.live.processor),
        }

    def warm_up(self, machine: LiveMachine) -> None:
        machine.warm(lambda: None)

    def inputs(self) -> Inputs:
        """Returns the selections, where every step selected equally many KV blocks, and the answers about clusters."""
        return chosen_in(self.runner, self._sizes)

    def measured(self) -> dict[str, Any]:
        """Answers, memory and storage as they were. Writes selections and keys where the scenario wants them;
        "not_recorded" says why they could not be written."""
        found = _measured(self.runner) | storage_measured(self._storage)
        found |= _quality(self._quality, self.model, self.runner, self._say)
        if self._log is not None:
            found["kv_log_bytes"] = self._log.n_bytes
        found["kv_buffer_bytes"] += found.get("mapped_bytes", 0)
        live = self._scenario.decode.live
        recorded = (
            ("selections", live.record_selections, self._write_selections),
            ("keys", live.record_keys, self._write_keys),
        )
        failed = [self._written(what, path, write) for what, path, write in recorded if path is not None]
        if said := [why for why in failed if why is not None]:
            found["not_recorded"] = "; ".join(said)
        return found

    def _written(self, what: str, path: str, write: Callable[[Path], None]) -> str | None:
        """Write what was recorded. A failure does not lose the run: it is said, and returned."""
        try:
            # Once more: a file may have come to lie there since the run began.
            check_replaced(Path(path), f"live.record_{what}", _KINDS[f"record_{what}"])
            write(Path(path))
        except KvferryError as error:
            why = str(error) if isinstance(error, InputError) else f"live.record_{what}: {error}"
            self._say(f"the {what} are not recorded: {why}")
            return why
        return None

    def _write_selections(self, path: Path) -> None:
        selections = selections_of(self.runner, self._sizes)
        if selections is None:
            raise InputError(
                "live.record_selections: no step selected, or later steps more groups than earlier ones; "
                "select fewer tokens than the context has"
            )
        selections.save(path)

    def _write_keys(self, path: Path) -> None:
        assert self._noted is not None
        self._noted.recording().save(path)


def _measured(runner: DecodeRunner | PagedLayers) -> dict[str, Any]:
    return {
        "answers": {str(sequence): answer for sequence, answer in enumerate(runner.answers)},
        "kv_metadata_bytes": runner.metadata_bytes,
        "kv_buffer_bytes": runner.buffer_bytes,
    }


def _quality(
    quality: RunQuality | None, model: PreTrainedModel, runner: DecodeRunner | PagedLayers, say: Say
) -> dict[str, Any]:
    """Returns the metrics of quality, under that name."""
    if quality is None:
        return {}
    say("reading the same with full attention")
    return {"quality": quality.figures(model, runner.answers)}


def check(scenario: Scenario) -> None:
    """Raises InputError for what a real world cannot carry out."""
    if scenario.load is not None:
        raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
    if scenario.decode.workload.selections is not None:
        raise InputError("workload.selections: backend torch selects with the model itself; leave selections out")
    for key in _KINDS:
        path = getattr(scenario.decode.live, key)
        if path is not None:
            check_replaced(Path(path), f"live.{key}", _KINDS[key])
            check_writable(Path(path), f"live.{key}")
