"""The batcher, turn by turn, by hand."""

import pytest

from kvferry.policies.decode.batcher import Batcher, Continuous, LockStep, Turn
from kvferry.policies.decode.pages import PageTable
from kvferry.specs.errors import KvferryError


def turns(batcher: Batcher) -> list[Turn]:
    """All until nothing is left."""
    found = []
    while (turn := batcher.turn()) is not None:
        found.append(turn)
        batcher.pages.check()
        batcher.done(turn)
    return found


@pytest.mark.parametrize(
    ("prefill_tokens", "together"),
    [(None, [(0, 1, 2, 3)]), (20, [(0, 1), (2,), (3,)]), (40, [(0, 1), (2, 3)]), (1, [(0,), (1,), (2,), (3,)])],
)
def test_prompts_are_prefilled_together(prefill_tokens: int | None, together: list[tuple[int, ...]]) -> None:
    batcher = Batcher(pages=100, slots=4, batching=Continuous(prefill_tokens=prefill_tokens))
    for sequence, context in enumerate((10, 10, 30, 10)):
        batcher.arrive(sequence, context, output=2)
    *prefills, decode = turns(batcher)
    assert [(turn.kind, turn.sequences) for turn in prefills] == [("prefill", sequences) for sequences in together]
    assert decode == Turn("decode", (0, 1, 2, 3), (11, 11, 31, 11), ())


def test_a_slot_is_released_at_the_end_of_a_request() -> None:
    batcher = Batcher(pages=100, slots=2)
    for sequence, output in enumerate((3, 2, 2)):
        batcher.arrive(sequence, 10 + sequence, output)
    assert turns(batcher)[1:] == [
        Turn("decode", (0, 1), (11, 12), ()),
        Turn("prefill", (2,), (12,), (1,)),
        Turn("decode", (0, 2), (12, 13), ()),
    ]


def test_in_lock_step_nobody_joins_a_batch_that_decodes() -> None:
    batcher = Batcher(pages=100, slots=2, batching=LockStep())
    for sequence, output in enumerate((3, 2, 2)):
        batcher.arrive(sequence, 10 + sequence, output)
    assert turns(batcher)[1:] == [
        Turn("decode", (0, 1), (11, 12), ()),
        Turn("decode", (0,), (12,), (1,)),
        Turn("prefill", (2,), (12,), (0,)),
        Turn("decode", (2,), (13,), ()),
    ]


def test_the_last_gives_way_when_no_page_is_free() -> None:
    # Three pages of 16 tokens. The first request takes its second page when it has 17 tokens, and the other one, which
    # has two by then, is prefilled again with the two tokens that it has said.
    batcher = Batcher(pages=3, slots=2)
    batcher.arrive(0, context=15, output=4)
    batcher.arrive(1, context=16, output=3)
    assert turns(batcher) == [
        Turn("prefill", (0, 1), (15, 16), ()),
        Turn("decode", (0, 1), (16, 17), ()),
        Turn("decode", (0,), (17,), (1,)),
        Turn("decode", (0,), (18,), ()),
        Turn("prefill", (1,), (18,), (0,)),
    ]
    assert batcher.preemptions == 1
    assert batcher.pages.peak_pages == 3


def test_a_later_request_does_not_overtake_one_that_waits_for_pages() -> None:
    batcher = Batcher(pages=4, slots=3)
    for sequence, context in enumerate((31, 40, 5)):
        batcher.arrive(sequence, context, output=2)
    assert [turn.sequences for turn in turns(batcher)] == [(0,), (0,), (1, 2), (1, 2)]


def test_what_could_never_end_is_refused() -> None:
    batcher = Batcher(pages=2, slots=1)
    batcher.arrive(0, context=30, output=2)
    with pytest.raises(ValueError, match="33 tokens do not fit 2 pages"):
        batcher.arrive(1, context=30, output=3)


def test_pages_by_hand() -> None:
    pages = PageTable(3)
    pages.make_room(7, 17)
    pages.make_room(7, 5)
    pages.make_room(8, 1)
    assert (pages.of(7), pages.of(8), pages.of(9), pages.free_pages) == ([0, 1], [2], [], 0)
    assert pages.has_room(7, 32)
    assert not pages.has_room(7, 33)
    with pytest.raises(KvferryError, match="sequence 7 needs 1 more pages, 0 of 3 are free"):
        pages.make_room(7, 33)
    pages.release(7)
    pages.release(7)
    pages.check()
    assert (pages.free_pages, pages.peak_pages) == (2, 3)
