"""Clusters in the file: by hand, and that no layout ever lets two overlap or loses a byte."""

from typing import Any

import numpy as np
import pytest
from fake_machine import even_sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.layouts.cluster_by_cluster import ContiguousLayout
from kvferry.layouts.cluster_layout import ClusterLayout, PlacedClusters
from kvferry.layouts.dual_head import DualHeadLayout
from kvferry.layouts.pieces import Pieces
from kvferry.layouts.pools import PoolLayout
from kvferry.layouts.sequence_order import SequenceLayout
from kvferry.specs.errors import InputError

# One layer of two rows, two clusters of three tokens of 8 B each.
SIZES: dict[str, Any] = {
    "layers": 1,
    "sequences": 2,
    "blocks": 40,
    "first_blocks": 2,
    "block_tokens": 3,
    "token_bytes": 8,
    "alignment_bytes": 16,
    "row_tokens": 100,
}
LAYOUTS: list[tuple[type[ClusterLayout], dict[str, Any]]] = [
    (PoolLayout, {}),
    (PoolLayout, {"spare": 1, "file_spare": 4}),
    (DualHeadLayout, {"most_tokens": 4}),
    (DualHeadLayout, {"most_tokens": 2, "whole_pairs": False, "file_spare": 4}),
    (ContiguousLayout, {"extent": "row"}),
    (ContiguousLayout, {"extent": "layer"}),
    (ContiguousLayout, {"extent": "file"}),
    (SequenceLayout, {}),
]


def placed(kind: type[ClusterLayout], **changes: Any) -> Any:
    """Of even sizes, in the order of their numbers."""
    layout = kind(**{**SIZES, **changes})
    blocks = layout.start()
    sizes = even_sizes(layout.block_tokens * layout.first_blocks + layout.more, layout.first_blocks)
    for layer in range(layout.layers):
        blocks.filled(layer, np.broadcast_to(sizes, (layout.rows, layout.first_blocks)))
    return blocks


def ranges(pieces: Pieces) -> list[tuple[int, int]]:
    return list(zip(pieces.offsets.tolist(), pieces.lengths.tolist(), strict=True))


def moves(change: Pieces) -> list[tuple[int, int, int]]:
    columns = (change.moves.sources, change.moves.targets, change.moves.lengths)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def read(blocks: PlacedClusters, *places: tuple[int, int]) -> list[tuple[int, int]]:
    rows, ids = (np.array(part) for part in zip(*places, strict=True))
    reads = blocks.reads(0, rows, ids)
    return list(zip(reads.offsets.tolist(), reads.lengths.tolist(), strict=True))


def test_pieces_are_written_together_unless_their_layer_has_moved() -> None:
    # Block 1 of row 1 outgrows its pool in both layers, while it is away; then layer 0 gets a token in another row.
    blocks = placed(PoolLayout, layers=2)
    blocks.grow(np.array([0, 1]), np.array([1, 1]), np.array([1, 1]), 3)
    away = [blocks.append(layer, 1, 1, here=False) for layer in (0, 1)]
    assert [len(each.moves) for each in away] == [1, 1]
    turns = Pieces.in_turns([*away, blocks.append(0, 0, 0)])
    assert [moves(turn) for turn in turns] == [[*moves(away[0]), *moves(away[1])], []]
    assert [turn.layers.tolist() for turn in turns] == [[0, 1], [0]]


