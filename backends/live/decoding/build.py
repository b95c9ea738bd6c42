"""From the sizes of a decode plan to what carries it out: layers with an index and KV blocks, and the storage below."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.cluster_format import ClusterFormat
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.indexes.table import index_maker
from kvferry.backends.live.decoding.kept_file import data_bytes
from kvferry.backends.live.decoding.layers import Layers
from kvferry.backends.live.decoding.noted_keys import NotedKeys
from kvferry.backends.live.decoding.tiers import KvTiers
from kvferry.backends.live.engine.machine import OpRunner
from kvferry.backends.live.quality.run_quality import RunQuality
from kvferry.backends.needs import DecodeSizes, KvOnStorage
from kvferry.backends.world import Say
from kvferry.disk.direct_storage import BLOCK_BYTES, Storage
from kvferry.disk.kv_log import KvLog
from kvferry.disk.mapped_storage import MappedStorage
from kvferry.disk.paced_storage import PacedStorage
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.machine.answers import Answer, Selection
from kvferry.model.decoders import decoder_of
from kvferry.model.prompts import Prompts
from kvferry.policies.decode.index import IndexSpec
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.cluster_answers import Place

# Text that an index learns directions from, at most: keys of this many tokens tell the others'.
_SAMPLE_TOKENS = 8192


class DecodeRunner(OpRunner, Protocol):
    """Carries out the ops of a batch that decodes."""

    @property
    def answers(self) -> list[list[int]]:
        """Returns the token ids said so far, by sequence."""
        ...

    @property
    def chosen(self) -> list[Selection]:
        """Returns KV blocks that were chosen, step after step, layer after layer."""
        ...

    @property
    def choosing(self) -> int:
        """Returns the layers that choose in every step; 1 where the first chooses for all."""
        ...

    @property
    def said(self) -> dict[Place, Answer]:
        """Returns what was said of clusters."""
        ...

    @property
    def metadata_bytes(self) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...


def check_plan(sizes: DecodeSizes, processor: str) -> None:
    """Raises InputError for an index or a placement that the backend lacks, before a model is loaded for it."""
    if sizes.keys.index is not None:
        try:
            index_maker(sizes.keys.index.kind)
        except InputError as error:
            raise InputError(f"policies.selector: backend torch: {error}") from None
    if sizes.writes_back:
        what = "writes all KV of a layer again in every step, which backend torch does not do"
        raise InputError(f"policies.attention: joining tensors {what}; paged would do")
    if sizes.staying.newest_tokens is not None:
        newest = f"memory holds {sizes.staying.newest_tokens:,} new tokens of each sequence"
        what = f"{newest}, and backend torch keeps all there"
        raise InputError(f"policies.upkeep: {what}; a shorter output or a smaller batch would do")
    if sizes.staying.tokens and not isinstance(sizes.layout, ClusterLayout):
        raise InputError("policies.residency: backend torch keeps clusters in such a cache alone; say reuse or none")
    if "device" in sizes.tiers and not processor.startswith(("cpu", "cuda")):
        what = "keeps KV that it chooses from in a processor's own memory on CPUs and with CUDA alone"
        raise InputError(f"policies.placement: backend torch {what}, not on {processor}; say host or storage")


def decode_runner(
    scenario: Scenario,
    need: KvOnStorage,
    model: PreTrainedModel,
    prompts: Prompts,
    tiers: KvTiers,
    noted: NotedKeys | None,
    log: KvLog | None,
    quality: RunQuality | None,
    say: Say,
) -> DecodeRunner:
    """Runs the layers of a batch with its KV on storage, or in `tiers` of memory; `noted` gets its keys, `log` what
    becomes of the file, and `quality` what is said and attended to."""
    workload, sizes = scenario.decode.workload, need.sizes
    format = format_of(sizes, model.dtype)
    read_on = 0 if quality is None else quality.read_on
    sample = sample_of(prompts, sizes.layout.sequences, workload.context, read_on)[0].tolist()
    room_tokens = sizes.layout.blocks * sizes.choice.group_tokens
    measured: dict[str, Any] = {}
    if quality is not None:
        measured = {"follow": quality.follow, "listen": quality.listen, "attended": quality.attending(format)}
    return Layers(
        model,
        contexts_of(prompts, [workload.context] * need.sequences, quality),
        format,
        output=workload.output,
        slots=sizes.staying.slots,
        index=index_of(sizes.keys.index, model, sample, sizes.layout.sequences, room_tokens, say),
        rebuilt_rank=sizes.keys.rebuilt_rank,
        tiers=tiers,
        noted=noted,
        log=log,
        **measured,
    )


def contexts_of(prompts: Prompts, tokens: Sequence[int], quality: RunQuality | None) -> Sequence[Sequence[int]]:
    """Returns token ids of contexts of these lengths."""
    if quality is not None:
        return quality.contexts
    return [prompts.tokens(n, context, 0)[0] for n, context in enumerate(tokens)]


def format_of(sizes: DecodeSizes, dtype: torch.dtype) -> BlockFormat | ClusterFormat:
    """Returns the format of the file with the KV."""
    layout, model = sizes.layout, sizes.model
    if isinstance(layout, ClusterLayout):
        return ClusterFormat(layout, kv_heads=model.kv_heads, head_dim=model.head_dim, dtype=dtype)
    return BlockFormat(
        layout,
        group_tokens=sizes.choice.group_tokens,
        kv_heads=model.kv_heads,
        head_dim=model.latent.width if model.latent else model.head_dim,
        dtype=dtype,
        values_only=sizes.keys.rebuilt_rank is not None,
        latent_rank=model.latent.kv_lora_rank if model.latent else None,
    )


def decode_storage(scenario: Scenario, sizes: DecodeSizes, stack: ExitStack) -> Storage | MappedStorage:
    """Returns the file that KV lies in, which goes with the run unless it is to be kept."""
    live = scenario.decode.live
    if live.kv_file is not None:
        kept = _storage(Path(live.kv_file), data_bytes(sizes) + BLOCK_BYTES, scenario, sizes)
        stack.enter_context(kept)
        return kept
    try:
        made = tempfile.TemporaryDirectory(prefix="kvferry-kv-", dir=live.kv_folder)
    except OSError as error:
        raise InputError(f"live.kv_folder: {live.kv_folder}: no file can be made there: {error.strerror}") from None
    path = Path(stack.enter_context(made)) / "kv.bin"
    storage = _storage(path, data_bytes(sizes), scenario, sizes)
    # It has no name from now on: however this process ends, its room is given back.
    path.unlink()
    path.parent.rmdir()
    stack.enter_context(storage)
    return storage


def _storage(path: Path, n_bytes: int, scenario: Scenario, sizes: DecodeSizes) -> Storage | MappedStorage:
    like = scenario.device.storage
    paced = like if scenario.decode.live.paced else None
    if sizes.staying.mapped_bytes is not None:
        return MappedStorage.create(path, n_bytes, most_bytes=sizes.staying.mapped_bytes, like=paced)
    if paced is None:
        return Storage.create(path, n_bytes, depth=32 if like is None else like.queue_depth)
    return PacedStorage.create(path, n_bytes, depth=paced.queue_depth, like=paced)


def storage_measured(storage: Storage | MappedStorage) -> dict[str, Any]:
    """Returns what the file's storage did, for a run's record."""
    found: dict[str, Any] = {"kv_read_bytes": storage.peak_buffer_bytes}
    if isinstance(storage, PacedStorage | MappedStorage):
        found |= {"storage_batches": storage.batches, "storage_batches_late": storage.late}
    if isinstance(storage, MappedStorage):
        found |= {"faulted_bytes": storage.pages.faulted_bytes, "mapped_bytes": storage.pages.peak_bytes}
    return found


def index_of(
    spec: IndexSpec | None, model: PreTrainedModel, sample: Sequence[int], sequences: int, room_tokens: int, say: Say
) -> Index | None:
    """Returns an empty index, or None where all KV is read. What it learns offline comes from a `sample` of text that
    no prompt of the run holds."""
    if spec is None:
        return None
    say(f"making {spec.kind}")
    ids = torch.tensor([sample[:_SAMPLE_TOKENS]], device=model.device)
    return index_maker(spec.kind)(decoder_of(model), ids, spec, sequences=sequences, room_tokens=room_tokens)


def sample_of(
    prompts: Prompts, contexts: int, context: int, read_on: int = 0, apart: int | None = None
) -> torch.Tensor:
    """Returns token ids [1, tokens] that an index learns directions from: text behind all `contexts` of `context`
    tokens, and behind `read_on` tokens that are said of the text after the last of them. `apart`: from one context's
    beginning to the next one's."""
    end = (contexts - 1) * (apart or context) + context + read_on
    ids, _ = prompts.tokens(-(-end // context), context, 0)
    return torch.tensor([ids[:_SAMPLE_TOKENS]])
