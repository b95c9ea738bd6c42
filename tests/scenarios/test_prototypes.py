"""Profiles of prototypes say so, and name the same hardware by its data sheet."""

import pytest

from kvferry.analysis.remarks import how_known
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device
from kvferry.scenarios.prototypes import by_data_sheet, instead_of_a_prototype


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("jetson-agx-orin-sparkv", "--set device=jetson-agx-orin-64gb"),
        ("jetson-agx-orin-kvswap", "--set device=jetson-agx-orin-64gb"),
        ("rtx-4060-laptop-specontext", "--set device=rtx-4060-laptop"),
        ("oneplus-12", "--set device=snapdragon-8-gen-3"),
        ("rtx-5080-laptop", "--set device=rtx-5080-laptop-16gb"),
        ("kirin-phone", None),
        ("rtx-4060", None),
    ],
)
def test_a_prototype_s_profile_says_what_is_the_hardware_alone(name: str, instead: str | None) -> None:
    device = load_device(name)
    assert instead_of_a_prototype(device) == instead
    said = how_known(device)
    assert said is not None
    assert said.endswith("; kvferry calibrate measures one")
    assert (f" and names no engine, as papers' profiles ({instead}: by data sheet);" in said) == (instead is not None)


@pytest.mark.parametrize("name", names("device"))
def test_the_same_hardware_by_its_data_sheet_has_an_engine(name: str) -> None:
    other = by_data_sheet(name)
    if other is None:
        return
    device, sheet = load_device(name), load_device(other)
    assert sheet.engine is not None and instead_of_a_prototype(sheet) is None
    assert sheet.memory.bytes_per_s == device.memory.bytes_per_s


@pytest.mark.parametrize("name", [name for name in names("device") if name.startswith("jetson-") and name[-1] == "b"])
def test_plain_names_of_boards_are_data_sheets_with_an_engine(name: str) -> None:
    assert load_device(name).engine is not None