def test_pools_grow_split_and_move_by_hand() -> None:
    # Pools of 48 B, twice a block of 24 B: row 0 at 0 and 48, row 1 at 96 and 144.
    blocks = placed(PoolLayout)
    assert ranges(blocks.whole(0)) == [(0, 24), (48, 24), (96, 24), (144, 24)]
    # What is read are whole storage blocks; those of two pools that lie apart are two commands.
    assert read(blocks, (0, 0), (0, 1)) == [(0, 32), (48, 32)]
    for at in (120, 128, 136):
        assert ranges(blocks.append(0, 1, 0)) == [(at, 8)]
    # A seventh token takes a pool of 112 B at the end. It is in memory, and is written anew.
    assert ranges(blocks.append(0, 1, 0)) == [(192, 56)]
    assert blocks.counted.moved_bytes == 48
    # Three of them leave for the pool that was left; those that stay are written again, too.
    new, change = blocks.split(0, 1, 0, 4, 3)
    assert (new, ranges(change)) == (2, [(192, 32), (96, 24)])
    # Where it is known that the first three stay, they stay where they are.
    new, change = blocks.split(0, 1, 0, 3, 1, np.array([False, False, False, True]))
    assert (new, ranges(change)) == (3, [(304, 8)])
    assert [blocks.blocks(0, row) for row in range(2)] == [2, 4]
    assert blocks.tokens_of(0, np.array([1, 1, 0]), np.array([0, 2, 1])).tolist() == [3, 3, 3]
    blocks.check()


@pytest.mark.parametrize(("kind", "own"), LAYOUTS)
def test_clusters_of_new_tokens_are_counted_in_bytes(kind: type[ClusterLayout], own: dict[str, Any]) -> None:
    blocks = placed(kind, **own)
    before = blocks.counted.new_bytes
    blocks.open(0, 1, 2)
    assert blocks.counted.new_bytes - before == 2 * 8


def test_page_buffers_take_their_pages_in_each_row_of_each_layer() -> None:
    layout = PoolLayout(**{**SIZES, "layers": 3}, page_bytes=32, page_buffers=2, hot_steps=2)
    # Three layers of two rows, two pages each.
    assert layout.buffer_bytes == 3 * 2 * 2 * 32
    # Hot at once, if that is asked for.
    assert PoolLayout(**SIZES, page_bytes=32, page_buffers=1, hot_steps=1).buffer_bytes == 2 * 32


def test_a_cluster_that_is_away_moves_within_the_file() -> None:
    blocks = placed(PoolLayout, spare=1)
    # A pool of its own 32 B; a fifth token has no room.
    blocks.append(0, 0, 0)
    change = blocks.append(0, 0, 0, here=False)
    assert moves(change) == [(0, 128, 32)]
    assert ranges(change) == [(160, 8)]
    # The move is of the layer that the row is in.
    blocks = placed(PoolLayout, spare=1, layers=2)
    blocks.append(1, 1, 0)
    assert blocks.append(1, 1, 0, here=False).moves.layers.tolist() == [1]


def test_pairs_grow_towards_each_other_by_hand() -> None:
    # A pool of 64 B for each row. Its first cluster is at its beginning, the second one ends with it.
    blocks = placed(DualHeadLayout, most_tokens=4)
    assert ranges(blocks.whole(0)) == [(0, 24), (40, 24), (64, 24), (104, 24)]
    assert blocks.whole(0).down.tolist() == [False, True, False, True]
    assert ranges(blocks.append(0, 0, 0)) == [(24, 8)]
    assert ranges(blocks.append(0, 0, 1)) == [(32, 8)]
    # The pool is full. A cluster that is split frees the place for one more, the other part has a pool of its own.
    new, change = blocks.split(0, 0, 1, 2, 2)
    assert (new, ranges(change)) == (2, [(48, 16), (128, 16)])
    assert not blocks.fits(0, 0, 0, 3)
    # Five tokens fit beside two, and a sixth; a seventh does not. The cluster moves to a pool for seven of its own:
    # the one that is alone has room for four in its half.
    for at in (32, 40):
        assert ranges(blocks.append(0, 0, 0)) == [(at, 8)]
    assert ranges(blocks.append(0, 0, 0)) == [(192, 56)]
    # What comes next pairs with the one that was left alone last: its partner's end of the pool is free.
    new, change = blocks.open(0, 0, 1)
    assert (new, ranges(change), change.down.tolist()) == (3, [(296, 8)], [True])
    blocks.check()


