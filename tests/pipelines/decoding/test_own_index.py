"""Indexes and selectors of a user's own in the modelled world: what they score and take is what is read."""

from typing import Any

import numpy as np
import pytest
from plugin import HITTERS, INFLLM, RANDOM, none_left, written  # noqa: F401
from tiny import DECODING, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.handles import Attended
from kvferry.machine.ops import DecodeAttention, Select
from kvferry.pipelines.decoding.systems import ROLES
from kvferry.pipelines.plugins import use
from kvferry.pipelines.run import Run, run_scenario
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.key_index import KEY_INDEXES, IndexShape, TokenKeys
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import KeysSpec
from kvferry.traces.indexed_keys import IndexedKeys, NoKeys
from kvferry.traces.key_process import KeyProcess

SLOTS = 30
GENERATED = "selections are generated and do not depend on this selector"


pytestmark = pytest.mark.usefixtures("here")


def choosing(selector: Any, **workload: Any) -> Scenario:
    """64 blocks of 16 tokens, of which 12 are wanted at a time; 30 are kept."""
    policies = {"selector": selector, "residency": {"name": "reuse", "slots": SLOTS}, "group_tokens": 16}
    return tiny(DECODING, system="quest", policies=policies, workload={"output": 40, **workload})


def ran(scenario: Scenario) -> tuple[Run, float]:
    """The run and its reuse rate."""
    run = run_scenario(scenario)
    assert run.outcome == "done", run.why
    return run, metrics_for(scenario, run)["reuse_rate"]


def test_a_random_selector_reads_at_random() -> None:
    """Whatever lies in a row's slots, each of its blocks is wanted next with the same chance: of 30 in 64, 30/64."""
    use(written(RANDOM))
    run, rate = ran(choosing({"name": "random", "selected_tokens": 192}, output=120))
    assert rate == pytest.approx(SLOTS / 64, abs=0.05)
    assert not any(GENERATED in note for note in run.notes)
    # Another seed is another selection; the same is the same.
    other = {"name": "random", "selected_tokens": 192, "seed": 1}
    rates = [ran(choosing({"name": "random", "selected_tokens": 192, "seed": seed}))[1] for seed in (0, 1)]
    assert rates[0] != rates[1] == ran(choosing(other))[1]


def test_selections_that_are_generated_are_said_to_be() -> None:
    run, rate = ran(choosing({"name": "page-bounds", "selected_tokens": 192}))
    assert any(note.startswith(GENERATED) for note in run.notes)
    assert rate > 0.6
    # Nothing is selected: there is nothing to say.
    all_read = run_scenario(tiny(DECODING, system="flexgen"))
    assert not any(GENERATED in note for note in all_read.notes)


def test_heavy_hitters_learn_what_attention_took_in() -> None:
    """Blocks that got attention stay chosen: after the first steps nothing new is read."""
    use(written(HITTERS))
    _, rate = ran(choosing({"name": "hitters", "selected_tokens": 192}))
    assert rate > 0.85


def test_a_selector_forces_blocks_into_the_answer() -> None:
    use(written(INFLLM))
    _, plain = ran(choosing({"name": "page-bounds", "selected_tokens": 192}))
    _, forced = ran(choosing({"name": "infllm", "selected_tokens": 192}))
    # Sinks stay in their slots, and so do the newest blocks for some steps.
    assert forced > plain
    with pytest.raises(KvferryError, match="5 blocks are forced, a row has 4"):
        run_scenario(choosing({"name": "infllm", "selected_tokens": 64, "recent": 4}))


def test_a_blocks_score_is_its_best_tokens() -> None:
    """Two blocks of two tokens, two query heads for one KV head; the heads want the most each."""
    shape = IndexShape(
        layers=1, sequences=1, heads=1, kv_heads=1, query_heads=2, head_dim=2, block_tokens=2, room_blocks=3
    )
    index = TokenKeys(shape)
    index.keep(0, 0, np.array([[[[1.0, 0], [0, 2], [3, 0], [0, 1]]]]))
    queries = np.array([[[1.0, 0], [0, 1]]])
    assert index.scores(0, queries, 2).tolist() == [[[1, 3], [2, 1]]]
    # Rank of a key for each token, in four bytes.
    assert (index.n_bytes, TokenKeys.price(2, 2)) == (4 * 6 * 2, (2, 2))
    spec = IndexSpec(kind="keys", heads=1, rank=2, block_tokens=2, scores="summed")
    assert index.chosen_scores(0, queries, 2, spec).tolist() == [[[3, 4]]]


