"""What planners price: the pipeline's own stages, timed by hand."""

import pytest
from decoding import roles_of

from kvferry.pipelines.decoding.plan import step_of
from kvferry.pipelines.decoding.timetable import Timetable, idle_s
from kvferry.policies.decode.stages import Key, Stage, before_pass

SECONDS = {"select": 1, "look_up": 2, "bring": 10, "bring_all": 10, "attend": 3, "feed_forward": 4, "next_token": 5}


def ends(system: str, layers: int, beside: float = 1.0, **policies: bool) -> dict[str, float]:
    table = Timetable(step_of(roles_of(system, **policies), layers))
    times = table.times(SECONDS, beside)
    return {f"{stage.kind} {stage.layer}": times[n][1] for n, stage in enumerate(table.stages)}


def test_reads_ahead_by_hand() -> None:
    # Select and look up 3, read until 13; layer 1's from 13 to 16, read until 26; layer 0 computes from 16 to 23,
    # layer 1 from 26 to 33, head 38.
    found = ends("kvswap", 2)
    assert (found["bring 0"], found["bring 1"], found["feed_forward 0"]) == (13, 26, 23)
    assert found["next_token 0"] == 38


def test_reads_slow_computing_by_hand() -> None:
    # Layer 0 computes from 16 on, at half its speed while layer 1 is read: 5 of 7 s done at 26, all at 28.
    found = ends("kvswap", 2, beside=0.5)
    assert (found["attend 0"], found["feed_forward 0"], found["next_token 0"]) == (22, 28, 40)


def test_own_queries_by_hand() -> None:
    # 3 + 10 + 7 per layer.
    assert ends("kvswap", 2, ahead=False)["next_token 0"] == 45


def test_everything_read_by_hand() -> None:
    # Reads follow each other: 10, 20, 30; the last layer computes then.
    assert ends("flexgen", 3)["next_token 0"] == 42


def test_one_choice_before_the_pass_by_hand() -> None:
    def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
        return [Stage("look_up", layer), Stage("bring", layer, (("look_up", layer),))]

    stages = before_pass(Stage("retrieve", 0, awaited=True), fetch, "bring", 2)
    # Retrieve 6, look up 8 and 10; read from 8 to 18 and 28; layer 0 computes from 18 to 25, layer 1 from 28 to 35.
    times = Timetable(stages).times({**SECONDS, "retrieve": 6}, 1.0)
    assert [end for _, end in times] == [6, 8, 18, 10, 28, 21, 25, 31, 35]


def test_idle_time_by_hand() -> None:
    assert idle_s((2, 10), [(0, 3), (4, 5), (8, 20)]) == pytest.approx(1 + 3)
    assert idle_s((2, 10), []) == 8
    assert idle_s((2, 10), [(11, 12)]) == 8
    assert idle_s((2, 10), [(0, 6), (6, 11)]) == 0