def test_a_part_lies_beside_its_origin_or_what_is_wanted_with_it() -> None:
    # 0 and 1 are a pair, 2 and 3 are; pools of 128 B.
    blocks = placed(DualHeadLayout, first_blocks=4, most_tokens=8)
    assert blocks.split(0, 0, 0, 2, 1)[0] == 4 and list(blocks.alone(0, 0)) == [4]
    # 4 is alone, and not wanted with 5.
    assert blocks.split(0, 0, 2, 2, 1)[0] == 5 and list(blocks.alone(0, 0)) == [4, 5]
    assert read(blocks, (0, 4), (0, 5)) != read(blocks, (0, 4))
    assert blocks.split(0, 0, 1, 2, 1, None, {4})[0] == 6 and list(blocks.alone(0, 0)) == [5]
    assert len(read(blocks, (0, 4), (0, 6))) == 1
    # What it comes from is asked first.
    blocks.append(0, 0, 5, 2)
    assert blocks.split(0, 0, 3, 2, 1)[0] == 7 and list(blocks.alone(0, 0)) == [5, 7]
    assert blocks.split(0, 0, 5, 2, 1, None, {7})[0] == 8 and list(blocks.alone(0, 0)) == [7]
    assert len(read(blocks, (0, 5), (0, 8))) == 1
    blocks.check()


def test_pairs_are_read_as_one_and_neighbours_too() -> None:
    blocks = placed(DualHeadLayout, first_blocks=4, most_tokens=8)
    # Pools of 128 B. 0 and 1 have the first, 2 and 3 the second; between 0 and 1 there are 80 B.
    assert read(blocks, (0, 0), (0, 1)) == [(0, 128)]
    assert blocks.reads(0, np.array([0, 0]), np.array([0, 1])).entries.tolist() == [6]
    # The end of the first pool and the beginning of the second lie against each other.
    assert read(blocks, (0, 2), (0, 1)) == [(96, 64)]
    assert blocks.reads(0, np.array([0, 0]), np.array([2, 1])).entries.tolist() == [6]
    # Two pools whose nearest clusters are not wanted: two commands, two accesses.
    assert blocks.reads(0, np.array([0, 0]), np.array([0, 3])).entries.tolist() == [3, 3]
    assert read(blocks, (0, 0), (0, 2)) == [(0, 32), (128, 32)]
    apart = placed(DualHeadLayout, first_blocks=4, most_tokens=8, whole_pairs=False)
    assert read(apart, (0, 0), (0, 1)) == [(0, 32), (96, 32)]


def test_a_pair_away_keeps_its_direction_as_it_moves() -> None:
    blocks = placed(DualHeadLayout, most_tokens=4)
    blocks.append(0, 0, 0, 2)
    # Eight tokens are in the pool; one more of the second, which is not in memory, moves downwards into a pool's end.
    change = blocks.append(0, 0, 1, here=False)
    assert moves(change) == [(40, 168, 24)]
    assert ranges(change) == [(160, 8)] and change.down.all()
    blocks.check()


def test_what_leaves_does_not_take_the_room_that_what_stays_needs() -> None:
    # One cluster of 7 tokens alone in a pool of 16 (128 B). With two more, 15 stay and one leaves.
    blocks = placed(DualHeadLayout, sequences=1, first_blocks=1, most_tokens=8)
    blocks.append(0, 0, 0, 11)
    _, change = blocks.split(0, 0, 0, 15, 1)
    assert ranges(change) == [(0, 120), (120, 8)]
    # With three more 16 stay: no room is left beside them for the one that leaves, which has a pool of its own.
    blocks = placed(DualHeadLayout, sequences=1, first_blocks=1, most_tokens=8)
    blocks.append(0, 0, 0, 12)
    _new, change = blocks.split(0, 0, 0, 16, 1)
    assert ranges(change) == [(0, 128), (128, 8)]
    blocks.check()


