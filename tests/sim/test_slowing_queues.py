"""Queues that slow each other, by hand."""

import pytest

from kvferry.sim.slowing_queues import Piece, SlowingQueues

HALF = {"processor": {"storage": 0.5}, "storage": {"processor": 0.5}}


def test_each_gets_on_at_its_speed_beside_the_other() -> None:
    queues = SlowingQueues(HALF)
    read = queues.hand_over(Piece("storage", 10.0))
    op = queues.hand_over(Piece("processor", 3.0, not_before_s=2.0))
    # Alone until 2 s; then half as fast: 3 s of work take 6. 8 less 3 s of reading are left at 8 s.
    assert queues.work_off(read) == 13.0
    assert (op.start_s, op.end_s) == (2.0, 8.0)


def test_a_dispatch_slows_others_and_is_not_slowed() -> None:
    queues = SlowingQueues(HALF)
    read = queues.hand_over(Piece("storage", 4.0))
    op = queues.hand_over(Piece("processor", 1.0, fixed_s=2.0))
    # Dispatched at 2 s, when 1 s is read; both half as fast until 4 s, when another is.
    assert (queues.work_off(op), queues.work_off(read)) == (4.0, 6.0)


def test_a_queue_keeps_its_order_and_a_lane_has_one_at_a_time() -> None:
    queues = SlowingQueues({})
    op = queues.hand_over(Piece("processor", 5.0))
    first = queues.hand_over(Piece("storage", 2.0, [op], lane="Read"))
    behind = queues.hand_over(Piece("storage", 1.0, lane="Write"))
    last = queues.hand_over(Piece("storage", 1.0, lane="Read"))
    # A write that waits for nothing begins with the read before it, and the next read when that ends.
    assert queues.work_off(last) == 8.0
    assert (first.start_s, behind.start_s, last.start_s) == (5.0, 5.0, 7.0)


def test_what_is_under_way_goes_on_later() -> None:
    queues = SlowingQueues(HALF)
    written = queues.hand_over(Piece("storage", 4.0))
    assert queues.work_off(queues.hand_over(Piece("processor", 1.0))) == 2.0
    assert written.end_s is None
    # 3 s are left at 2 s, half as fast for 2 s.
    queues.work_off(queues.hand_over(Piece("processor", 1.0)))
    assert queues.work_off(written) == pytest.approx(6.0)
