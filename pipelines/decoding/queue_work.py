"""Work of a device's queues by a profile's own numbers: ops of the processor, and moves of KV between tiers."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kvferry.machine.ops import Op
from kvferry.machine.tiers import Leg, legs
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Part, Parts, Queue
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.sim.paged_storage import READ_AHEAD_BYTES
from kvferry.sim.slowed_queue import copy_s
from kvferry.sim.storage import map_miss_s
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.device import DeviceSpec, GatheredSpec
from kvferry.specs.errors import InputError, pick
from kvferry.specs.model import ModelSpec
from kvferry.specs.tier import Tier


class QueueWork:
    """Prices ops and moves of one device and model. ``beside`` and ``beside_processor``: shares of speed that remain
    beside other queues. Raises InputError where KV lies on storage and the device has none."""

    def __init__(self, device: DeviceSpec, model: ModelSpec, costs: str = "roofline") -> None:
        self._storage, self._through_host = device.storage, not device.memory.unified
        self._device, spec = device.name, device.processors[device.main]
        self._dispatch_s = spec.dispatch_s
        self._costs = pick("cost model", COST_MODELS, costs)(spec, model)
        self._curves = None if device.storage is None else StorageCurves(device.storage)
        memory = device.memory
        # Bytes per second and latency; on unified memory there is nothing to copy.
        self._copies: tuple[float, float, Sequence[GatheredSpec]] = (math.inf, 0.0, ())
        if memory.copy_bytes_per_s:
            self._copies = (memory.copy_bytes_per_s, memory.copy_latency_s, memory.gathered)
        slowdowns = device.slowdown_at()
        slowdown = slowdowns.get(device.main, {})
        # The share of compute beside another queue that is not lost.
        slowed: dict[Queue, str] = {"storage": "storage", "writes": "storage", "copies": "copy"}
        self.beside: dict[Queue, float] = {
            queue: 1 / slowdown[path] for queue, path in slowed.items() if path in slowdown
        }
        # The share of storage's speed beside the processor.
        reads_slowed = slowdowns.get("storage", {}).get(device.main, 1.0)
        by_processor: tuple[Queue, ...] = ("storage", "writes") if reads_slowed > 1 else ()
        self.beside_processor: dict[Queue, float] = dict.fromkeys(by_processor, 1 / reads_slowed)
        # Tuning asks again and again for the same.
        self.op_s = lru_cache(maxsize=1 << 14)(self._op_s)
        self._leg_s = lru_cache(maxsize=1 << 14)(self._leg_without_cache_s)

    def _op_s(self, op: Op) -> float:
        return self._dispatch_s + self._costs.cost(op).duration_s

    def work(self, op: Op) -> Parts:
        """Returns what an op takes of the processor."""
        return (Part("processor", self.op_s(op)),)

    def move(self, plan: DecodePlan, lengths: np.ndarray, source: Tier, to: Tier) -> Parts:
        """Returns what a move of byte ranges takes, which are read or written by commands of these lengths."""
        if source == to or not len(lengths):
            return ()
        each_bytes = int(lengths.mean())
        if plan.roles.placement.mapped or lengths.min() == lengths.max():
            return tuple(self.leg(plan, leg, len(lengths), each_bytes) for leg, _ in self.legs(source, to))
        return tuple(self._leg_of(plan, leg, lengths) for leg, _ in self.legs(source, to))

    def _leg_of(self, plan: DecodePlan, leg: Leg, lengths: np.ndarray) -> Part:
        like = self.leg(plan, leg, 1, int(lengths[0]))
        if leg == "copy":
            return like._replace(seconds=copy_s(float(lengths.sum()), *self._copies))
        assert self._curves is not None
        return like._replace(seconds=self._curves.batch_s(lengths, leg == "write", self._miss_s(plan)))

    def leg(self, plan: DecodePlan, leg: Leg, commands: float, each_bytes: int) -> Part:
        """Returns a read, write or copy of `commands` byte ranges of one length."""
        if leg == "copy":
            return Part("copies", copy_s(commands * each_bytes, *self._copies, commands))
        storage = self._storage
        if storage is None:
            raise InputError(f"device {self._device} has no storage; its profile needs a `storage`")
        miss_s = self._miss_s(plan)
        if plan.roles.placement.mapped:
            # One fault after the other; all pages do, as each is used once a token.
            faults = commands * each_bytes / READ_AHEAD_BYTES
            return Part("storage", faults * self._leg_s(leg, 1, READ_AHEAD_BYTES, miss_s))
        whole = max(1, round(commands))
        seconds = self._leg_s(leg, whole, each_bytes, miss_s) * commands / whole
        return Part("writes" if leg == "write" and storage.duplex == "full" else "storage", seconds)

    def _miss_s(self, plan: DecodePlan) -> float:
        storage = self._storage
        return map_miss_s(storage.map, plan.layout.file_bytes) if storage is not None and storage.map else 0.0

    def _leg_without_cache_s(self, leg: Leg, commands: int, each_bytes: int, miss_s: float) -> float:
        assert self._curves is not None
        return self._curves.batch_s(np.full(commands, each_bytes), leg == "write", miss_s)

    def legs(self, source: Tier, to: Tier) -> Sequence[tuple[Leg, Tier]]:
        return legs(source, to, through_host=self._through_host)