def test_what_lies_behind_a_cluster_moves_by_hand() -> None:
    blocks = placed(ContiguousLayout, extent="row")
    # A row of 100 tokens takes 800 B.
    assert ranges(blocks.whole(0)) == [(0, 24), (24, 24), (800, 24), (824, 24)]
    change = blocks.append(0, 0, 0)
    assert (moves(change), ranges(change)) == ([(24, 32, 24)], [(24, 8)])
    change = blocks.append(0, 0, 1)
    assert (moves(change), ranges(change)) == ([], [(56, 8)])
    assert blocks.counted.moved_bytes == 24
    new, change = blocks.split(0, 0, 0, 3, 2)
    assert (new, moves(change), ranges(change)) == (2, [(32, 40, 32)], [(0, 24), (24, 16)])
    assert read(blocks, (0, 0), (0, 2), (0, 1)) == [(0, 80)]
    blocks.check()


@pytest.mark.parametrize(("extent", "second_layer"), [("layer", 1600), ("file", 96)])
def test_rows_behind_a_cluster_that_grows_move_as_far_as_the_extent_goes(extent: str, second_layer: int) -> None:
    blocks = placed(ContiguousLayout, layers=2, extent=extent)
    # Two rows of two clusters of 24 B in each layer; the second layer's are behind the first's in a file.
    assert ranges(blocks.whole(1))[0] == (second_layer, 24)
    # Both rows of the first layer grow, by 8 B each: what is behind both is pushed twice as far, and read once.
    change = blocks.grow(0, np.array([0, 1]), np.array([0, 1]))
    behind = [(96, 112, 96)] if extent == "file" else []
    assert moves(change) == [(24, 32, 72), *behind]
    assert ranges(change) == [(24, 8), (104, 8)]
    assert blocks.counted.moved_bytes == 72 + 96 * len(behind)
    # The last row of all has room behind it; a cluster that opens in the row before pushes it.
    assert blocks.fits(1, 1, 1) and not blocks.fits(1, 0, 1) and blocks.fits(0, 1, 1) == (extent == "layer")
    begin = second_layer + 16 * len(behind)
    new, change = blocks.open(1, 0, 2)
    assert (new, moves(change), ranges(change)) == (2, [(begin + 48, begin + 64, 48)], [(begin + 48, 16)])
    blocks.check()


def test_tokens_in_their_order_are_read_in_parts_by_hand() -> None:
    blocks = placed(SequenceLayout)
    # Dealt in turn: 0, 2, 4 are the first cluster's, each storage block of 16 B has one of each.
    assert ranges(blocks.whole(0))[:3] == [(0, 8), (8, 8), (16, 8)]
    reads = blocks.reads(0, np.array([0]), np.array([0]))
    assert (reads.offsets.tolist(), reads.lengths.tolist(), reads.entries.tolist()) == ([0], [48], [1, 1, 1])
    assert (reads.pieces.offsets.tolist(), reads.ats.tolist()) == ([0, 16, 32], [0, 16, 32])
    # New tokens come behind all others; a cluster that opens far away is a command of its own.
    blocks.grow(0, np.array([0, 1]), np.array([0, 1]))
    new, change = blocks.open(0, 0, 4)
    assert (new, ranges(change)) == (2, [(56, 8), (64, 8), (72, 8), (80, 8)])
    # Which tokens leave is said, and nothing is written for it.
    new, change = blocks.split(0, 0, 0, 2, 2, np.array([True, False, False, True]))
    assert (new, len(change)) == (3, 0)
    assert blocks.reads(0, np.array([0]), np.array([3])).pieces.offsets.tolist() == [0, 48]
    # One token of each row, then four: of 8 B each. A split brings none.
    assert (blocks.counted.new_bytes, blocks.counted.moved_bytes) == (48, 0)
    # Unless it comes with a new one, which is written. Nobody said which leave: 5 and 11 of 1, 3, 5 and 11.
    new, change = blocks.split(0, 0, 1, 2, 2)
    assert (new, ranges(change), change.blocks.tolist()) == (4, [(88, 8)], [4])
    assert blocks.reads(0, np.array([0]), np.array([1])).pieces.offsets.tolist() == [8, 24]
    assert blocks.counted.new_bytes == 56
    blocks.check()


