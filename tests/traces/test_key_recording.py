"""Recorded keys: what rows they give a run, by hand, and files that are none."""

from pathlib import Path

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.key_recording import KeyRecording
from kvferry.traces.key_scores import best_entries, best_head


def recording(layers: int = 2, heads: int = 2, tokens: int = 5) -> KeyRecording:
    """Keys of one number, 100 x layer + 10 x head + token, and two query heads whose queries are keys and their
    negatives."""
    layer, head, token = np.indices((layers, heads, tokens))
    keys = (100 * layer + 10 * head + token).astype(np.float32)[..., None]
    return KeyRecording(keys, np.stack([keys, -keys], axis=2))


def test_rows_by_hand() -> None:
    """A model of three KV heads, of which the last is like the first; both sequences are alike."""
    keys, queries = recording().drawn(4, 2, 2, 3, seed=7)
    assert keys[:, 0, 0].tolist() == [0, 10, 0, 0, 10, 0, 100, 110, 100, 100, 110, 100]
    assert keys[1, :, 0].tolist() == [10, 11, 12, 13]
    assert queries[7, 2, :, 0].tolist() == [112, -112]


def test_the_last_token_leaves_no_key() -> None:
    keys, _ = recording().drawn(6, 1, 1, 2, seed=0)
    assert keys[0, :, 0].tolist() == [0, 1, 2, 3, 4, 4]
    with pytest.raises(InputError, match="workload.recorded_keys: 5 tokens were recorded, this run has 7"):
        recording().drawn(7, 1, 1, 2, seed=0)


def test_layers_that_were_not_recorded_are_like_others() -> None:
    assert [recording(layers=3).kinds(layers) for layers in (1, 3, 28)] == [1, 3, 3]


def test_the_best_of_two_query_heads_by_hand() -> None:
    """The first wants the first entry with e / (e + 2), the second both others as much, 1 / (2 + 1 / e) each."""
    keys = np.array([[[1.0], [0.0], [0.0]]])
    queries = np.array([[[1.0], [-1.0]]])
    shares = best_head(np.einsum("rnd,rhd->rhn", keys, queries), 1)
    e = np.e
    np.testing.assert_allclose(shares, [[e / (e + 2), 1 / (2 + 1 / e), 1 / (2 + 1 / e)]])
    assert best_entries(keys, queries, 1).tolist() == [[0]]


def test_a_file_holds_what_was_recorded(tmp_path: Path) -> None:
    recording().save(path := tmp_path / "keys.npz")
    read = KeyRecording.load(path)
    assert (read.keys == recording().keys).all() and (read.queries == recording().queries).all()


@pytest.mark.parametrize(
    ("keys", "queries", "why"),
    [
        ((2, 2, 5, 3), (2, 2, 2, 4, 3), "not of the same tokens"),
        ((2, 2, 5), (2, 2, 2, 5, 3), "queries have one dimension more"),
        ((2, 2, 0, 3), (2, 2, 2, 0, 3), "queries have one dimension more"),
    ],
)
def test_what_is_no_recording(keys: tuple[int, ...], queries: tuple[int, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        KeyRecording(np.zeros(keys, np.float32), np.zeros(queries, np.float32))


def test_numbers_are_finite() -> None:
    keys = recording().keys.copy()
    keys[1, 1, 2] = np.nan
    with pytest.raises(ValueError, match="finite"):
        KeyRecording(keys, recording().queries)
