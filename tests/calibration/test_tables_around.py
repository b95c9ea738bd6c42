"""Tables around a run: their points by hand, and what a change of the machine's speed does to a pair."""

from pathlib import Path

import pytest
from tiny import LIVE_DECODING, tiny

from kvferry.specs.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("points", "value", "found"),
    [
        ((1, 4, 16), 8, [4, 16]),
        ((1, 4, 16), 4, [1, 4, 16]),
        ((1, 4, 16), 1, [1, 4]),
        ((1, 4, 16), 40, [4, 16]),
        ((128, 384, 896), 100, [128, 384]),
    ],
)
def test_points_next_to_a_value(points: tuple[int, ...], value: int, found: list[int]) -> None:
    from kvferry.calibration.tables_around import around

    assert around(points, value) == found


def test_a_grid_reaches_beyond_the_context() -> None:
    from kvferry.calibration.tables_around import settings_reaching

    assert settings_reaching(3000).contexts == (0, 1024, 2048, 4096)
    assert settings_reaching(100).contexts == (0, 1024, 2048)


def test_a_machine_keeps_its_speed_up_to_a_bound() -> None:
    from kvferry.calibration.speed import MOST_CHANGE, Speed

    speed = Speed()
    speed._probes_s = [1.0, 0.9, 0.9 * MOST_CHANGE]
    assert speed.kept
    speed._probes_s.append(0.91 * MOST_CHANGE)
    assert not speed.kept


def test_systems_without_tables_are_refused(tmp_path: Path) -> None:
    from kvferry.calibration.tables_around import TablesAround

    with pytest.raises(InputError, match="no tables can be measured beside flexgen of a decode workload"):
        TablesAround(tiny(LIVE_DECODING, system="flexgen"), tmp_path)