@pytest.mark.parametrize(("kind", "own"), LAYOUTS)
@pytest.mark.parametrize("buffers", [0, 2])
def test_layers_alike_are_read_as_each_by_itself(kind: type[ClusterLayout], own: dict[str, Any], buffers: int) -> None:
    if kind is SequenceLayout and buffers:
        pytest.skip("clusters have no pages of their own")
    blocks = placed(kind, **own, layers=3, first_blocks=5, page_buffers=buffers)
    layers, rows = np.repeat([0, 1, 2], 2), np.tile([0, 1], 3)
    for more in (0, 0, 3, 1, 1):
        blocks.grow(layers, rows, np.full(6, more))
    for layer in range(3):
        blocks.split(layer, 0, 2, 1, 2)
    wanted = np.array([0, 1, 1, 0, 0]), np.array([5, 3, 0, 0, 1])
    found = blocks.reads_together([(np.array([0, 2]), *wanted)])[0]
    # Beside a layer that wants others, and one that wants nothing.
    others, nothing = tuple(of[:2] for of in wanted), tuple(of[:0] for of in wanted)
    asked = [(np.array([1]), *others), (np.array([1]), *nothing), (np.array([0, 2]), *wanted)]
    other, none, again = blocks.reads_together(asked)
    for one, two in zip(
        [*found, blocks.reads(1, *others), blocks.reads(1, *nothing)], [*again, *other, *none], strict=True
    ):
        assert [of.tolist() for of in (*one.ranges, one.entries)] == [of.tolist() for of in (*two.ranges, two.entries)]
        assert one.pieces.blocks.tolist() == two.pieces.blocks.tolist()
    for layer, reads in zip((0, 2), found, strict=True):
        alone = blocks.reads(layer, *wanted)
        for of, other in ((reads, alone), (reads.pieces, alone.pieces)):
            assert (of.offsets.tolist(), of.lengths.tolist()) == (other.offsets.tolist(), other.lengths.tolist())
        assert reads.entries.tolist() == alone.entries.tolist()
        assert reads.pieces.layers.tolist() == alone.pieces.layers.tolist()
    assert found[0].offsets[0] < found[1].offsets[0]
    assert blocks.reads_together([(np.array([0, 1]), *(of[:0] for of in wanted))])[0][1].entries.tolist() == []


def test_known_members_and_an_order_by_hand() -> None:
    tokens = np.array([[3, 3], [4, 2]])
    sequence = SequenceLayout(**SIZES).start()
    sequence.filled(0, tokens, members=np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 5, 3, 4]]))
    assert sequence.whole(0).blocks.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0]
    contiguous = ContiguousLayout(**SIZES).start()
    contiguous.filled(0, tokens, order=np.array([[1, 0], [0, 1]]))
    whole = contiguous.whole(0)
    assert list(zip(whole.rows.tolist(), whole.blocks.tolist(), strict=True)) == [(0, 1), (0, 0), (1, 0), (1, 1)]
    pairs = DualHeadLayout(**SIZES, most_tokens=4).start()
    pairs.filled(0, tokens, order=np.array([[1, 0], [0, 1]]))
    assert ranges(pairs.whole(0)) == [(0, 24), (40, 24), (64, 32), (112, 16)]
    assert pairs.whole(0).blocks.tolist() == [1, 0, 0, 1]


