"""The curve of a flash device: its queue model, measured as one measures a drive."""

from functools import lru_cache

import numpy as np

from kvferry.sim.flash import Flash
from kvferry.specs.storage import CurveRow, FlashSpec

BLOCKS_BYTES = (512, *(kib << 10 for kib in (4, 8, 16, 32, 64, 256, 1024)))
DEPTHS = (1, 4, 16)
# The commands lie anywhere in this, as a benchmark's file does.
FILE_BYTES = 4 << 30


@lru_cache(maxsize=64)
def curve_rows(
    spec: FlashSpec,
    queue_depth: int,
    half_duplex: bool,
    writes: bool = False,
    blocks_bytes: tuple[int, ...] = BLOCKS_BYTES,
) -> tuple[CurveRow, ...]:
    """Bandwidth of random commands over block size and queue depth, up to that of the device.

    Takes most of a second; the result is cached for the process.
    """
    depths = sorted({min(depth, queue_depth) for depth in (*DEPTHS, queue_depth)})
    return tuple(
        CurveRow(
            depth=depth,
            block_bytes=blocks_bytes,
            bytes_per_s=tuple(random_rate(spec, block, depth, half_duplex, writes) for block in blocks_bytes),
        )
        for depth in depths
    )


def random_rate(spec: FlashSpec, block_bytes: int, depth: int, half_duplex: bool, writes: bool = False) -> float:
    """Bytes per second of aligned random commands of one size, with `depth` of them always under way."""
    flash = Flash(spec, depth, half_duplex)
    rng = np.random.default_rng(0)
    # Enough that neither chance nor the start matter by more than a percent or so.
    counted = max(8 * depth, min(1000, (4 << 20) // block_bytes), 16)
    # A write buffer fills only slowly, as programming keeps up with most of what comes.
    before = depth + (max(counted, (16 << 20) // block_bytes) if writes and spec.buffer_s else counted // 4)
    blocks = rng.integers(0, FILE_BYTES // block_bytes, before + counted + depth)
    # Each is a batch of its own, so that its end is reported.
    for number, offset in enumerate((blocks * block_bytes).tolist()):
        flash.feed(number, writes, (offset,), (block_bytes,), 0.0)
    ends_s = [end_s for end_s, _, _ in flash.advance(np.inf)]
    return counted * block_bytes / (ends_s[before + counted] - ends_s[before])
