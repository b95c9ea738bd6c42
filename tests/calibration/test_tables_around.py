"""Tables around a run: their points by hand, and what a change of the machine's speed does to a pair."""

from pathlib import Path

import pytest
from tiny import LIVE_DECODING, LIVE_TURNS, tiny

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


@pytest.mark.parametrize(("batch", "found"), [(1, (1, 2)), (2, (1, 3)), (8, (6, 10)), (12, (9, 15))])
def test_batches_a_quarter_away(batch: int, found: tuple[int, int]) -> None:
    from kvferry.calibration.tables_around import batches_around

    assert batches_around(batch) == found


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


def test_turns_are_measured_behind_contexts_up_to_the_longest_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvferry.calibration import tables_around
    from kvferry.calibration.tables_around import TablesAround

    measured = set[tuple[str, tuple[float, ...]]]()
    for what in ("column", "questions", "answers"):
        monkeypatch.setattr(
            tables_around.compute, what, lambda rig, *at, what=what: measured.add((what, at)) or list[object]()
        )
    TablesAround(tiny(LIVE_TURNS), tmp_path).half()
    # Blocks of 16 tokens; prompts are shorter than two chunks of 1,024.
    behind = (64, 1024, 2048)
    assert measured == {
        *(("column", (before, tokens, 1.0)) for before in (0, 1024, 2048) for tokens in (64, 128)),
        *(("questions", (before, tokens)) for before in behind for tokens in (1, 16, 64, 256)),
        *(("answers", (before,)) for before in behind),
    }


def test_systems_without_tables_are_refused(tmp_path: Path) -> None:
    from kvferry.calibration.tables_around import TablesAround

    with pytest.raises(InputError, match="no tables can be measured beside flexgen of a decode workload"):
        TablesAround(tiny(LIVE_DECODING, system="flexgen"), tmp_path)


def test_turns_that_decode_from_flash_have_their_steps_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvferry.calibration import tables_around
    from kvferry.calibration.tables_around import TablesAround

    for what in ("column", "questions", "answers"):
        monkeypatch.setattr(tables_around.compute, what, lambda *_: list[object]())
    measured = list[tuple[int, int, int]]()
    monkeypatch.setitem(tables_around._DECODING, "kvswap", lambda rig, folder, point: measured.append(point) or [])
    kept = {"kept_memory": None, "kv": "10 MiB"}
    TablesAround(tiny(LIVE_TURNS, system="kvswap-on-flash", budget=kept), tmp_path).half()
    # One prompt at a time, behind the grid's shortest contexts.
    assert {batch for batch, *_ in measured} == {1, 2}
    assert min(context for _, context, _ in measured) == 1024


def test_dispatch_is_in_the_profile_and_not_in_the_tables_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step's ops were measured with what it takes to hand them over: 1 ms of which 0.1 ms is dispatch."""
    from kvferry.calibration import tables_around
    from kvferry.calibration.measurement import Measurement
    from kvferry.calibration.tables_around import TablesAround

    def step(rig: object, folder: Path, point: tuple[int, int, int]) -> list[Measurement]:
        return [Measurement(what="feed_forward", unit="s", values=(1e-3,), at={"batch": float(point[0])})]

    trip = Measurement(what="dispatch", unit="s", values=(1e-4,))
    monkeypatch.setitem(tables_around._DECODING, "kvswap", step)
    monkeypatch.setattr(tables_around, "dispatch", lambda settings: trip)
    around = TablesAround(tiny(LIVE_DECODING, system="kvswap"), tmp_path)
    around.half()
    priced = around.priced()
    processor = priced.device.processors[priced.device.main]
    assert processor.dispatch_s == 1e-4 and processor.measured == str(tmp_path / "measured")
    (table,) = (tmp_path / "measured").rglob("feed_forward.csv")
    assert {row.split(",")[-1] for row in table.read_text().split()[1:]} == {"0.0009"}
