"""A file with the KV that stays under its name, with a log beside it (``live.kv_file``)."""

import secrets
from contextlib import ExitStack
from pathlib import Path

import torch

from kvferry.backends.needs import DecodeSizes
from kvferry.disk.direct_storage import BLOCK_BYTES, Storage
from kvferry.disk.kv_log import KvLog, check_own, last_block
from kvferry.disk.kv_record import NUMBER_BYTES, KvHeader
from kvferry.disk.mapped_storage import MappedStorage
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.machine.handles import Extents
from kvferry.specs.errors import InputError
from kvferry.specs.live import DecodeLive
from kvferry.specs.scenario import Scenario
from kvferry.traces.arrays import check_writable


def check_kept(scenario: Scenario, sizes: DecodeSizes | None) -> None:
    """Raises InputError, where the file is to be kept, for KV whose file cannot be read by its log. None: there is no
    file."""
    live = scenario.live
    # Pages of memory serve other kinds of workload, too, which keep no file.
    if not isinstance(live, DecodeLive) or live.kv_file is None:
        return
    if sizes is None or set(sizes.tiers) != {"storage"}:
        raise InputError("live.kv_file: not all KV lies in a file here; placement: storage would have it there")
    if sizes.staying.mapped_bytes is not None:
        raise InputError(
            "live.kv_file: a file that is mapped into memory is written when the system likes; leave it out"
        )
    if sizes.model.latent is not None:
        what = "its reader knows keys and values of heads, and the model's cache is latent (model.latent)"
        raise InputError(f"live.kv_file: {what}; leave it out")
    if live.kv_folder is not None:
        raise InputError("live.kv_file: names the file with the KV itself; leave live.kv_folder out")
    if sizes.layout.moves:
        what = "the layout moves what lies behind a cluster that grows, of which the log does not know"
        raise InputError(f"live.kv_file: {what}; layout: dual-head, cluster-pools or sequence-order would do")
    if not isinstance(sizes.layout, ClusterLayout) and (
        sizes.choice.group_tokens > 1 or sizes.keys.rebuilt_rank is not None
    ):
        what = f"KV blocks are clusters there, or have one token; they have {sizes.choice.group_tokens}"
        if sizes.keys.rebuilt_rank is not None:
            what = "the file has keys and values, not values alone"
        raise InputError(f"live.kv_file: {what}; system: dynakv, pqcache, clusterkv or no-cluster would do")
    check_writable(Path(live.kv_file), "live.kv_file")
    check_own(Path(live.kv_file))


def kept_log(path: Path, stack: ExitStack) -> KvLog:
    """Takes the place for the file's log: what lies there of an earlier file is no more."""
    return stack.enter_context(KvLog(path))


def data_bytes(sizes: DecodeSizes) -> int:
    """Returns the bytes of the file that hold KV."""
    return -(-sizes.file_bytes // BLOCK_BYTES) * BLOCK_BYTES


def begin(log: KvLog, storage: Storage | MappedStorage, sizes: DecodeSizes, context: int, dtype: torch.dtype) -> None:
    """Say what the file and its log are to hold, and that they belong together. Raises StorageError."""
    layout, model = sizes.layout, sizes.model
    name = str(dtype).removeprefix("torch.")
    if name not in NUMBER_BYTES:
        raise InputError(f"live.kv_file: numbers are {', '.join(NUMBER_BYTES)}, not {name}")
    header = KvHeader(
        identity=secrets.token_hex(16),
        model=model.name,
        layers=layout.layers,
        sequences=layout.sequences,
        heads=layout.heads,
        row_heads=model.kv_heads // layout.heads,
        head_dim=model.head_dim,
        dtype=name,
        context=context,
        data_bytes=data_bytes(sizes),
        block_bytes=BLOCK_BYTES,
        clusters=isinstance(layout, ClusterLayout),
    )
    storage.write(Extents([header.data_bytes], [BLOCK_BYTES]), last_block(header.identity))
    log.begin(header)
