"""Power modes: a device whose maker lets its owner choose between clocks, as boards do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.units import BytesPerS, Clock, Count, FlopPerS, InstructionsPerS, Watts


class ProcessorInMode(Spec):
    """What a mode changes of a processor; the meaning of each key is that of ``ProcessorSpec``. None: nothing."""

    flop_per_s: FlopPerS | None = None
    int8_flop_per_s: FlopPerS | None = None
    instruction_per_s: InstructionsPerS | None = None
    bytes_per_s: BytesPerS | None = None
    idle_w: Watts | None = None
    active_w: Watts | None = None


class MemoryInMode(Spec):
    """The same of the memory."""

    bytes_per_s: BytesPerS | None = None


class DecompressorInMode(Spec):
    """The same of the decompressor, which has as many workers as the mode leaves cores."""

    workers: Count | None = None


class PowerModeSpec(Spec):
    """What a mode changes of a device, under the keys of a device file. Left out: a fixed cost of launches that grows
    as the host's clock falls."""

    processors: dict[str, ProcessorInMode] = Field(default_factory=dict)
    memory: MemoryInMode = MemoryInMode()
    decompressor: DecompressorInMode = DecompressorInMode()
    host_clock_hz: Clock | None = None


def in_power_mode(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """A device, as a file has it, with the numbers of the mode that it names; their sources name the mode. Applied
    twice, it changes nothing more. Raises BadKey for a mode that the device does not have."""
    name, modes = device.get("power_mode"), device.get("power_modes") or {}
    if name is None or not isinstance(modes, Mapping):
        return device
    if name not in modes:
        known = f"it has {', '.join(modes)}" if modes else "it has none"
        raise BadKey("power_mode", f"{name!r:.60} is no power mode of {device.get('name')}; {known}")
    sources = dict(device.get("sources") or {})
    said = sources.get(f"power_modes.{name}", sources.get("power_modes"))
    changes = dict(_changes(modes[name], ""))
    found = dict(device)
    for path, value in changes.items():
        found = _with(found, path.split("."), value)
    return {**found, "sources": {**sources, **dict.fromkeys(changes, f"power mode {name}: {said}")}}


def _changes(mode: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Each number that a mode changes, by its path in the device."""
    for key, value in mode.items() if isinstance(mode, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _changes(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", value


def _with(part: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    part = part if isinstance(part, Mapping) else {}
    return {**part, path[0]: _with(part.get(path[0]), path[1:], value) if len(path) > 1 else value}
