"""What selectors ask, keep and take, by hand."""

from dataclasses import replace

import pytest
from tiny import tiny_model

from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.page_bounds import PageBounds
from kvferry.policies.decode.retrieval_head import RetrievalHead
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.scored_keys import CompressedKeys, Landmarks, LowRankKeys, PartialKeys, PrincipalKeys
from kvferry.policies.decode.selector import Ask, Everything

# Two layers, two heads of four numbers of 2 B: 8 numbers per key. 100 tokens in blocks of 4.
ROOM = Room(
    model=tiny_model(layers=2, kv_heads=2, head_dim=4), block_tokens=4, context=90, output=8, budget_bytes=2_000
)


def test_compressed_keys_by_hand() -> None:
    index = LowRankKeys(compression=4).index(ROOM, 0)
    assert index is not None
    assert index.spec == IndexSpec(kind="low-rank-keys", heads=1, rank=2, block_tokens=4)
    assert index.n_bytes == 2 * 100 * 2 * 2
    # Ten tokens make three blocks, as long as there are three.
    selector = LowRankKeys(selected_tokens=10)
    assert selector.ask(index.spec, 20) == Ask(blocks=20, k=3, heads=1, vectors=80, rank=2)
    assert selector.ask(index.spec, 2).k == 2
    with pytest.raises(ValueError, match="compression is 1 or more, got 0.5"):
        LowRankKeys(compression=0.5).index(ROOM, 0)


def test_as_many_numbers_as_the_budget_holds_by_hand() -> None:
    # A number per key takes 2 x 100 x 2 B.
    def rank(reserved_bytes: float, kind: type[CompressedKeys], **settings: float) -> int:
        index = kind(compression="fit", per_head=True, **settings).index(ROOM, reserved_bytes)
        assert index is not None
        assert index.spec.heads == 2
        return index.spec.rank

    class Whole(LowRankKeys):
        published = 1.0

    assert (rank(0, Whole), rank(401, Whole), rank(1_900, Whole)) == (5, 3, 1)
    assert rank(0, Whole, metadata_share=0.5) == 2
    # No more than three tenths of the channels, and a quarter of the components, whatever the budget.
    assert (rank(0, PartialKeys), rank(0, PrincipalKeys), rank(1_900, PartialKeys)) == (2, 2, 1)


@pytest.mark.parametrize("reserved_bytes", [0, 1_900, 10_000])
def test_keys_are_as_wide_as_published_whatever_the_budget(reserved_bytes: float) -> None:
    for kind, rank in ((LowRankKeys, 1), (PartialKeys, 2), (PrincipalKeys, 2)):
        index = kind().index(ROOM, reserved_bytes)
        assert index is not None and index.spec.rank == rank and kind().fixed


def test_landmarks_by_hand() -> None:
    selector = Landmarks(selected_tokens=8, per_head=True)
    index = selector.index(ROOM, 0)
    assert index is not None
    # A full key for each of 25 blocks and two layers.
    assert (index.spec.rank, index.n_bytes) == (8, 2 * 25 * 8 * 2)
    assert selector.ask(index.spec, 20) == Ask(blocks=20, k=2, heads=2, vectors=20, rank=8)


def test_page_bounds_by_hand() -> None:
    selector = PageBounds(selected_tokens=8, per_head=True)
    index = selector.index(ROOM, 0)
    assert index is not None
    # Two keys for each of 25 blocks and two layers.
    assert index.spec == IndexSpec(kind="page-bounds", heads=2, rank=16, block_tokens=4, scores="best_head")
    assert index.n_bytes == 2 * 25 * 16 * 2
    assert selector.ask(index.spec, 20) == Ask(blocks=20, k=2, heads=2, vectors=20, rank=16)
    # The layer's own query is waited for.
    assert selector.stages(2, ())[5].after == (("feed_forward", 0),)


def test_everything_asks_nothing() -> None:
    assert Everything().index(ROOM, 0) is None
    assert Everything().selected(4, 20) is None


def order(selector: object, layers: int = 2, beside: tuple[str, ...] = ()) -> list[str]:
    """Every stage with its layer, and what it comes after."""
    stages = selector.stages(layers, beside)  # type: ignore[attr-defined]
    return [" ".join([f"{s.kind}{s.layer}", *(f"<{kind}{layer}" for kind, layer in s.after)]) for s in stages]


def test_the_order_of_a_step_by_hand() -> None:
    own = ["select{n}", "look_up{n}", "bring{n} <look_up{n}"]
    block = ["attend{n} <bring{n}", "feed_forward{n} <attend{n}"]
    first, second = ([one.format(n=n) for one in own] for n in (0, 1))
    blocks = [[one.format(n=n) for one in block] for n in (0, 1)]
    assert order(LowRankKeys()) == [*first, "select1 <bring0", *second[1:], *blocks[0], *blocks[1]]
    assert order(LowRankKeys(ahead=False)) == [
        *first,
        *blocks[0],
        "select1 <feed_forward0",
        *second[1:],
        *blocks[1],
    ]
    assert order(Landmarks(), 1, ("rebuild",)) == [*first, "rebuild0 <look_up0", *blocks[0]]
    assert order(Everything()) == [
        "bring_all0",
        "bring_all1 <bring_all0",
        "attend0 <bring_all0",
        "feed_forward0 <attend0",
        "attend1 <bring_all1",
        "feed_forward1 <attend1",
    ]


def test_a_retrieval_head_by_hand() -> None:
    selector = RetrievalHead(selected_tokens=8)
    index = selector.index(ROOM, 0)
    assert index is not None
    # A layer of KV for its keys, whatever the model's layers, and one for each of the two queries that share a key.
    assert (index.n_bytes, index.kv_layers, index.spec.for_all_layers) == (0, 1 + 2, True)
    # From the hidden state to four queries and two keys of four numbers of 2 B.
    assert index.weight_bytes == ROOM.model.hidden * 6 * 4 * 2
    alone = selector.index(replace(ROOM, model=tiny_model(layers=2, kv_heads=4, head_dim=4)), 0)
    assert alone is not None
    assert alone.kv_layers == 1
    assert selector.ask(index.spec, 20) == Ask(blocks=20, k=2, heads=2, vectors=80, rank=8)
    # All layers' transfers begin once it has chosen, before the first layer computes.
    kinds = [(stage.kind, stage.layer) for stage in selector.stages(2, ())]
    assert kinds[:4] == [("retrieve", 0), ("compare", 0), ("bring", 0), ("bring", 1)]
    assert kinds[4:] == [("attend", 0), ("feed_forward", 0), ("attend", 1), ("feed_forward", 1)]
