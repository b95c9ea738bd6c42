"""Where a layer's cached clusters lie while other layers compute."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvferry.layouts.swap_area import SwapArea


def area(slots: int = 12, token_bytes: int = 4, alignment_bytes: int = 16) -> SwapArea:
    return SwapArea(
        layer=3,
        offset=160,
        slots=slots,
        rows=2,
        blocks=4,
        token_bytes=token_bytes,
        alignment_bytes=alignment_bytes,
    )


def keep(of: SwapArea, **tokens: int) -> list[tuple[int, int]]:
    """Keep such clusters, r0b1=2 for two entries of block 1 of row 0: what is written."""
    places = [(int(name[1]), int(name[3]), n) for name, n in tokens.items()]
    rows, blocks, sizes = (np.array(of_places, np.int64) for of_places in zip(*places, strict=True))
    (offsets, lengths), _ = of.keep(rows, blocks, sizes)
    of.check()
    return list(zip(offsets.tolist(), lengths.tolist(), strict=True))


def read(of: SwapArea) -> list[tuple[int, int, int, int]]:
    """Row, block, entry and slot of what is read."""
    reads = of.reads()
    assert reads is not None and reads.pieces is not None and reads.offsets.tolist() == [160]
    pieces = reads.pieces
    slots = (pieces.offsets - 160) // 4
    columns = (pieces.rows, pieces.blocks, pieces.firsts, slots)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_clusters_by_hand() -> None:
    # Four entries of 4 B to a storage block of 16 B.
    of = area()
    assert of.reads() is None
    # Slots 0 and 1 of one cluster, 2 to 4 of another: two storage blocks.
    assert keep(of, r0b1=2, r1b0=3) == [(160, 32)]
    assert read(of) == [(0, 1, 0, 0), (0, 1, 1, 1), (1, 0, 0, 2), (1, 0, 1, 3), (1, 0, 2, 4)]
    # Nothing has changed.
    assert keep(of, r0b1=2, r1b0=3) == []
    # One has left: the first free slots are taken by what another one has more, and a third.
    assert keep(of, r1b0=4, r1b2=2) == [(160, 32)]
    assert read(of) == [(1, 0, 0, 2), (1, 0, 1, 3), (1, 0, 2, 4), (1, 0, 3, 0), (1, 2, 0, 1), (1, 2, 1, 5)]
    reads = of.reads()
    # Six slots of 24 B in two storage blocks.
    assert reads is not None and reads.lengths.tolist() == [32]
    assert reads.entries is None
    # What has other entries now is not there any more, and is written as a whole when it is kept again.
    of.give_up(np.array([1]), np.array([0]))
    assert read(of) == [(1, 2, 0, 1), (1, 2, 1, 5)]
    assert keep(of, r1b0=2, r1b2=2) == [(160, 16)]


def test_entries_that_do_not_fill_storage_blocks() -> None:
    # Entries of 12 B in storage blocks of 16: the second one lies in two of them.
    of = area(token_bytes=12)
    assert keep(of, r0b0=1) == [(160, 16)]
    assert keep(of, r0b0=2) == [(160, 32)]
    _, pieces = of.keep(np.array([0]), np.array([0]), np.array([3]))
    # Entry 2 lies from 24 to 36 behind the beginning; with it entry 1, which shares a storage block.
    assert pieces.firsts.tolist() == [1, 2] and pieces.offsets.tolist() == [172, 184]


@given(st.data())
def test_an_area_has_what_was_kept_last(data: st.DataObject) -> None:
    of, sizes = area(slots=24), np.zeros((2, 4), np.int64)
    file = np.full((24, 3), -1)
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            gone = data.draw(st.integers(0, 7))
            of.give_up(np.array([gone // 4]), np.array([gone % 4]))
            sizes[gone // 4, gone % 4] = 0
        held = np.array(data.draw(st.lists(st.booleans(), min_size=8, max_size=8)))
        more = np.array(data.draw(st.lists(st.integers(0, 3), min_size=8, max_size=8)))
        wanted = np.where(held, np.minimum(sizes.ravel() + more, 3), 0).reshape(2, 4)
        rows, blocks = np.nonzero(wanted)
        (offsets, lengths), pieces = of.keep(rows, blocks, wanted[rows, blocks])
        of.check()
        assert (of.entries == wanted).all()
        sizes = wanted
        # A file that is written in whole storage blocks, of four slots each.
        for begin, n_bytes in zip((offsets - 160).tolist(), lengths.tolist(), strict=True):
            assert begin % 16 == n_bytes % 16 == 0
            file[begin // 4 : (begin + n_bytes) // 4] = -1
        file[(pieces.offsets - 160) // 4] = np.stack([pieces.rows, pieces.blocks, pieces.firsts], 1)
        reads = of.reads()
        found = (
            set()
            if reads is None or reads.pieces is None
            else {tuple(file[slot].tolist()) for slot in ((reads.pieces.offsets - 160) // 4).tolist()}
        )
        assert found == {(r, b, n) for r, b in np.ndindex(2, 4) for n in range(wanted[r, b])}
