"""Sweeps: only missing points run, the same bytes whatever the order, failures beside results."""

import hashlib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import seeded

from kvferry.analysis import sweep
from kvferry.analysis.dataset import Dataset, read_earlier, read_points
from kvferry.analysis.settings import column_of, settings_of
from kvferry.analysis.sweep import run_points
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.scenarios.loader import scenario_hash
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario

BASE = seeded(0)[0]


class StandIn:
    """Runs that take as many seconds to the first token as the seed says, and a note of which ones were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, scenario: Scenario) -> Run:
        self.asked.append(scenario.seed)
        if scenario.seed == 13:
            raise ZeroDivisionError("unlucky")
        if scenario.seed == 14:
            raise InputError("no trace is called 'x'")
        if scenario.seed == 15:
            return Run(outcome="out_of_memory", why="kv needs 3 MiB, 2 MiB are free")
        request = RequestRecord(request=0, arrival_s=0.0, loaded_s=0.5, first_token_s=float(scenario.seed))
        return Run(outcome="done", requests=(request,), measured={"simulation_s": 1e-9 * len(self.asked)})


def test_a_row_per_point_in_their_order(tmp_path: Path) -> None:
    frame = run_points(seeded(3, 1, 2, 1), tmp_path, 1, run=StandIn())
    assert frame["seed"].tolist() == [3, 1, 2, 1]
    assert frame["ttft_s"].tolist() == [3.0, 1.0, 2.0, 1.0]
    assert frame["key"].tolist() == [scenario_hash(point) for point in seeded(3, 1, 2, 1)]
    assert frame["outcome"].tolist() == ["done"] * 4
    # 80 Mbit/s are 10 MB/s
    assert frame["link.rate_bytes_per_s"].tolist() == [1e7] * 4
    assert frame["link.rtt_s"].tolist() == [0.004] * 4
    assert frame["workload.context"].tolist() == [4096] * 4


def test_only_missing_points_are_run(tmp_path: Path) -> None:
    run = StandIn()
    run_points(seeded(1, 2), tmp_path, 1, run=run)
    steps: list[tuple[int, int]] = []
    frame = run_points(seeded(1, 2, 3, 4), tmp_path, 1, lambda done, of: steps.append((done, of)), run)
    assert run.asked == [1, 2, 3, 4]
    assert steps == [(2, 4), (3, 4), (4, 4)]
    assert frame["ttft_s"].tolist() == [1.0, 2.0, 3.0, 4.0]
    # fewer are asked for: those that are there stay
    assert len(run_points(seeded(2), tmp_path, 1, run=run)) == 1
    assert len(read_points(tmp_path)) == 4
    assert len(run.asked) == 4


def test_no_points_at_all(tmp_path: Path) -> None:
    assert len(run_points([], tmp_path, 1, run=StandIn())) == 0
    assert len(read_points(tmp_path / "nowhere")) == 0


def test_a_failing_point_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    run = StandIn()
    frame = run_points(seeded(13, 14, 15, 16), tmp_path, 1, run=run)
    assert frame["outcome"].tolist() == ["failed", "failed", "out_of_memory", "done"]
    why = frame["why"].tolist()
    assert why[:3] == [
        "ZeroDivisionError: unlucky",
        "no trace is called 'x'",
        "kv needs 3 MiB, 2 MiB are free",
    ]
    assert pd.isna(why[3])
    # Running out of memory is a result: it is not tried again.
    run_points(seeded(13, 14, 15, 16), tmp_path, 1, run=run)
    assert run.asked == [13, 14, 15, 16, 13, 14]


def test_a_changed_kvferry_runs_its_points_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = StandIn()
    monkeypatch.setattr(sweep, "code_version", lambda: "0.0.1+old")
    run_points(seeded(1, 2), tmp_path, 1, run=run)
    monkeypatch.setattr(sweep, "code_version", lambda: "0.0.2+new")
    assert run_points(seeded(1), tmp_path, 1, run=run)["version"].tolist() == ["0.0.2+new"]
    assert run.asked == [1, 2, 1]
    # one row per point; what was not asked for keeps its result and says whose it is
    assert sorted(read_points(tmp_path)["version"]) == ["0.0.1+old", "0.0.2+new"]


def test_the_same_bytes_in_whatever_order_points_came(tmp_path: Path) -> None:
    run_points(seeded(*range(1, 9)), tmp_path / "a", 1, run=StandIn())
    run_points(seeded(8, 3, 5), tmp_path / "b", 1, run=StandIn())
    run_points(seeded(*range(8, 0, -1)), tmp_path / "b", 1, run=StandIn())
    one, two = ((tmp_path / folder / "points.parquet").read_bytes() for folder in "ab")
    assert one == two
    # wall times stand apart
    assert "measured.simulation_s" not in read_points(tmp_path / "a")
    assert list(pd.read_parquet(tmp_path / "a" / "timings.parquet")) == [
        "key",
        "measured.simulation_s",
        "measured.wall_s",
    ]


def test_the_same_bytes_from_one_process_and_from_two(tmp_path: Path) -> None:
    frame = run_points(seeded(1, 2, 3), tmp_path / "two", 2)
    assert frame["outcome"].tolist() == ["done"] * 3
    assert (frame["ttft_s"] > frame["bound_s"]).all()
    run_points(seeded(3, 2, 1), tmp_path / "one", 1)
    one, two = ((tmp_path / folder / "points.parquet").read_bytes() for folder in ("one", "two"))
    assert one == two


def test_settings_lie_flat() -> None:
    found = settings_of(BASE)
    assert found["workload.context"] == 4096
    assert found["device.name"] == "rtx-5080-laptop"
    assert found["device.processors.gpu.kind"] == "gpu"
    assert found["link.outages"] == "[]"
    assert "link.trace" not in found  # not set
    assert not any("source" in column for column in found)
    assert column_of("link.rtt", found) == "link.rtt_s"
    assert column_of("link.rate", found) == "link.rate_bytes_per_s"
    assert column_of("device", found) == "device.name"
    assert column_of("seed", found) == "seed"
    assert column_of("link.speed", found) is None


def row(key: str, **columns: Any) -> dict[str, Any]:
    return {"key": key, "outcome": "done", "why": None, "version": "1", "measured.wall_s": 0.1, **columns}


def stored(folder: Path, values: list[Any], order: list[int], compacted: list[bool]) -> bytes:
    """The table of rows with these values on one axis, added in an order, with a compaction after some of them."""
    with Dataset(folder) as data:
        for n, compact in zip(order, compacted, strict=True):
            data.add(row(f"{n}", **({} if values[n] is None else {"policies.x": values[n]})))
            if compact:
                data.compact()
        data.compact()
    return (folder / "points.parquet").read_bytes()


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([False, 0], ["false", "0.0"]),
        ([7, True, "greedy"], ["7.0", "true", "greedy"]),
        ([5, 6], [5, 6]),
        ([5, 2.5], [5.0, 2.5]),
        ([5, 2.5, "5"], ["5.0", "2.5", "5"]),
        ([True, False], [True, False]),
    ],
)
def test_one_axis_has_one_type(tmp_path: Path, values: list[Any], found: list[Any]) -> None:
    order = list(range(len(values)))
    bytes_ = [stored(tmp_path / str(each), values, order, [each] * len(values)) for each in (True, False)]
    assert bytes_[0] == bytes_[1]
    kept = read_points(tmp_path / "True")["policies.x"].tolist()
    assert kept == found
    assert [type(value) for value in kept] == [type(value) for value in found]


# Whatever a policy's setting may be.
axis_values = st.none() | st.booleans() | st.integers(0, 9) | st.floats(0, 9) | st.sampled_from(["5", "greedy", "5.0"])


@given(st.lists(axis_values, min_size=1, max_size=6), st.data())
def test_the_bytes_do_not_tell_how_rows_came(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], data: st.DataObject
) -> None:
    folder, n = tmp_path_factory.mktemp("data"), len(values)
    order = data.draw(st.permutations(range(n)))
    compacted = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    assert stored(folder / "a", values, list(range(n)), [False] * n) == stored(folder / "b", values, order, compacted)


def test_a_row_is_on_disk_at_once(tmp_path: Path) -> None:
    with Dataset(tmp_path) as data:
        for n in range(3):
            data.add(row(str(n)))
            assert len(read_points(tmp_path)) == n + 1


def test_a_line_that_was_not_finished_is_no_row(tmp_path: Path) -> None:
    with Dataset(tmp_path) as data:
        data.add(row("a"))
        data.add(row("b"))
    (journal,) = (tmp_path / "parts").iterdir()
    whole = journal.read_bytes()
    first = whole.index(b"\n") + 1
    for length, keys in ((0, []), (first - 1, []), (first, ["a"]), (len(whole) - 1, ["a"]), (len(whole), ["a", "b"])):
        journal.write_bytes(whole[:length])
        assert read_points(tmp_path)["key"].tolist() == keys


def test_a_replaced_row_leaves_no_column_behind(tmp_path: Path) -> None:
    with Dataset(tmp_path) as data:
        data.add(row("a", ttft_s=1.0, **{"measured.simulation_s": 0.1}))
        data.compact()
        data.add(row("a", outcome="failed", why="x"))
        assert list(data.compact()) == ["key", "outcome", "why", "version"]


def test_one_sweep_at_a_time(tmp_path: Path) -> None:
    with Dataset(tmp_path), pytest.raises(KvferryError, match="another sweep is writing to"), Dataset(tmp_path):
        pass
    with Dataset(tmp_path):
        pass


def test_rows_of_another_version_are_kept_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    run_points(seeded(1, 2), tmp_path, 1, run=stand_in)
    first = (tmp_path / "points.parquet").read_bytes()
    mine = sweep.code_version()
    for module in ("sweep", "point"):
        monkeypatch.setattr(f"kvferry.analysis.{module}.code_version", lambda: "9.9.9+00000000")
    run_points(seeded(1, 2), tmp_path, 1, run=stand_in)
    earlier = read_earlier(tmp_path)
    assert list(earlier["version"]) == [mine] * 2 and set(earlier["seed"]) == {1, 2}
    assert set(read_points(tmp_path)["version"]) == {"9.9.9+00000000"}
    monkeypatch.undo()
    run_points(seeded(1, 2), tmp_path, 1, run=stand_in)
    assert stand_in.asked == [1, 2, 1, 2]
    assert (tmp_path / "points.parquet").read_bytes() == first
    assert set(read_earlier(tmp_path)["version"]) == {mine, "9.9.9+00000000"}


def test_a_file_stands_in_the_table_wherever_it_lies(tmp_path: Path) -> None:
    rows = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        trace = tmp_path / folder / "walk.csv"
        trace.write_text("time_s,bytes_per_s\n0,1000000\n1,1000000\n")
        link = BASE.link.model_copy(update={"trace": str(trace), "rate_bytes_per_s": None})
        rows.append(settings_of(BASE.model_copy(update={"link": link})))
    assert rows[0] == rows[1]
    digest = hashlib.sha256(hashlib.sha256(trace.read_bytes()).digest()).hexdigest()
    assert rows[0]["link.trace"] == f"{digest[:12]}/walk.csv"
