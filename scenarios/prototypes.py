"""Profiles that hold what a prototype made of hardware, beside the same hardware by its data sheet."""

from pathlib import Path

from kvferry.scenarios.library import names
from kvferry.scenarios.resolve import read_tree
from kvferry.specs.device import DeviceSpec


def by_data_sheet(device: str) -> str | None:
    """Returns the bundled device that has the same hardware by its data sheet; None where none is named."""
    if device not in names("device"):
        return None
    found = read_tree("device", device, Path()).child("by_data_sheet")
    return found.value if found is not None and isinstance(found.value, str) else None


def of_a_prototype(device: DeviceSpec) -> str | None:
    """A line on a bundled profile without an engine: what its figures are, and what would be the hardware alone; None
    for others."""
    if device.engine is not None or device.is_measured or device.name not in names("device"):
        return None
    other = by_data_sheet(device.name)
    instead = f"--set device={other}" if other else None
    if instead is None and device.processors[device.main].kind in ("gpu", "cpu"):
        instead = "--set engine=llama.cpp"
    would = "" if instead is None else f"; {instead} takes the hardware by its data sheet"
    return f"{device.name} names no engine: its efficiencies are what a paper's or a tuned program made of it{would}"
