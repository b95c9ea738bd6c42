"""Selection and key streams: statistics by hand, files."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.keys import KeyStream
from kvferry.traces.selections import SelectionStream


def test_overlap_by_hand() -> None:
    # From {0, 1, 2} to {1, 2, 5}: two of three; to {3, 4, 6}: none.
    stream = SelectionStream(np.array([[0, 1, 2], [1, 2, 5], [3, 4, 6]]).reshape(3, 1, 1, 3), groups=8)
    assert stream.overlaps().tolist() == pytest.approx([2 / 3, 0])


def test_hot_share_by_hand() -> None:
    # Group 7 has 5 of 10 accesses, groups 0-4 one each: 80 % need group 7 and three others, 4 of 10 groups.
    ids = np.array([[0, 7], [1, 7], [2, 7], [3, 7], [4, 7]]).reshape(5, 1, 1, 2)
    assert SelectionStream(ids, groups=10).hot_share(0.8) == pytest.approx(0.4)
    assert SelectionStream(ids, groups=10).hot_share(0.5) == pytest.approx(0.1)


def test_selection_files(tmp_path: Path) -> None:
    ids = np.sort(np.random.default_rng(0).permuted(np.tile(np.arange(30), (5, 2, 1, 1)), axis=-1)[..., :4])
    stream = SelectionStream(ids, 30)
    stream.save(tmp_path / "s.npz")
    back = SelectionStream.load(tmp_path / "s.npz")
    np.testing.assert_array_equal(back.ids, stream.ids)
    assert back.groups == 30
    with pytest.raises(InputError, match="holds a selections trace"):
        KeyStream.load(tmp_path / "s.npz")


@pytest.mark.parametrize("ids", [[[3, 3]], [[4, 2]], [[0, 9]], [[-1, 2]]])
def test_impossible_selections_are_refused(ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="ids"):
        SelectionStream(np.array(ids).reshape(1, 1, 1, 2), groups=9)


def test_key_files(tmp_path: Path) -> None:
    stream = KeyStream(np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3))
    stream.save(tmp_path / "k.npz")
    np.testing.assert_array_equal(KeyStream.load(tmp_path / "k.npz").vectors, stream.vectors)
