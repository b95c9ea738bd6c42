"""A cloud that answers alone where problem P has no solution, for several devices. A device's step of 20 ms is more
than users tolerate here, the cloud takes 10 ms for one and 0.1 s for a prompt of 1,000 tokens."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import BY_HAND, CLOUD, columns, only, ran
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.pipelines.record import Run

TAU = {"tolerable_tpot": "15 ms", "output": 100}
# Over a copy path that is as slow as takes 20 ms for the KV of 1,000 tokens.
MOVES_S = 0.020
_COPIES = f"{tiny(BY_HAND).model.kv_bytes_per_token * 1000 / MOVES_S} B/s"
APART = {
    "cloud": None,
    "prefill": changed(CLOUD, device={"memory": {"unified": False, "copy_bytes_per_s": _COPIES}}),
    "decode": CLOUD,
}
MASKS = ("behind-token", "with-token")


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def answered(mask: str, costs: str = "by-hand", seed: int = 0, apart: bool = False, **workload: Any) -> Run:
    run = ran(
        f"policies.assist={{mask: {mask}}}",
        costs=costs, seed=seed, machines=APART if apart else {}, workload={**TAU, **workload},
    )  # fmt: skip
    assert "; the cloud answers by itself" in " ".join(run.notes)
    return run


@pytest.mark.parametrize("devices", [2, 8])
def test_no_prompt_waits_for_the_answers_of_others(devices: int) -> None:
    run = answered("behind-token", devices=devices)
    waits_s = sorted(one.token_times_s[0] - one.arrival_s for one in run.requests)
    # One after the other, with a step of those who are there between two of them.
    first_s = 0.020 + 0.010 + 0.004 + 0.005 + 0.100 + 0.010 + 0.0003
    assert waits_s == pytest.approx([first_s + n * 0.110 for n in range(devices)], abs=0.02)
    assert run.requests == answered("with-token", devices=devices).requests
    cloud = ran(system="cloud-only", workload={**TAU, "devices": devices})
    assert [one.token_times_s for one in run.requests] == [one.token_times_s for one in cloud.requests]


def test_the_first_token_waits_for_the_kv_to_move_as_one_that_helps() -> None:
    alone = {mask: only(answered(mask, apart=True)) for mask in MASKS}
    helped = only(ran("policies.assist={tokens: 5, ratio: 1, mask: behind-token}", machines=APART, workload=TAU))
    assert alone["behind-token"]["first_s"] == pytest.approx(helped["first_s"])
    assert alone["behind-token"]["first_s"] == pytest.approx(alone["with-token"]["first_s"] + MOVES_S)
    assert all(one["pace_s"] != one["pace_s"] for one in alone.values())
    # The others come as they would.
    assert alone["behind-token"]["last_s"] == pytest.approx(alone["with-token"]["last_s"])


@pytest.mark.parametrize("costs", ["by-hand", "crowded"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_queue_is_as_long_as_with_the_papers_message_but_for_the_moves(costs: str, seed: int) -> None:
    queue = {"costs": costs, "seed": seed, "devices": 6, "requests": 12, "spread": 0.5,
             "arrivals": {"rate": "3600 requests/hour"}}  # fmt: skip
    ours, papers = (columns(answered(mask, **queue)) for mask in MASKS)
    assert ours["first_s"] == papers["first_s"]
    ours, papers = (columns(answered(mask, apart=True, **queue)) for mask in MASKS)
    later_s = [a - b for a, b in zip(ours["first_s"], papers["first_s"], strict=True)]
    moves_s = [MOVES_S * prompt / 1000 for prompt in ours["prompt"]]
    assert all(later >= moves - 1e-9 for later, moves in zip(later_s, moves_s, strict=True))
    # Some move behind another.
    assert sum(later_s) <= 1.5 * sum(moves_s)
