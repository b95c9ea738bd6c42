"""A runtime: what software takes to manage KV that lies outside the processor's memory."""

from pydantic import Field

from kvferry.specs.base import Spec
from kvferry.specs.device import ContentionSpec, DeviceSpec
from kvferry.specs.storage import Slowdown
from kvferry.specs.units import Clock, Count, Seconds


class RuntimeSpec(Spec):
    """What a program takes beside its kernels, as it was found on some devices. Every number carries its source.

    On another device the times are scaled by the clocks of both hosts, since one thread of the host's program spends
    them: that is an assumption. A slowdown is a ratio and stays as it is.
    """

    name: str
    # Launching a layer of decoding kernel by kernel, beyond the device's own `layer_s`.
    layer_s: Seconds = 0.0
    # How many times as long the kernels of such a layer take as in a captured step, and what they take at least.
    kernel_slowdown: Slowdown = 1.0
    floor_s: Seconds = 0.0
    # Bookkeeping of KV blocks: per block (group, token or chunk) that a layer selects, and on top of it per slot of
    # the reuse buffer that the block is looked for in.
    block_s: Seconds = 0.0
    slot_s: Seconds = 0.0
    # The most slots of the rows that `slot_s` was fitted on. A search among more is taken to cost no more, as an index
    # over the slots would find a block in the same time. None: `slot_s` holds for any number.
    most_slots: Count | None = Field(default=None, ge=1)
    # What choosing takes on top of all that was measured of its kernels, for each score that is ranked: a remainder of
    # printed rates which no mechanism explains.
    unexplained_score_s: Seconds = 0.0
    # How many times as long computing takes while storage is busy.
    storage_slowdown: Slowdown = 1.0
    # The clock of the host that the times belong to. None: they are the same on every host.
    host_clock_hz: Clock | None = None
    # The devices and systems whose measurements the numbers explain; on others they are assumed.
    devices: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    # Whose prototype it is: its systems run on it where no runtime is named or known. None: nobody's.
    paper: str | None = None
    sources: dict[str, str]

    def scale(self, device: DeviceSpec) -> float:
        """What the times are multiplied with on a device: 1 where they were measured, or where a clock is unknown."""
        if device.name in self.devices or self.host_clock_hz is None or device.host_clock_hz is None:
            return 1.0
        return self.host_clock_hz / device.host_clock_hz

    def on(self, device: DeviceSpec) -> "RuntimeSpec":
        """The same runtime with the times that it takes on a device."""
        scale = self.scale(device)
        of_host = ("layer_s", "floor_s", "block_s", "slot_s", "unexplained_score_s")
        times = {key: scale * getattr(self, key) for key in of_host}
        return self.model_copy(update=times)

    @property
    def costs(self) -> tuple[float, ...]:
        """All that makes a run slower and has a cause, each number the better the smaller: of a layer what a small one
        takes. What nothing explains in one program is not expected of another."""
        layer_s = self.layer_s + self.floor_s
        return (layer_s, self.kernel_slowdown, self.block_s, self.slot_s, self.storage_slowdown)

    def laid_over(self, device: DeviceSpec) -> DeviceSpec:
        """The device with what this runtime takes on its main processor."""
        own, main = self.on(device), device.processors[device.main]
        times = {"eager_layer_s": own.layer_s, "block_s": own.block_s, "slot_s": own.slot_s}
        eager = {"eager_floor_s": own.floor_s, "eager_slowdown": self.kernel_slowdown}
        choosing = {"unexplained_score_s": own.unexplained_score_s, "most_slots": self.most_slots}
        main = main.model_copy(update={**times, **eager, **choosing})
        changed: dict[str, object] = {"processors": {**device.processors, device.main: main}}
        slowdown = {} if device.contention is None else device.contention.slowdown
        if self.storage_slowdown > 1 and "storage" not in slowdown.get(device.main, {}):
            beside = {**slowdown.get(device.main, {}), "storage": self.storage_slowdown}
            link_bytes_per_s = None if device.contention is None else device.contention.link_bytes_per_s
            changed["contention"] = ContentionSpec(
                slowdown={**slowdown, device.main: beside}, link_bytes_per_s=link_bytes_per_s
            )
        return device.model_copy(update=changed)