def test_what_queries_want_together_lies_together() -> None:
    pairs = DualHeadLayout(**{**SIZES, "sequences": 1}, most_tokens=4).start()
    retrieved = np.array([[[0, 2], [0, 2], [1, 3]]])
    pairs.arranged(0, np.array([[3, 3, 3, 3]]), retrieved=retrieved)
    assert pairs.whole(0).blocks.tolist() == [0, 2, 1, 3]
    sequence = SequenceLayout(**{**SIZES, "sequences": 1}).start()
    sequence.arranged(0, np.array([[2, 1]]), np.array([[1, 0, 0]]))
    assert sequence.whole(0).blocks.tolist() == [1, 0, 0]


def test_new_blocks_keep_the_order_of_tokens() -> None:
    sequence = placed(SequenceLayout)
    (change,) = sequence.open_together(0, 0, [1, 2], np.array([1, 0, 1]))
    assert (change.blocks.tolist(), change.firsts.tolist()) == ([3, 2, 3], [0, 0, 1])
    assert ranges(change) == [(48, 8), (56, 8), (64, 8)]
    sequence.check()
    contiguous = placed(ContiguousLayout)
    changes = contiguous.open_together(0, 0, [1, 2], np.array([1, 0, 1]))
    assert [ranges(change) for change in changes] == [[(48, 8)], [(56, 16)]]


def test_pages_are_written_once_they_are_full() -> None:
    # A page of 4 tokens, one buffer in each row; three tokens of each cluster are in the file.
    blocks = placed(PoolLayout, page_bytes=32, page_buffers=1, hot_steps=2, spare=4)
    # Cold: the entry is written as it comes.
    assert ranges(blocks.append(0, 0, 0)) == [(24, 8)]
    # Hot: three tokens more wait for the page, the fourth completes it.
    for _ in range(3):
        assert not len(blocks.append(0, 0, 0))
    assert read(blocks, (0, 0)) == [(0, 32)]
    assert ranges(blocks.append(0, 0, 0)) == [(32, 32)]
    # Another cluster gets hot, and takes the buffer of the one before: what waited there is written.
    assert not len(blocks.append(0, 0, 0))
    assert ranges(blocks.append(0, 0, 1)) == [(120, 8)]
    written = blocks.append(0, 0, 1)
    assert ranges(written) == [(64, 8)] and written.blocks.tolist() == [0]
    # A split writes what waited with the rest.
    blocks.append(0, 0, 1)
    _, change = blocks.split(0, 0, 1, 3, 3)
    assert (change.firsts.tolist(), change.tokens.tolist()) == ([0, 0], [3, 3])


@pytest.mark.parametrize(("kind", "own"), LAYOUTS)
def test_bad_sizes_are_refused(kind: type[ClusterLayout], own: dict[str, Any]) -> None:
    for bad in (12, 0):
        with pytest.raises(ValueError, match=f"page_bytes of {bad} B is no power of two"):
            placed(kind, **own, page_bytes=bad)
        with pytest.raises(ValueError, match=f"block size of {bad} B is no power of two"):
            placed(kind, **own, alignment_bytes=bad)
    with pytest.raises(ValueError, match="page_buffers"):
        placed(kind, **own, page_buffers=-1)
    blocks = placed(kind, **own, blocks=3)
    for stay, leave in ((0, 3), (3, 0), (1, 1)):
        with pytest.raises(ValueError, match="a block of 3 tokens cannot be split"):
            blocks.split(0, 0, 0, stay, leave)
    blocks.split(0, 0, 0, 2, 1)
    with pytest.raises(InputError, match="a row has room for 3 blocks, and has them"):
        blocks.split(0, 0, 1, 2, 1)


