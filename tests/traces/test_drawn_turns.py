"""Turns that are drawn from a description, block by block."""

from kvferry.specs.session import SessionSpec
from kvferry.traces.turns import turns_of


def test_blocks_are_named_as_they_are_asked_about() -> None:
    """Of 100,000 contexts one is, in two of a conversation's many turns: all others took 6 GB."""
    workload = SessionSpec.model_validate(
        {
            "kind": "session",
            "turns": 2,
            "contexts": 100_000,
            "context": 1000,
            "question": 100,
            "output": 150,
            "turns_each": 10_000.0,
            "block": 100,
        }
    )
    first, second = turns_of(workload, 1).numbered
    # Ten blocks of the context; then of 1,100, 1,250, 1,350 and 1,500 tokens.
    names = tuple(range(-1, -16, -1))
    assert (first.blocks, first.leaves) == (names[:11], names[:12])
    assert (second.blocks, second.leaves) == (names[:13], names)
    assert (first.prompt, second.prompt) == (1100, 1350)
    assert first.source == second.source
