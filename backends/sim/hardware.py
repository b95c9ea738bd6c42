"""The resources of a modelled device: processors, decompressor, copies and storage, their heat and their energy."""

import math
from collections.abc import Mapping

import simpy

from kvferry.backends.sim.op_answers import OpAnswers
from kvferry.machine.span import Tell
from kvferry.sim.access import Access
from kvferry.sim.bus import MemoryBus
from kvferry.sim.contention import Contention
from kvferry.sim.costs.cost_model import Builder
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.energy import EnergyMeter
from kvferry.sim.foresight import Foresight
from kvferry.sim.heat import Heat
from kvferry.sim.paged_storage import PagedStorage
from kvferry.sim.processor import Processor
from kvferry.sim.slowed_queue import CopyQueue, Decompressor
from kvferry.sim.storage import Storage
from kvferry.sim.storage_curve import CurveStorage
from kvferry.sim.storage_models import storage_of
from kvferry.specs.device import DeviceSpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.storage import StorageSpec
from kvferry.traces.critical_tokens import CriticalTokens
from kvferry.traces.rate import RateTrace

Queue = Processor | CopyQueue | Storage | PagedStorage


class Hardware:
    """Resources that slow each other as the device's profile says. `access` slows and draws energy too, `load` is the
    background load of processors by name. `mapped`: the KV's file is mapped into memory, its size and what of it may be
    there."""

    def __init__(
        self,
        env: simpy.Environment,
        device: DeviceSpec,
        model: ModelSpec,
        costs: Builder,
        access: Access | None,
        load: Mapping[str, RateTrace],
        mapped: tuple[float, float] | None,
        tell: Tell,
    ) -> None:
        self._device, self._access, memory = device, access, device.memory
        link = None if access is None else access.down
        mean_bytes_per_s = 0.0 if link is None else link.trace.mean()
        slowdown = device.slowdown_at(mean_bytes_per_s)
        contention = Contention(slowdown) if device.contention else None
        self._slowdown, self._loaded = slowdown, bool(load)
        bus = MemoryBus(memory.bytes_per_s) if memory.unified else None
        self.heat = None if device.heat is None else Heat(device.heat, self._drawn_j)
        self.processors = {
            name: Processor(
                env,
                name,
                spec,
                # A cost model may need what only the main processor's profile describes.
                (costs if name == device.main else Roofline)(spec, model).cost,
                load.get(name),
                bus,
                tell,
                contention,
                self.heat,
            )
            for name, spec in device.processors.items()
        }
        self.main = self.processors[device.main]
        self.decompressor = Decompressor(env, device.decompressor, tell, contention)
        # On unified memory there is nothing to copy: a queue that takes no time and tells nothing.
        self.copies = (
            CopyQueue(env, math.inf, 0.0, lambda span: None)
            if memory.copy_bytes_per_s is None
            else CopyQueue(
                env,
                memory.copy_bytes_per_s,
                memory.copy_latency_s,
                tell,
                contention=contention,
                gathered=memory.gathered,
            )
        )
        self.storage = _storage(env, device.storage, tell, mapped, contention)
        if contention is not None:
            for path in (*self.processors.values(), self.decompressor, self.copies, self.storage):
                if path is not None:
                    contention.watch(path.resource, path.busy)
            if link is not None:
                contention.watch("link", link.busy)
        self.energy = self._energy_meter()

    def _energy_meter(self) -> EnergyMeter:
        meter = EnergyMeter(self._device.base_w)
        storing = None if self.storage is None else self.storage.busy
        for name, spec in self._device.processors.items():
            # Only the processor that a run computes on has threads that wait.
            waiting_w = spec.waiting_w if name == self._device.main else None
            busy = self.processors[name].busy
            work_s = None if self.heat is None else self.heat.work_s
            meter.add(name, spec.idle_w, spec.active_w, busy, waiting_w=waiting_w, waits_for=storing, work_s=work_s)
        meter.add("decompress", 0.0, self._device.decompressor.active_w, self.decompressor.busy)
        if self.storage is not None and self.storage.spec.active_w is not None:
            meter.add("storage", self.storage.spec.idle_w, self.storage.spec.active_w, self.storage.busy)
        network = self._device.network
        ways = () if self._access is None else (self._access.down.busy, self._access.up.busy)
        meter.add("network", network.idle_w, network.active_w, *ways)
        return meter

    def _drawn_j(self, from_s: float, until_s: float) -> float:
        return sum(self.energy.energy_j(until_s, from_s).values())

    @property
    def queues(self) -> tuple[Queue, ...]:
        """Returns what work of a decoding step waits for."""
        return (*self.processors.values(), self.copies, *([] if self.storage is None else [self.storage]))

    def foresight(self, answers: OpAnswers) -> Foresight | None:
        """What decoding steps with KV on storage can be calculated from. None where something else may slow the main
        processor or the storage, such as heat, or where nothing is selected."""
        stream = answers.selections
        if (
            self._loaded
            or self.heat is not None
            or not self._device.memory.unified
            or not isinstance(self.storage, CurveStorage)
        ):
            return None
        if stream is None and answers.clusters is None:
            return None
        chosen = stream.at if isinstance(stream, CriticalTokens) else None
        main = self._device.main
        beside, reads_beside = (
            1 / self._slowdown.get(path, {}).get(other, 1.0) for path, other in ((main, "storage"), ("storage", main))
        )
        return Foresight(answers.of, chosen, self.main, self.storage, beside, reads_beside)


def _storage(
    env: simpy.Environment,
    spec: StorageSpec | None,
    tell: Tell,
    mapped: tuple[float, float] | None,
    contention: Contention | None,
) -> Storage | PagedStorage | None:
    if spec is None:
        return None
    if mapped is None:
        return storage_of(env, spec, tell, contention)
    file_bytes, most_bytes = mapped
    return PagedStorage(env, spec, tell, file_bytes=file_bytes, most_bytes=most_bytes)
