"""Times of prefill and decoding by a profile's own numbers: I/O, compute, and both together (KVSwap A.3).

For planning: no events, the mean of everything. It walks the very stages that the pipeline carries out; the modelled
world, with its events, agrees within a few percent. Left out: that copies are slowed by what is beside them, and that
blocks become more while decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from kvferry.machine.ops import Op
from kvferry.pipelines.decoding.computing import Attend, NextToken, PassOnRest
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Parts, Queue
from kvferry.pipelines.decoding.queue_work import QueueWork
from kvferry.pipelines.decoding.stages import KINDS
from kvferry.pipelines.decoding.timetable import Times, Timetable, idle_s, timed
from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.upkeep import Learned
from kvferry.specs.device import DeviceSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.tier import Tier

# Enough for a block in the middle: one before it and one behind, each with a neighbour of its own.
_BLOCKS = 4
# Enough reads at once for any queue.
_READS = 1024


@dataclass(frozen=True, kw_only=True)
class BlockDelays:
    """Seconds of one Transformer block for a whole batch, amid others.

    ``io_s``: moving its KV. ``block_s``: from one block's end to the next one's. ``overlapped_s``: of the I/O, what
    passes while the processor works.
    """

    io_s: float
    block_s: float
    overlapped_s: float


class Delays:
    """Prices decoding on one device and model. Raises InputError where KV lies on storage and the device has none."""

    def __init__(self, device: DeviceSpec, model: ModelSpec, costs: str = "roofline") -> None:
        self.queues = QueueWork(device, model, costs)

    def block(self, plan: DecodePlan, reuse_rate: float = 0.0, tier: Tier = "storage") -> BlockDelays:
        """Returns the delays of a Transformer block whose KV lies in `tier`. `reuse_rate` is the share of selected KV
        blocks that the reuse buffer holds."""
        table = _step_table(plan.roles, _BLOCKS)
        parts = self._parts(table, plan, reuse_rate, (tier,) * _BLOCKS)
        times = self._times(table, parts).stages
        first, second = (max(times[n][1] for n in worked) for worked in _middle(plan.roles))
        io_s, moved = sum(part.seconds for part in parts[table.last_move]), times[table.last_move]
        took_s = moved[1] - moved[0]
        idle = idle_s(moved, (times[n] for n in table.worked)) / took_s if took_s else 0.0
        return BlockDelays(io_s=io_s, block_s=second - first, overlapped_s=io_s * (1 - idle))

    def step_s(self, plan: DecodePlan, reuse_rate: float = 0.0) -> float:
        """Returns seconds of a decoding step, which makes one token per sequence, with each layer's KV where it lies
        after prefill."""
        table = _step_table(plan.roles, plan.model.layers)
        parts = self._parts(table, plan, reuse_rate, plan.tiers)
        return self._times(table, parts).stages[-1][1]

    def prefill_s(self, plan: DecodePlan) -> float:
        """Returns seconds until the prompts of all sequences have been computed and their KV lies where it belongs."""
        table = _prefill_table(plan.roles, plan.model.layers)
        times = self._times(table, self._parts(table, plan, 0.0, plan.tiers))
        return max(end for _, end in times.stages)

    def token_times_s(self, plan: DecodePlan, tokens: int, reuse_rate: float = 0.0) -> list[float]:
        """Returns when each token of a sequence is there; the first ends prefill. Counts steps in which a placement
        moves layers, and steps that begin while full blocks are still being written."""
        times = [self.prefill_s(plan)]
        kept = plan.roles.upkeep.start(plan.context, plan.choice.group_tokens, plan.layout)
        steps: dict[tuple[object, ...], Times] = {}
        tiers, free = plan.tiers, dict[Queue, float]()
        same = tiers == self._tiers(plan, tokens)
        for step in range(tokens - 1):
            before, tiers = tiers, tiers if same else self._tiers(plan, step)
            key = (before, tiers, *free.items())
            if key not in steps:
                steps[key] = self._step(plan, reuse_rate, before, tiers, free)
            took_s = steps[key].stages[-1][1]
            times.append(times[-1] + took_s)
            free = {queue: end - took_s for queue, end in steps[key].free.items() if end > took_s}
            if kept.append(Learned(())) is not None:
                free = self._written(plan, tiers, free)
        return times

    def read_ahead(self, plan: DecodePlan) -> ReadAhead:
        """Returns what storage has time to read of the next layer while one attends, over as much as it will at last,
        and passes on."""
        prices = _Prices(self.queues, plan, "storage")
        attended = plan.roles.selector.wanted_tokens(plan.most_tokens) + 1
        ops = Attend.op(plan, attended), PassOnRest.op(plan, prices.tier)
        window_s = sum(part.seconds for op in ops for part in prices.work(op))
        unit = plan.layout.alignment_bytes
        short_s, long_s = (
            sum(part.seconds for part in prices.move(_READS, n * unit, "storage", "device")) / _READS for n in (1, 5)
        )
        byte_s = (long_s - short_s) / (4 * unit)
        # A cluster begins or ends with a storage block, and half of one is read besides in the mean.
        return ReadAhead(window_s=window_s, command_s=short_s - byte_s * unit / 2, byte_s=byte_s)

    # --- a step ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _tiers(plan: DecodePlan, step: int) -> tuple[Tier, ...]:
        return plan.memory.tiers_at(plan.context + step)

    def _step(
        self,
        plan: DecodePlan,
        reuse_rate: float,
        before: tuple[Tier, ...],
        tiers: tuple[Tier, ...],
        free: Mapping[Queue, float],
    ) -> Times:
        """Times a step at whose beginning layers move from the tiers `before` to `tiers`; `free` is as in
        ``timed``."""
        ends, arriving = dict(free), {}
        for layer, (source, to) in enumerate(zip(before, tiers, strict=True)):
            if source != to:
                parts = _Prices(self.queues, plan, to).move(plan.rows, plan.row_bytes, source, to)
                arriving[layer] = _queued(parts, ends)
        table = _step_table(plan.roles, plan.model.layers)
        return self._times(table, self._parts(table, plan, reuse_rate, tiers), ends, arriving)

    def _times(
        self,
        table: Timetable,
        parts: Sequence[Parts],
        free: Mapping[Queue, float] | None = None,
        arriving: Mapping[int, float] | None = None,
    ) -> Times:
        return timed(table.steps, parts, self.queues.beside, free, arriving, self.queues.beside_processor)

    def _written(self, plan: DecodePlan, tiers: tuple[Tier, ...], free: Mapping[Queue, float]) -> dict[Queue, float]:
        """Returns when each queue is free again, once the KV blocks that a step has completed are written."""
        ends = dict(free)
        for tier in dict.fromkeys(tiers):
            _queued(NextToken.behind(_Prices(self.queues, plan, tier), tiers.count(tier)), ends)
        return ends

    def _parts(self, table: Timetable, plan: DecodePlan, reuse_rate: float, tiers: tuple[Tier, ...]) -> list[Parts]:
        """Returns the parts of every stage; `tiers` says where each layer's KV lies."""
        missing = plan.sequences * plan.blocks_per_selection * (1 - reuse_rate)
        by_tier = {
            tier: {kind: KINDS[kind].parts(_Prices(self.queues, plan, tier, missing)) for kind in table.kinds}
            for tier in dict.fromkeys(tiers)
        }
        return [by_tier[tiers[stage.layer]][stage.kind] for stage in table.stages]


