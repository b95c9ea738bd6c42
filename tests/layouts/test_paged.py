"""KV blocks in pages: where they lie by hand, and as many apart as in a file without pages."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvferry.layouts.layout import Layout
from kvferry.layouts.paged import PagedLayout

# Two layers of two rows with blocks of 128 B; a page has two blocks of each row, so that three pages hold five.
PAGED = PagedLayout.of(Layout(layers=2, sequences=1, heads=2, blocks=5, block_bytes=100, alignment_bytes=64), 2)


def test_pages_by_hand() -> None:
    assert (PAGED.page_bytes, PAGED.pages, PAGED.file_bytes) == (2 * 2 * 2 * 128, 3, 3 * 1024)
    # Block 3 is the second one of page 1: behind one page, two rows of layer 0 and one row of layer 1.
    offsets, lengths = PAGED.ranges(1, np.array([1, 0]), np.array([3, 4]))
    assert offsets.tolist() == [1024 + (3 * 2 + 1) * 128, 2048 + 2 * 2 * 128]
    assert lengths.tolist() == [128, 128]
    assert PAGED.column(4, np.arange(2))[0].tolist() == [2048 + row * 256 for row in range(4)]


def test_stretches_end_with_their_pages() -> None:
    offsets, lengths = PAGED.stretches(1, 5)
    row = [1024 * page + 2 * 2 * 128 for page in range(3)]
    assert offsets.tolist() == [*row, *(one + 256 for one in row)]
    assert lengths.tolist() == [256, 256, 128] * 2
    # Of a row blocks 1, then 3 and 4.
    offsets, lengths = PAGED.parts(0, [(1, 2), (3, 5)])
    assert offsets.tolist() == [128, 1024 + 128, 2048, 256 + 128, 1024 + 256 + 128, 2048 + 256]
    assert lengths.tolist() == [128] * 6
    assert [len(one) for one in PAGED.parts(0, [])] == [0, 0]


@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    blocks=st.integers(1, 9),
    page=st.integers(1, 4),
    packed=st.booleans(),
)
def test_every_block_has_a_place_of_its_own(layers: int, heads: int, blocks: int, page: int, packed: bool) -> None:
    plain = Layout(
        layers=layers, sequences=1, heads=heads, blocks=blocks, block_bytes=70, alignment_bytes=1 if packed else 64
    )
    paged = PagedLayout.of(plain, page)
    rows, ids = (part.ravel() for part in np.indices((heads, blocks)))
    reads = [paged.reads(layer, rows, ids) for layer in range(layers)]
    begins = np.sort(np.concatenate([one.offsets for one in reads]))
    assert (np.diff(begins) >= paged.stride_bytes).all() and begins[-1] + paged.stride_bytes <= paged.file_bytes
    for layer in range(layers):
        assert (paged.reads_like(reads[0], 0, layer).offsets == reads[layer].offsets).all()
        # All of a layer is what its blocks are, row by row.
        offsets, lengths = paged.stretches(layer, blocks)
        each = [np.arange(begin, begin + n, paged.stride_bytes) for begin, n in zip(offsets, lengths, strict=True)]
        assert (np.concatenate(each) == reads[layer].offsets).all()
        assert (offsets // paged.page_bytes == (offsets + lengths - 1) // paged.page_bytes).all()
