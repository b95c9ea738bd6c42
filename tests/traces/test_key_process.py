"""Generated keys: their statistics, and that longer texts begin with shorter ones."""

import numpy as np
import pytest
from pydantic import ValidationError

from kvferry.machine.ops import Select
from kvferry.policies.decode.index import IndexSpec
from kvferry.specs.workload import KeysSpec
from kvferry.traces.indexed_keys import IndexedKeys
from kvferry.traces.key_process import KeyProcess
from kvferry.traces.key_scores import best_entries


def test_longer_texts_begin_with_shorter_ones() -> None:
    process = KeyProcess(KeysSpec())
    long, short = (process.drawn(tokens, 2, 2, 3, seed=1) for tokens in (90, 40))
    for longer, shorter in zip(long, short, strict=True):
        assert shorter.shape == (2 * 2 * 3, 40, 8)
        np.testing.assert_allclose(longer[:, :40], shorter, atol=1e-5)
    assert np.abs(long[0] - process.drawn(90, 2, 2, 3, seed=2)[0]).max() > 1


def test_scenes_and_topics_are_as_long_and_as_new_as_asked() -> None:
    topics = KeyProcess(KeysSpec(scene=10, novelty=0.2)).topics(50_000, seed=3, sequence=0)
    changes = np.flatnonzero(np.diff(topics))
    # A scene may go on with the topic before; new topics come one after the other.
    assert 50_000 / len(changes) == pytest.approx(10, rel=0.25)
    assert (topics.max() + 1) / (50_000 / 10) == pytest.approx(0.2, rel=0.1)
    assert (np.diff(np.maximum.accumulate(topics)) <= 1).all()
    assert (KeyProcess(KeysSpec(novelty=0.0)).topics(500, seed=3, sequence=0) == 0).all()


def test_keys_lie_around_their_topics() -> None:
    process = KeyProcess(KeysSpec(scene=20, drift=0.0, spread=0.5))
    keys, queries = process.drawn(4000, 1, 1, 4, seed=5)
    topics = process.topics(4000, seed=5, sequence=0)
    topic = np.bincount(topics).argmax()
    own = keys[:, topics == topic]
    assert own.std(axis=1).mean() == pytest.approx(0.5, rel=0.05)
    assert keys.std() == pytest.approx(np.sqrt(1 + 0.25), rel=0.2)
    # A query's variance is one, of which a quarter is the present topic's.
    assert queries.std() == pytest.approx(1.0, rel=0.2)


def test_shares_of_a_query_are_shares_of_one() -> None:
    with pytest.raises(ValidationError, match="present and whim are shares of one, not 0.7 and 0.4"):
        KeysSpec(present=0.7, whim=0.4)


def test_the_best_entries_by_hand() -> None:
    keys = np.array([[[1.0, 0.0], [0.0, 3.0], [2.0, 2.0], [-5.0, 0.0]]])
    assert best_entries(keys, np.array([[1.0, 0.0]]), 2).tolist() == [[0, 2]]
    assert best_entries(keys, np.array([[0.0, 1.0]]), 2).tolist() == [[1, 2]]


def test_entries_are_chosen_among_those_that_are_there() -> None:
    spec = IndexSpec(kind="keys", heads=2, rank=16, block_tokens=1)
    sizes = {"layers": 6, "sequences": 2, "context": 30, "output": 20, "room_blocks": 50}
    entries = IndexedKeys(KeyProcess(KeysSpec()), spec, **sizes, seed=1)
    for step in range(3):
        chosen = [entries(Select(2, 30 + step, 5, step, layer, heads=2)).ids for layer in range(6)]
        assert all(one.shape == (2, 2, 5) and one.max() < 30 + step for one in chosen)
        # Every fourth layer is alike.
        assert (chosen[0] == chosen[4]).all() and (chosen[0] != chosen[1]).any()
    entries.go_on()
    keys, queries = KeyProcess(KeysSpec()).drawn(50, 4, 2, 2, seed=1)
    expected = best_entries(keys[4:8, :34], queries[4:8, 34], 5)
    assert entries(Select(2, 34, 5, 3, 1, heads=2)).ids.reshape(4, 5).tolist() == expected.tolist()


def test_recall_of_blocks_is_what_the_query_wants_most_of_what_is_stored() -> None:
    """Blocks of one token by every key miss nothing; blocks of five, by their best key, some of it."""
    sizes = {"layers": 4, "sequences": 2, "context": 30, "output": 20, "room_blocks": 50}
    for block_tokens, k in ((1, 5), (5, 2)):
        spec = IndexSpec(kind="keys", heads=2, rank=8, block_tokens=block_tokens, scores="best_head")
        entries = IndexedKeys(KeyProcess(KeysSpec()), spec, **sizes, seed=1)
        assert entries.recall(5) is None
        blocks = 30 // block_tokens
        ids = [entries(Select(2, blocks, k, 0, layer, heads=2)).ids.reshape(4, k) for layer in range(4)]
        found = entries.recall(5)
        assert found is not None
        keys, queries = KeyProcess(KeysSpec()).drawn(50, 4, 2, 2, seed=1)
        wanted = best_entries(keys[:, :30], queries[:, 30], k * block_tokens) // block_tokens
        hit = [np.isin(of_row, chosen).mean() for of_row, chosen in zip(wanted, np.concatenate(ids), strict=True)]
        assert found == pytest.approx((np.mean(hit), k / blocks))
        assert (found[0] == 1.0) == (block_tokens == 1)
        # Of a token that nothing was chosen for.
        entries.go_on()
        assert entries.recall(5) is None


def test_the_same_keys_are_drawn_once_and_cannot_be_written_to() -> None:
    process = KeyProcess(KeysSpec())
    keys, queries = process.drawn(40, 2, 1, 2, 3)
    again = KeyProcess(KeysSpec()).drawn(40, 2, 1, 2, 3)
    assert again[0] is keys and again[1] is queries
    others = process.drawn(40, 2, 1, 2, 4), KeyProcess(KeysSpec(spread=0.9)).drawn(40, 2, 1, 2, 3)
    assert all(other[0] is not keys and (other[0] != keys).any() for other in others)
    with pytest.raises(ValueError, match="read-only"):
        keys[0] = 1
