"""Whose prompt is read next, piece by piece. Times as in test_by_hand: what is sent at 0 is taken in at 15 ms, 500
tokens take 50 ms, an answer without a mask 11.1 ms more."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import APART, BY_HAND, CLOUD
from by_hand import by_hand
from held import engine_bytes
from played_devices import ServedCloud, until
from tiny import changed, tiny

PIECES = "name: slots, chunk_tokens: 500, alone_tokens: 500"
ANSWERED_S = 0.010 + 1100e-6


@pytest.fixture(autouse=True, scope="module")
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def cloud(order: str, **changes: Any) -> ServedCloud:
    return ServedCloud(f"{{{PIECES}, prompts: {order}}}", **changes)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("order", "short_s", "long_s"), [("shortest", 0.265, 1.115), ("first-come", 1.115, 1.015)])
def test_a_short_prompt_waits_for_a_piece_of_a_long_one_before_each_of_its_own(
    order: str, short_s: float, long_s: float, apart: bool
) -> None:
    served = cloud(order, **({"machines": APART} if apart else {}))
    # Twenty pieces from 15 ms on, and two of a prompt that is taken in at 95: the long one's second piece ends at 115,
    # its third at 215, between the short one's.
    long = served.asks(0.0, prompt=10_000, tokens=1)
    short = served.asks(0.080, prompt=1000, tokens=1)
    until(served, 5.0)
    assert short.first_s == pytest.approx(short_s + ANSWERED_S)
    assert long.first_s == pytest.approx(long_s + ANSWERED_S)
    assert served.holds_nothing()


@pytest.mark.parametrize("order", ["shortest", "first-come"])
def test_equal_prompts_are_read_in_order_of_arrival(order: str) -> None:
    served = cloud(order)
    asked = [served.asks(0.0, prompt=1000, tokens=1) for _ in range(4)]
    until(served, 5.0)
    assert [one.first_s for one in asked] == pytest.approx([0.015 + 0.1 * n + ANSWERED_S for n in (1, 2, 3, 4)])


def test_a_long_prompt_ends_however_many_short_ones_come() -> None:
    served = cloud("shortest")
    # Six pieces of it. Every 50 ms another prompt of one piece: enough to keep the cloud busy by themselves.
    long = served.asks(0.0, prompt=3000, tokens=1)
    short = [served.asks(0.02 + 0.05 * n, prompt=500, tokens=1) for n in range(1, 60)]
    until(served, 10.0)
    # Its pieces end at 65, 115, 215, 315 and 415 ms, with another's between; the last one follows at once, as it is as
    # short then as they are, and was there before.
    assert long.first_s == pytest.approx(0.465 + ANSWERED_S)
    assert all(one.first_s is not None for one in short)
    assert served.holds_nothing()


def test_memory_goes_to_the_prompt_that_lacked_it_first() -> None:
    alike = tiny(changed(BY_HAND, workload={"prompt": 10_000, "output": 3000}))
    room_bytes = engine_bytes(alike, "cloud") + 3000 * alike.model.kv_bytes_per_token
    device = {**CLOUD["device"], "memory": {"capacity_bytes": f"{room_bytes} B"}}
    served = cloud("shortest", machines={**APART, "prefill": {**CLOUD, "device": device}})
    # Room for the KV of 3,000 tokens. The second lacks it while the first is read, and short ones that come later, each
    # of which would find room, do not take it away again and again.
    first = served.asks(0.0, prompt=2000, tokens=1)
    second = served.asks(0.010, prompt=2500, tokens=1)
    short = [served.asks(0.05 * n, prompt=1000, tokens=1) for n in range(1, 40)]
    until(served, 20.0)
    assert first.first_s is not None
    assert second.first_s is not None
    # Beside the first, one piece of each at most goes before the second's turn comes: it lacks memory from then on.
    assert second.first_s < sorted(one.first_s or 0.0 for one in short)[12]
    assert served.holds_nothing()
