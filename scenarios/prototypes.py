"""Profiles that hold what a prototype made of hardware, beside the same hardware by its data sheet."""

from functools import cache
from pathlib import Path

from kvferry.scenarios.library import names
from kvferry.scenarios.resolve import read_tree
from kvferry.specs.device import DeviceSpec


@cache
def by_data_sheet(device: str) -> str | None:
    """Returns the bundled device that has the same hardware by its data sheet; None where none is named."""
    if device not in names("device"):
        return None
    found = read_tree("device", device, Path()).child("by_data_sheet")
    return found.value if found is not None and isinstance(found.value, str) else None


def instead_of_a_prototype(device: DeviceSpec) -> str | None:
    """What a user would set to have the hardware by its data sheet, where a bundled profile names no engine; None for
    others, and where nothing would do."""
    if device.engine is not None or device.is_measured or device.name not in names("device"):
        return None
    if other := by_data_sheet(device.name):
        return f"--set device={other}"
    return "--set engine=llama.cpp" if device.processors[device.main].kind in ("gpu", "cpu") else None
