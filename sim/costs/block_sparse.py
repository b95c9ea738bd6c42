"""A model of a block-sparse attention kernel on a GPU: what "measured" means where there is no hardware.

Each tile of 128 queries of one query head goes to one multiprocessor, which works through the tile's active
key blocks one after the other. What a roofline does not see:

- tiles come in whole waves of as many as there are multiprocessors;
- a tile and the kernel have a start and an end (`tile_s`, `launch_s`);
- few active blocks per tile lie in short runs, and scattered reads lose bandwidth: r blocks are read at
  r / (r + run_blocks) of it;
- others on the GPU at utilisation U leave 1 - U of it.

Left out: tiles of different length within a wave, hits in the L2 cache beyond what one KV head's query heads
share, and the growth of the mask derivation with the context.
"""

from typing import Any

import numpy as np

from kvferry.machine.ops import Number
from kvferry.sim.costs.op_rules import Arithmetic
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.traces.chunks import QUERY_BLOCK


class BlockSparseKernel:
    """Prices block-sparse attention on a processor whose profile has a `block_sparse` part."""

    def __init__(self, processor: ProcessorSpec, model: ModelSpec) -> None:
        kernel = processor.block_sparse
        if kernel is None:
            raise InputError("its profile has no block_sparse part")
        self.spec = kernel
        arithmetic = Arithmetic(model)
        self._group = model.query_heads // model.kv_heads
        flop_per_s = processor.flop_per_s / kernel.multiprocessors * kernel.tile_efficiency
        bytes_per_s = processor.bytes_per_s / kernel.multiprocessors
        self._compute_s = arithmetic.block_flop / self._group / flop_per_s
        self._read_s = arithmetic.block_bytes / bytes_per_s

    def seconds(
        self,
        tokens: Number,
        active_blocks: Number,
        *,
        kv_heads: int = 1,
        context_tokens: Number = 0,
        load: Number = 0.0,
    ) -> Any:
        """Attention of a token chunk over `active_blocks` blocks of `kv_heads` heads in one launch; 0 without
        blocks. A number for numbers, an array for arrays. The context does not matter to this kernel."""
        tiles = -(-tokens // QUERY_BLOCK) * kv_heads
        per_tile = active_blocks / tiles
        waves = -(-tiles * self._group // self.spec.multiprocessors)
        compute_s = per_tile * self._compute_s
        read_s = (per_tile + self.spec.run_blocks) * self._read_s
        if isinstance(compute_s, np.ndarray):
            tile_s = self.spec.tile_s + np.maximum(compute_s, read_s)
        else:
            tile_s = self.spec.tile_s + (compute_s if compute_s > read_s else read_s)
        return (active_blocks > 0) * (self.spec.launch_s + waves * tile_s) / (1 - load)
