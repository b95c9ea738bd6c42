"""What one layer of decoding takes by a profile's own numbers: I/O, compute, and both together (KVSwap A.3).

For planning: no events, the mean of everything. The modelled world, with its events, agrees within a few percent.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvferry.machine.ops import Bookkeep, DecodeAttention, FeedForward, Op, OutputHead, Reconstruct, Select
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.sim.storage import map_miss_s
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError, pick
from kvferry.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class BlockDelays:
    """Seconds of one Transformer block for a whole batch.

    ``before_s``: choosing and bookkeeping, before the block's reads can begin. ``io_s``: the reads. ``compute_s``: the
    block itself. ``block_s``: all of it, reads beside computing where the system reads ahead. ``overlapped_s``: of the
    reads, what passes while the block computes.
    """

    before_s: float
    io_s: float
    compute_s: float
    block_s: float
    overlapped_s: float


class Delays:
    """Prices blocks on one device and model. Raises InputError when the device has no storage."""

    def __init__(self, device: DeviceSpec, model: ModelSpec, costs: str = "roofline") -> None:
        if device.storage is None:
            raise InputError(f"device {device.name} has no storage; its profile needs a `storage`")
        self._spec = device.processors[device.main]
        self._costs = pick("cost model", COST_MODELS, costs)(self._spec, model)
        self._storage = device.storage
        self._curves = StorageCurves(device.storage)
        slowdown = device.contention.slowdown.get(device.main, {}) if device.contention else {}
        # Of compute that runs beside reads, the share that is not lost.
        self._beside = 1 / slowdown.get("storage", 1.0)
        # Tuning asks again and again for the same.
        self.op_s = lru_cache(maxsize=1 << 14)(self._op_s)
        self._units_s = lru_cache(maxsize=1 << 14)(self._read_units_s)

    def _op_s(self, op: Op) -> float:
        return self._spec.dispatch_s + self._costs.cost(op).duration_s

    def block(self, plan: DecodePlan, reuse_rate: float = 0.0) -> BlockDelays:
        """`reuse_rate`: the share of selected units that the reuse buffer holds."""
        batch, policy = plan.sequences, plan.policy
        io_s = self.io_s(plan, reuse_rate)
        before_s = 0.0
        tokens = plan.context
        if plan.selected is not None:
            tokens = plan.selected * policy.tokens_per_group
            keys = plan.keys_of(plan.units)
            select = Select(batch, plan.units, plan.selected, 0, 0, heads=plan.heads, keys=keys, rank=plan.scored_rank)
            before_s = self.op_s(select) + self.op_s(Bookkeep(batch * plan.units_per_selection, plan.slots))
        attended = tokens + (policy.tokens_per_group - 1) / 2 + 1
        compute_s = self.op_s(DecodeAttention(batch, attended, plan.selected is not None))
        compute_s += self.op_s(FeedForward(batch))
        # Keys are rebuilt while their values are read; all the rest, where the next layer's are read meanwhile.
        rebuild_s = self.op_s(Reconstruct(batch, tokens, plan.rank)) if policy.values_only else 0.0
        beside_s, after_s = (rebuild_s + compute_s, 0.0) if policy.ahead else (rebuild_s, compute_s)
        slowed_s = beside_s + io_s * (1 - self._beside) if beside_s else 0.0
        return BlockDelays(
            before_s=before_s,
            io_s=io_s,
            compute_s=rebuild_s + compute_s,
            block_s=before_s + max(io_s, slowed_s) + after_s,
            overlapped_s=min(io_s, slowed_s),
        )

    def io_s(self, plan: DecodePlan, reuse_rate: float = 0.0) -> float:
        """Reading what one block of the whole batch lacks."""
        storage, layout = self._storage, plan.layout
        miss_s = map_miss_s(storage.map, layout.file_bytes) if storage.map else 0.0
        if plan.selected is None:
            lengths = np.full(plan.sequences * plan.heads, plan.units * layout.stride_bytes)
            return self._curves.batch_s(lengths, extra_s=miss_s)
        missing = plan.sequences * plan.units_per_selection * (1 - reuse_rate)
        whole = max(1, round(missing))
        return self._units_s(whole, layout.stride_bytes, miss_s) * missing / whole

    def _read_units_s(self, units: int, stride_bytes: int, miss_s: float) -> float:
        return self._curves.batch_s(np.full(units, stride_bytes), extra_s=miss_s)

    def step_s(self, plan: DecodePlan, reuse_rate: float = 0.0) -> float:
        """One token per sequence: all blocks, the first of which has nothing to be read beside, and the head."""
        delays = self.block(plan, reuse_rate)
        first_s = delays.io_s if plan.policy.ahead else 0.0
        return plan.shape.layers * delays.block_s + first_s + self.op_s(OutputHead(plan.sequences))