def grow_on(blocks: PlacedClusters) -> None:
    for _ in range(40):
        blocks.append(0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "own", "what"),
    [
        (PoolLayout, {"file_spare": 1, "blocks": 3}, "has no room for a pool"),
        (DualHeadLayout, {"most_tokens": 1, "blocks": 3, "file_spare": 1}, "has no room for a pool"),
        (ContiguousLayout, {"row_tokens": 12}, "a row has room for 12 tokens"),
        (SequenceLayout, {"row_tokens": 12}, "a row has room for 12 tokens"),
    ],
)
def test_a_full_file_is_refused(kind: type[ClusterLayout], own: dict[str, Any], what: str) -> None:
    blocks = placed(kind, **own)
    with pytest.raises(InputError, match=what):
        grow_on(blocks)


def test_the_check_sees_blocks_that_overlap() -> None:
    blocks = placed(PoolLayout)
    blocks._places.at[0, 1] = 16
    with pytest.raises(AssertionError):
        blocks.check()
    pairs = placed(DualHeadLayout, most_tokens=4)
    pairs._shared.partner[0, 1] = -1
    with pytest.raises(AssertionError):
        pairs.check()


class File:
    """A file that holds a number per byte, and what each block should hold: entries in the order in which they came."""

    def __init__(self, blocks: PlacedClusters) -> None:
        self.blocks, self.unit = blocks, blocks.like.token_bytes
        self.bytes = np.full(blocks.like.file_bytes, -1)
        self.held: dict[tuple[int, int, int], list[int]] = {}
        self._numbers = iter(range(1_000_000))

    def fresh(self, tokens: int) -> list[int]:
        return [next(self._numbers) for _ in range(tokens)]

    def carry_out(self, change: Pieces) -> None:
        """First all that moves, which is read before it is written."""
        moved = change.moves
        leaving = [self.bytes[at : at + n].copy() for at, n in zip(moved.sources, moved.lengths, strict=True)]
        for at, n, data in zip(moved.targets, moved.lengths, leaving, strict=True):
            self.bytes[at : at + n] = data
        for layer in range(self.blocks.like.layers):
            self.write(change.of(np.array([layer])))

    def write(self, pieces: Pieces) -> None:
        for n in range(len(pieces)):
            place = int(pieces.layers[n]), int(pieces.rows[n]), int(pieces.blocks[n])
            entries = self.held[place][pieces.firsts[n] : pieces.firsts[n] + pieces.tokens[n]]
            assert len(entries) == pieces.tokens[n]
            self.bytes[pieces.offsets[n] : pieces.offsets[n] + pieces.lengths[n]] = np.repeat(
                entries[::-1] if pieces.down[n] else entries, self.unit
            )

    def check(self) -> None:
        """Every layer's blocks, read together as a step reads them, come back but for what waits in page buffers."""
        for layer in range(self.blocks.like.layers):
            places = [(row, block) for of, row, block in self.held if of == layer]
            rows, ids = (np.array(part) for part in zip(*places, strict=True))
            reads = self.blocks.reads(layer, rows, ids)
            assert (reads.offsets[1:] > (reads.offsets + reads.lengths)[:-1]).all()
            data = np.concatenate([self.bytes[at : at + n] for at, n in zip(reads.offsets, reads.lengths, strict=True)])
            found: dict[tuple[int, int], list[int]] = {place: [] for place in places}
            assert reads.pieces is not None and reads.entries is not None
            assert reads.entries.sum() == reads.pieces.tokens.sum()
            for n, at in enumerate(reads.ats):
                entries = data[at : at + reads.pieces.lengths[n]][:: self.unit].tolist()
                found[int(reads.pieces.rows[n]), int(reads.pieces.blocks[n])] += (
                    entries[::-1] if reads.pieces.down[n] else entries
                )
            for place, entries in found.items():
                expected = self.held[layer, *place]
                waiting = len(expected) - len(entries)
                assert entries == expected[: len(entries)]
                buffered = getattr(self.blocks, "_buffers", None)
                assert waiting == 0 if buffered is None else 0 <= waiting <= self.blocks.like.page // self.unit
                assert len(expected) == self.blocks.tokens(layer, *place)
        entry_bytes = self.unit * sum(map(len, self.held.values()))
        assert self.blocks.entry_bytes == entry_bytes
        assert self.blocks.space_overhead == pytest.approx(self.blocks.taken_bytes / entry_bytes - 1)


