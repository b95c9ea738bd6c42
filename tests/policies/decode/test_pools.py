"""Blocks of any size in the file: by hand, and that none ever overlaps another or loses a byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.policies.decode.pools import PoolLayout, Pools
from kvferry.specs.errors import InputError


def pools(**changes: int) -> Pools:
    sizes = {
        "layers": 1,
        "sequences": 2,
        "blocks": 40,
        "first_blocks": 2,
        "block_tokens": 3,
        "token_bytes": 10,
        "alignment_bytes": 20,
    }
    return PoolLayout(**{**sizes, **changes}).start()


def ranges(found: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(*(part.tolist() for part in found), strict=True))


def test_blocks_grow_split_and_move_by_hand() -> None:
    # Pools of 60 B, twice a block of 30 B: row 0 at 0 and 60, row 1 at 120 and 180.
    blocks = pools()
    assert ranges(blocks.stretches(0, 2)) == [(0, 40), (60, 40), (120, 40), (180, 40)]
    # The fourth token ends the storage block from 20 on, the fifth begins the one from 40 on; the pool holds six.
    assert ranges(blocks.append(0, 1, 0)) == [(140, 20)]
    assert ranges(blocks.append(0, 1, 0)) == [(160, 20)]
    assert ranges(blocks.append(0, 1, 0)) == [(160, 20)]
    # Seven take a pool of 140 B at the end, and are written as a whole.
    assert ranges(blocks.append(0, 1, 0)) == [(240, 80)]
    # Three of them leave: 60 B, for which the pool is there that was left.
    new, written = blocks.split(0, 1, 0, 4, 3)
    assert (new, ranges(written)) == (2, [(240, 40), (120, 40)])
    rows, ids = np.array([1, 1, 0]), np.array([0, 2, 1])
    assert blocks.tokens_of(0, rows, ids).tolist() == [4, 3, 3]
    assert ranges(blocks.ranges(0, rows, ids)) == [(240, 40), (120, 40), (60, 40)]
    assert [blocks.blocks(0, row) for row in range(2)] == [2, 3]
    # Only one row has a third block.
    assert ranges(blocks.stretches(0, 3)) == [(0, 40), (60, 40), (240, 40), (180, 40), (120, 40)]
    blocks.check()


def test_a_split_leaves_something_in_both() -> None:
    for stay, leave in ((3, 0), (0, 3), (1, 1)):
        with pytest.raises(ValueError, match=f"a block of 3 tokens cannot be split into {stay} and {leave}"):
            pools().split(0, 0, 0, stay, leave)


def test_a_full_file_is_refused() -> None:
    blocks = pools(blocks=3, file_spare=1)
    blocks.split(0, 0, 0, 2, 1)
    blocks.split(0, 1, 0, 2, 1)
    with pytest.raises(InputError, match="a row has room for 3 blocks, and has them"):
        blocks.split(0, 0, 1, 2, 1)
    # Four pools of 60 B and two of 20 B in 360 B.
    with pytest.raises(InputError, match="the file of 360 B has no room for a pool of 200 B"):
        blocks.append(0, 0, 1, 7)


def test_the_check_sees_pools_that_overlap() -> None:
    blocks = pools()
    blocks._offsets[0, 0, 1] = 20
    with pytest.raises(AssertionError):
        blocks.check()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_extents_never_overlap_and_every_byte_is_written(data: st.DataObject) -> None:
    """A file that is written where the layout says holds every block's tokens, whatever happened to it."""
    layers, rows = data.draw(st.integers(1, 2), "layers"), data.draw(st.integers(1, 2), "rows")
    token_bytes, alignment_bytes = (
        data.draw(st.integers(1, 9), "token"),
        data.draw(st.sampled_from([1, 4, 16]), "block"),
    )
    blocks = pools(layers=layers, sequences=rows, token_bytes=token_bytes, alignment_bytes=alignment_bytes)
    file = np.full(100_000, -1)
    # What each block holds: a number for each byte, never twice.
    held: dict[tuple[int, int, int], list[int]] = {}
    numbers = iter(range(1_000_000))

    def fresh(tokens: int) -> list[int]:
        return [next(numbers) for _ in range(tokens * token_bytes)]

    def write(found: tuple[np.ndarray, np.ndarray]) -> None:
        """Of each storage block in the ranges, what the blocks have there; what lies between is not looked at."""
        for begin, length in ranges(found):
            assert begin % alignment_bytes == length % alignment_bytes == 0
            for place, content in held.items():
                at = int(blocks.ranges(place[0], np.array([place[1]]), np.array([place[2]]))[0][0])
                first, last = max(begin, at), min(begin + length, at + len(content))
                if first < last:
                    file[first:last] = content[first - at : last - at]

    for layer in range(layers):
        held |= {(layer, row, block): fresh(3) for row in range(rows) for block in range(2)}
        write(blocks.stretches(layer, 2))
    for _ in range(data.draw(st.integers(0, 25), "steps")):
        place = data.draw(st.sampled_from(sorted(held)), "place")
        tokens = len(held[place]) // token_bytes
        if data.draw(st.booleans(), "split") and tokens > 1:
            leaving = data.draw(st.integers(1, tokens - 1), "leaving")
            came = data.draw(st.integers(0, 4), "came")
            new, written = blocks.split(*place, tokens + came - leaving, leaving)
            held[place] += fresh(came)
            cut = leaving * token_bytes
            held[place[0], place[1], new], held[place] = held[place][:cut], held[place][cut:]
        else:
            more = data.draw(st.integers(1, 4), "more")
            held[place] += fresh(more)
            written = blocks.append(*place, more)
        write(written)
        blocks.check()
    for (layer, row, block), content in held.items():
        (offset,), (length,) = blocks.ranges(layer, np.array([row]), np.array([block]))
        assert len(content) <= length
        assert file[offset : offset + len(content)].tolist() == content
