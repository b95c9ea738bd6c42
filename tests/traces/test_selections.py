"""Selection and key streams: statistics by hand, generated keys against what they were asked for, files."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.keys import EPOCH_TOKENS, KeyStream, generate_keys
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


def test_strangeness_by_hand() -> None:
    # First window (0,0), (2,0); second (0,1), (2,2): squared distances 1 and 4, mean 2.5. Mean squared length
    # (0 + 4 + 1 + 8) / 4 = 3.25.
    vectors = np.array([[0, 0], [2, 0], [0, 1], [2, 2]], np.float32).reshape(1, 1, 4, 2)
    assert KeyStream(vectors).strangeness(2).tolist() == pytest.approx([2.5 / 3.25])


def test_keys_have_the_spread_and_the_walk_that_was_asked_for() -> None:
    # One centre without noise: successive epochs differ by `drift` per dimension.
    walk = generate_keys(64 * EPOCH_TOKENS, 1, 1, 32, seed=1, clusters=1, spread=0, drift=0.2).vectors[0, 0]
    steps = np.diff(walk[::EPOCH_TOKENS], axis=0)
    assert steps.std() == pytest.approx(0.2, rel=0.05)
    # Halfway through an epoch, half of the way.
    middle = walk[EPOCH_TOKENS // 2 :: EPOCH_TOKENS][:-1]
    np.testing.assert_allclose(middle, (walk[::EPOCH_TOKENS][:-1] + walk[::EPOCH_TOKENS][1:]) / 2, atol=1e-5)
    # No walk, many centres: variance 1 of the centres, 0.25 of the noise.
    still = generate_keys(4096, 1, 1, 64, seed=1, clusters=512, spread=0.5, drift=0, scene_tokens=1).vectors
    assert still.var() == pytest.approx(1.25, rel=0.03)


def test_drift_makes_later_keys_strange() -> None:
    still, drifting = (
        generate_keys(2048, 1, 16, 32, seed=4, clusters=8, drift=drift).strangeness(256) for drift in (0, 0.3)
    )
    assert still[-1] == pytest.approx(still[0], rel=0.2)
    assert drifting[-1] > 1.5 * drifting[0]
    assert drifting[-1] > 1.5 * still[-1]


def test_neighbours_lie_together() -> None:
    vectors = generate_keys(2000, 1, 1, 64, seed=0, spread=0.1, drift=0, scene_tokens=20).vectors[0, 0]
    together = ((vectors[1:] - vectors[:-1]) ** 2).mean(axis=1) < 0.5
    # A scene ends at each token with chance 1/20, and one in 32 changes leads back to the same centre.
    assert together.mean() == pytest.approx(1 - 1 / 20 * 31 / 32, abs=0.02)


def test_a_longer_key_stream_begins_with_the_shorter_one(tmp_path: Path) -> None:
    short, long = (generate_keys(tokens, 2, 2, 8, seed=5) for tokens in (300, 900))
    np.testing.assert_array_equal(short.vectors, long.vectors[:, :, :300])
    short.save(tmp_path / "k.npz")
    np.testing.assert_array_equal(KeyStream.load(tmp_path / "k.npz").vectors, short.vectors)
