"""Files of conversations on a real device: places for KV between turns, and what the turn at work needs."""

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from kvferry.backends.live.decoding.build import check_plan
from kvferry.backends.live.loading.library import fingerprint
from kvferry.backends.live.turns.turn_file import TurnFile
from kvferry.backends.needs import KvOfTurns
from kvferry.disk.block_sums import BlockSums
from kvferry.disk.direct_storage import BLOCK_BYTES, Storage
from kvferry.disk.kept_blocks import KeptBlocks
from kvferry.disk.kv_log import log_of
from kvferry.disk.opened_file import make_room
from kvferry.disk.paced_storage import PacedStorage
from kvferry.layouts.paged import PagedLayout
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario


def check_decoding(scenario: Scenario, need: KvOfTurns) -> None:
    """Raises InputError for a way to decode that turns do not have."""
    if need.decoding is None:
        return
    sizes, block = need.decoding.sizes, need.turns.block
    check_plan(sizes, scenario.session.live.processor)
    if _in_pages(need) and sizes.file_bytes > sizes.layout.file_bytes:
        what = "keeps on storage what it chooses by, which backend torch does not do in turns"
        raise InputError(f"policies.residency: {what}; reuse or none would do")
    if need.pages and need.places and not _in_pages(need):
        what = f"{block:,} tokens are no whole groups of {sizes.choice.group_tokens:,}, in which KV lies on flash"
        raise InputError(f"workload.block: {what}; a multiple of that would do")


def kept_file(
    scenario: Scenario,
    need: KvOfTurns,
    model: PreTrainedModel,
    tokenizer: str,
    codec: str | None,
    name_of: Callable[[int], bytes],
    stack: ExitStack,
) -> KeptBlocks | None:
    """Returns the file where KV lies between turns, and while turns decode where its layout has pages; None: nothing
    does."""
    live = scenario.session.live
    places = need.places + (need.pages if _in_pages(need) else 0)
    if not places:
        return None
    of: dict[str, str | int] = {
        "model": scenario.model.name,
        "weights": fingerprint(model),
        "tokenizer": tokenizer,
        "numbers": str(model.dtype).removeprefix("torch."),
        # KV that was loaded has been through it.
        "codec": codec or "none",
        "block tokens": need.turns.block,
        "layout": _layout(need),
    }
    path, temporary = None if live.kv_file is None else Path(live.kv_file), ExitStack()
    if path is None:
        path = _folder(scenario, temporary) / "kept.kv"
    with temporary:
        kept = KeptBlocks(
            path,
            of,
            places=places,
            place_bytes=need.place_bytes,
            make=partial(_storage, scenario),
            name_of=name_of,
        )
        stack.enter_context(closing(kept))
        if live.kv_file is None:
            # Without names from now on: however this process ends, their room is given back.
            path.unlink()
            log_of(path).unlink()
    return kept


def turn_file(scenario: Scenario, need: KvOfTurns, kept: KeptBlocks | None, stack: ExitStack) -> TurnFile | None:
    """Returns what a machine reads and writes; None: nothing."""
    apart: Storage | None = None
    if need.decoding is not None and "storage" in need.decoding.sizes.tiers and not _in_pages(need):
        n_bytes = -(-need.decoding.sizes.file_bytes // BLOCK_BYTES) * BLOCK_BYTES
        with ExitStack() as temporary:
            path = _folder(scenario, temporary) / "turn.kv"
            make_room(path, n_bytes)
            apart = stack.enter_context(_storage(scenario, path, BlockSums(n_bytes)))
            path.unlink()
    return None if kept is None and apart is None else TurnFile(kept, need.place_bytes, apart)


def _in_pages(need: KvOfTurns) -> bool:
    return need.pages > 0 and need.decoding is not None and isinstance(need.decoding.sizes.layout, PagedLayout)


def _layout(need: KvOfTurns) -> str:
    """Says how KV lies in a place."""
    if not _in_pages(need):
        return "whole blocks"
    assert need.decoding is not None
    sizes = need.decoding.sizes
    group = f"{sizes.choice.group_tokens} tokens in {sizes.layout.stride_bytes} bytes"
    return f"groups of {group}, {sizes.choice.heads} in a layer"


def _folder(scenario: Scenario, temporary: ExitStack) -> Path:
    """Returns a folder for files that go with the run."""
    where = scenario.session.live.kv_folder
    try:
        made = tempfile.TemporaryDirectory(prefix="kvferry-kept-", dir=where)
    except OSError as error:
        raise InputError(f"live.kv_folder: {where}: no file can be made there: {error.strerror}") from None
    return Path(temporary.enter_context(made))


def _storage(scenario: Scenario, path: Path, sums: BlockSums) -> Storage:
    like, paced = scenario.device.storage, scenario.session.live.paced
    depth = 32 if like is None else like.queue_depth
    if like is None or not paced:
        return Storage(path, writable=True, depth=depth, sums=sums)
    return PacedStorage(path, like=like, writable=True, depth=depth, sums=sums)
