"""Byte ranges of a storage file: cheap to make, whatever they come as."""

import numpy as np
import pytest

from kvferry.machine.ops import Extents


def test_sequences_are_ranges_and_know_their_bytes() -> None:
    extents = Extents(offsets=(0, 9000), lengths=[1000, 2000])
    assert extents.n_bytes == 3000
    assert list(extents) == [(0, 1000), (9000, 2000)]
    assert len(extents) == 2
    offsets, lengths = extents.arrays
    assert (offsets.dtype, lengths.dtype) == (np.int64, np.int64)
    assert (offsets.tolist(), lengths.tolist()) == ([0, 9000], [1000, 2000])


def test_arrays_are_taken_as_they_are() -> None:
    offsets, lengths = np.array([4096, 0]), np.array([512, 512])
    extents = Extents(offsets, lengths)
    assert extents.arrays[0] is offsets
    assert extents.arrays[1] is lengths
    # The system's calls, and bytes(n_bytes), want plain ints.
    assert {type(number) for pair in extents for number in (*pair, extents.n_bytes)} == {int}
    assert list(extents) == [(4096, 512), (0, 512)]


def test_no_extents_are_no_bytes() -> None:
    assert Extents((), ()).n_bytes == 0
    assert not list(Extents((), ()))


def test_an_offset_without_a_length_is_refused() -> None:
    with pytest.raises(AssertionError):
        Extents((0, 1), (5,))