@dataclass(frozen=True)
class _Prices:
    """The mean step of a plan, for layers whose KV lies in one tier."""

    _queues: QueueWork
    plan: DecodePlan
    tier: Tier
    missing: float = 0.0

    def work(self, op: Op) -> Parts:
        return self._queues.work(op)

    def move(self, commands: float, each_bytes: int, source: Tier, to: Tier) -> Parts:
        if source == to:
            return ()
        return tuple(self._queues.leg(self.plan, leg, commands, each_bytes) for leg, _ in self._queues.legs(source, to))


def _queued(parts: Parts, ends: dict[Queue, float]) -> float:
    """Returns when parts that are handed over together end, behind what their queues hold already. Updates `ends` of
    the queues."""
    end = 0.0
    for queue, seconds in parts:
        ends[queue] = end = max(end, ends.get(queue, 0.0)) + seconds
    return end


@lru_cache(maxsize=256)
def _step_table(roles: Roles, layers: int) -> Timetable:
    return Timetable(roles.step(layers))


@lru_cache(maxsize=64)
def _prefill_table(roles: Roles, layers: int) -> Timetable:
    return Timetable(roles.prefill(layers))


@lru_cache(maxsize=256)
def _middle(roles: Roles) -> tuple[list[int], list[int]]:
    """Returns what the processor does for the two layers in the middle."""
    first, second = (_step_table(roles, _BLOCKS).worked_at(layer) for layer in (1, 2))
    return first, second
