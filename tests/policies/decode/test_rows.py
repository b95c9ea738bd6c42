"""KV blocks by row, by hand."""

import numpy as np

from kvferry.policies.decode.rows import BlockRows


def test_pairs_and_flags_make_the_same_rows() -> None:
    flags = np.array([[True, False, True], [False, False, False], [False, True, False]])
    for found in (BlockRows.of([(2, 1), (0, 2), (0, 0)], 3), BlockRows.where(flags)):
        assert found.starts is not None and found.starts.tolist() == [0, 2, 2, 3]
        assert [found.row(row).tolist() for row in range(3)] == [[0, 2], [], [1]]
        assert found.widest == 2


def test_there_may_be_none() -> None:
    for found in (BlockRows.of((), 2), BlockRows.where(np.zeros((2, 4), bool))):
        assert found.starts is not None and found.starts.tolist() == [0, 0, 0]
        assert not found.ids.size and found.rows == 2
