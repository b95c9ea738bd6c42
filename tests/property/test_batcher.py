"""Whatever comes and however little room there is: every request gets its tokens, and no page has two owners."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.decode.batcher import Batcher, Batching, Continuous, LockStep
from kvferry.policies.decode.pages import pages_of

# Context, output, and the turns that pass before a request comes after the one before.
REQUESTS = st.lists(
    st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(0, 12)), min_size=1, max_size=12
)  # fmt: skip

# Of prompts that are prefilled together.
TOKENS = st.none() | st.integers(1, 150)


@given(
    REQUESTS,
    st.integers(0, 12),
    st.integers(1, 5),
    st.builds(lambda kind, tokens: kind(prefill_tokens=tokens), st.sampled_from([Continuous, LockStep]), TOKENS),
)
def test_every_request_is_served(
    requests: list[tuple[int, int, int]], spare: int, slots: int, batching: Batching
) -> None:
    pages = max(pages_of(context + output) for context, output, _ in requests) + spare
    batcher = Batcher(pages, slots, batching)
    said: Counter[int] = Counter()
    holding: set[int] = set()
    arrived, comes_at, n_turns, before = 0, requests[0][2], 0, ""
    while sum(said.values()) < sum(output for _, output, _ in requests):
        while arrived < len(requests) and comes_at <= n_turns:
            batcher.arrive(arrived, *requests[arrived][:2])
            arrived += 1
            comes_at += requests[arrived][2] if arrived < len(requests) else 0
        n_turns += 1
        turn = batcher.turn()
        if turn is None:
            assert all(said[n] == requests[n][1] for n in holding)
            assert arrived < len(requests)
            continue
        # KV is given up once, by sequences that have it, and what a turn is for is in memory. First come, first served.
        assert holding >= set(turn.released)
        holding -= set(turn.released)
        if turn.kind == "prefill":
            waiting = [n for n in range(arrived) if said[n] < requests[n][1] and n not in holding]
            assert list(turn.sequences) == waiting[: len(turn.sequences)]
            holding |= set(turn.sequences)
            assert isinstance(batching, Continuous) or before == "prefill" or batcher.running == len(turn.sequences)
        else:
            assert holding == set(turn.sequences)
        before = turn.kind
        assert len(holding) <= slots
        for sequence, tokens in zip(turn.sequences, turn.tokens, strict=True):
            assert tokens == requests[sequence][0] + said[sequence]
            assert len(batcher.pages.of(sequence)) == pages_of(tokens)
        batcher.pages.check()
        ended = batcher.done(turn)
        said.update(turn.sequences)
        assert set(ended) == {n for n in turn.sequences if said[n] == requests[n][1]}
    assert said == {n: output for n, (_, output, _) in enumerate(requests)}
    assert batcher.turn() is None
    assert batcher.pages.free_pages == pages