@pytest.mark.parametrize(("kind", "own"), LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_extents_never_overlap_and_bytes_come_back(
    kind: type[ClusterLayout], own: dict[str, Any], data: st.DataObject
) -> None:
    """Through any sequence of appends, splits and moves, a file that is written as the layout says holds every block's
    entries in their order."""
    layers, rows = data.draw(st.integers(1, 2), "layers"), data.draw(st.integers(1, 2), "rows")
    unit, alignment = data.draw(st.sampled_from([1, 3, 8]), "token"), data.draw(st.sampled_from([1, 4, 16]), "block")
    sizes = {"layers": layers, "sequences": rows, "token_bytes": unit, "alignment_bytes": alignment, "row_tokens": 200}
    if kind is not SequenceLayout and data.draw(st.booleans(), "buffers"):
        sizes |= {"page_buffers": data.draw(st.integers(1, 2)), "page_bytes": 16, "hot_steps": 3}
    if "file_spare" in own:
        sizes["file_spare"] = 20
    blocks = kind(**{**SIZES, **own, **sizes}).start()
    file = File(blocks)
    for layer in range(layers):
        n = data.draw(st.integers(1, 4), "clusters")
        tokens = np.array([[data.draw(st.integers(1, 6)) for _ in range(n)] for _ in range(rows)])
        order = np.array([data.draw(st.permutations(range(n))) for _ in range(rows)])
        blocks.filled(layer, tokens, order)
        for row in range(rows):
            file.held |= {(layer, row, block): file.fresh(int(tokens[row, block])) for block in range(n)}
        file.write(blocks.whole(layer))
    for _ in range(data.draw(st.integers(0, 25), "steps")):
        place = data.draw(st.sampled_from(sorted(file.held)), "place")
        tokens = len(file.held[place])
        action = data.draw(st.sampled_from(["append", "append", "split", "open", "pair"]), "action")
        beside = sorted(other for of, row, other in file.held if (of, row) == place[:2] and other != place[2])
        if action == "split" and tokens > 1:
            came = data.draw(st.integers(0, 2), "came")
            leaves = np.array(
                data.draw(st.permutations([True, False] + [data.draw(st.booleans())] * (tokens + came - 2)))
            )
            whole = file.held[place] + file.fresh(came)
            leave = int(leaves.sum())
            known = kind is SequenceLayout or data.draw(st.booleans(), "known")
            new, change = blocks.split(*place, len(whole) - leave, leave, leaves if known else None)
            file.held[place] = [one for one, goes in zip(whole, leaves, strict=True) if not goes]
            file.held[place[0], place[1], new] = [one for one, goes in zip(whole, leaves, strict=True) if goes]
        elif action == "pair" and kind is DualHeadLayout and beside:
            other = data.draw(st.sampled_from(beside), "other")
            change = Pieces.none(unit)
            if blocks.partners(np.array([place[0]]), np.array([place[1]]))[0, other] != place[2]:
                change = blocks.pair(*place, other)
                assert blocks.partners(np.array([place[0]]), np.array([place[1]]))[0, other] == place[2]
        elif action == "open":
            new, change = blocks.open(place[0], place[1], 2)
            file.held[place[0], place[1], new] = file.fresh(2)
        else:
            more = data.draw(st.integers(1, 3), "more")
            file.held[place] += file.fresh(more)
            change = blocks.append(*place, more, data.draw(st.booleans(), "here"))
        file.carry_out(change)
        blocks.check()
        file.check()
    # Bytes that are counted: nothing is written for less than a page.
    assert blocks.counted.written_bytes >= blocks.counted.moved_bytes if not blocks.like.page_buffers else True
    assert blocks.taken_bytes <= blocks.like.file_bytes
