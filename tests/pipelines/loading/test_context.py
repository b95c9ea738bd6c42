"""A stored context as ops and chunks, by hand."""

import numpy as np
import pytest
from tiny import tiny_model

from kvferry.machine.ops import Chunks, Op, PrefillHead
from kvferry.pipelines.loading.context import Context
from kvferry.policies.loading.problem import Coupling


@pytest.mark.parametrize(
    ("coupling", "units", "chunks", "n_bytes"),
    [
        # Of each unit one head's chunk.
        ("per_head", (1, 2), (1, 2), 20 + 30),
        # Of each unit the chunks of both heads.
        ("all_heads", (0, 1), (0, 1, 2, 3), 10 + 20 + 30 + 40),
    ],
)
def test_chunks_are_as_large_as_their_level(
    coupling: Coupling, units: tuple[int, ...], chunks: tuple[int, ...], n_bytes: float
) -> None:
    context = Context(
        sequence=7,
        model=tiny_model(layers=2, kv_heads=2),
        coupling=coupling,
        tokens=np.array([5]),
        active_blocks=np.ones((1, 2, 2), int),
        encoded_bytes=np.array([[[10.0, 20.0], [30.0, 40.0]]]),
        level_scale=(1.0, 0.5),
    )
    for level, scale in enumerate(context.level_scale):
        assert context.chunks_of(units, level) == Chunks(7, chunks, n_bytes * scale, level)
        assert sum(context.bytes_of(units, level)) == n_bytes * scale


def test_chunks_of_a_part_have_the_numbers_of_the_whole() -> None:
    # Token chunks 3 and 5 of what is stored, of two layers and two heads.
    context = Context(
        sequence=7,
        model=tiny_model(layers=2, kv_heads=2),
        coupling="all_heads",
        tokens=np.array([5, 5]),
        active_blocks=np.ones((2, 2, 2), int),
        encoded_bytes=np.ones((2, 2, 2)),
        before=np.array([15, 25]),
        numbers=np.array([3, 5]),
    )
    # Units (3, 1) and (5, 0): chunks (t x 2 layers + l) x 2 heads + h.
    assert context.chunks_of((1, 2), 0).ids == (14, 15, 20, 21)
    advance, project = context.ops_of(1, 1, 0)
    assert [op.kv and (op.kv.token_chunk, op.kv.layer) for op in (advance, project)] == [(5, 0), (5, 1)]  # type: ignore[attr-defined]


def test_heads_that_take_as_much_are_computed_by_the_very_same_op() -> None:
    def ops(blocks: int, before: int = 0) -> list[Op]:
        context = Context(
            sequence=7,
            model=tiny_model(layers=2, kv_heads=2),
            coupling="per_head",
            tokens=np.array([5]),
            active_blocks=np.array([[[blocks, 3], [blocks, 3]]]),
            encoded_bytes=np.ones((1, 2, 2)),
            before=np.array([before]),
        )
        return [op for l in range(2) for c in range(2) for op in context.ops_of(0, l, c)]

    # Of other contexts too; neither in the final layer, nor with another context or other blocks.
    assert [a is b for a, b in zip(ops(2), ops(2), strict=True)] == 4 * [True]
    assert ops(2) == [PrefillHead(5, blocks, final, 0) for final in (False, True) for blocks in (2, 3)]
    assert len({*ops(2), *ops(2, before=9), *ops(4)}) == 4 + 4 + 2