def test_what_attention_took_in_by_hand() -> None:
    spec = IndexSpec(kind="mine", heads=2, rank=1, block_tokens=4)

    class Mine(TokenKeys):
        def attended(self, layer: int, ids: np.ndarray, weights: np.ndarray) -> None:
            told.append((layer, ids, weights))

    told: list[tuple[int, np.ndarray, np.ndarray]] = []
    KEY_INDEXES["mine"] = Mine
    try:
        process = KeyProcess(KeysSpec())
        sizes = {"layers": 6, "sequences": 2, "context": 32, "output": 8, "room_blocks": 10}
        keys = IndexedKeys(process, spec, **sizes, seed=1)
    finally:
        del KEY_INDEXES["mine"]
    chosen = keys(Select(2, 8, 3, 5, 1, heads=2))
    ids = chosen.ids.reshape(4, 3)
    keys.attended(DecodeAttention(2, 13, kv=Attended(1, None, None, 1, ids)))
    # A layer behind those that are told apart is not told of, nor is one that attends to all.
    keys.attended(DecodeAttention(2, 13, kv=Attended(5, None, None, 1, ids)))
    keys.attended(DecodeAttention(2, 13, kv=Attended(1, None, None, 1)))
    ((layer, blocks, weights),) = told
    drawn, queries = process.drawn(40, 4, 2, 2, seed=1)
    row = 4 + 3  # kind 1, sequence 1, head 1
    products = drawn[row, (ids[3][:, None] * 4 + np.arange(4)).ravel()] @ queries[row, 32 + 5] * process.width**-0.5
    shares = np.exp(products) / np.exp(products).sum()
    assert layer == 1 and (blocks[1, 1] == ids[3]).all()
    np.testing.assert_allclose(weights[1, 1], shares.reshape(3, 4).sum(1), rtol=1e-4)
    # The chosen are the best, by the scores that are told with them.
    best = (drawn[row, :32] @ queries[row, 37]).reshape(8, 4).max(1)
    assert set(ids[3]) == set(np.argsort(-best)[:3])
    np.testing.assert_allclose(chosen.scores.reshape(4, 3)[3], best[ids[3]], rtol=1e-4)


def test_nothing_is_drawn_for_an_index_that_keeps_nothing() -> None:
    keys, queries = NoKeys(KeyProcess(KeysSpec())).drawn(1000, 4, 2, 3, seed=1)
    assert keys.shape == queries.shape == (24, 1000, 0)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Random(KeyIndex)", "Random", "is no KeyIndex; a class with this base would do"),
        ("seed: int = 0", "seed: int", "takes (shape), and more with a default alone: seed has none"),
        ("seed: int = 0", "per_head: int = 0", "its parameter per_head is one of every selector"),
        ('{"random": Random}', '{"keys": Random}', "index 'keys' is there already"),
        ('{"random": Random}', '{"low-rank-keys": Random}', "index 'low-rank-keys' is there already"),
        ('{"random": Random}', '{"all": Random}', "index 'all' is there already"),
    ],
)
def test_what_is_no_index(old: str, new: str, says: str) -> None:
    text = RANDOM.replace(old, new).replace("default_rng(seed)", "default_rng(0)")
    with pytest.raises(InputError) as error:
        use(written(text))
    assert says in str(error.value)
    assert "random" not in ROLES["selector"] and "random" not in KEY_INDEXES


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("np.zeros(3)", "scores gave (3,); numbers [2 sequences, 2 query heads, 64 blocks] would do"),
        ("None", "scores gave None; numbers [2 sequences"),
        ("np.full((2, 1, blocks), np.nan)", "scores gave a score that is not a number; -inf for a block"),
    ],
)
def test_scores_that_cannot_be(answer: str, says: str) -> None:
    text = RANDOM.replace("self.chance.random((self.shape.sequences, self.shape.heads, blocks))", answer)
    use(written(text))
    with pytest.raises(KvferryError, match=r"^mine\.py:17: index 'random': ") as error:
        run_scenario(choosing("random"))
    assert says in str(error.value)
