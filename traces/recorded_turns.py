"""Turns of a run from a log of conversations: as many as are wanted, and the ids of their blocks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvferry.specs.errors import InputError
from kvferry.traces.block_ids import BlockIds
from kvferry.traces.chance import Source, generator
from kvferry.traces.turn import USUAL_BLOCK, Turn, Turns
from kvferry.traces.turn_logs import Conversation, Recorded, read_recorded


def thinned(recorded: Recorded, turns: int, seed: int) -> tuple[Conversation, ...]:
    """Returns conversations drawn by chance until they have this many turns; the last one may lack its end."""
    order = generator(Source.SESSIONS, seed, 0, 1).permutation(len(recorded.conversations)).tolist()
    chosen, left = dict[int, int](), turns
    for n in order:
        if not left:
            break
        chosen[n] = min(left, len(recorded.conversations[n]))
        left -= chosen[n]
    return tuple(recorded.conversations[n][: chosen[n]] for n in sorted(chosen))


def recorded_turns(
    path: Path, *, turns: int, block: int | None, users: int, gaps_s: Callable[[bool], float], seed: int
) -> Turns:
    """Returns as many turns of a log as are wanted, each of its conversations a stream; of a log without times, of as
    many users one after the other, `gaps_s` telling how long after an answer the next question comes: of the same
    conversation, or of another. Raises InputError for a log that cannot be read, or has fewer."""
    recorded = read_recorded(path)
    if None not in (block, recorded.block) and block != recorded.block:
        raise InputError(f"{path}: its hash ids are of blocks of {recorded.block} tokens; leave workload.block out")
    block = recorded.block or block or USUAL_BLOCK
    if turns > len(recorded):
        raise InputError(f"{path}: holds {len(recorded):,} turns, workload.turns asks for {turns:,}")
    chosen = thinned(recorded, turns, seed)
    starts = [one[0].arrival_s for one in chosen if one[0].arrival_s is not None]
    first_s, ids = min(starts, default=0.0), BlockIds()
    streams = [_stream(one, n, block, first_s, ids) for n, one in enumerate(chosen)]
    if recorded.timed:
        return Turns(tuple(streams), block, recorded.notes)
    of_users: list[list[Turn]] = [[] for _ in range(min(users, len(streams)))]
    for n, stream in enumerate(streams):
        of_users[n % users] += [replace(turn, after_s=gaps_s(turn.number > 0)) for turn in stream]
    return Turns(tuple(map(tuple, of_users)), block, recorded.notes)


def _stream(turns: Conversation, conversation: int, block: int, first_s: float, ids: BlockIds) -> tuple[Turn, ...]:
    found: list[Turn] = []
    name, tokens = turns[0].shared
    chain = ids.chain(tokens // block if name else 0, lambda _: name)
    for n, one in enumerate(turns):
        whole = (one.prompt + one.output) // block
        following = turns[n + 1].ids if n + 1 < len(turns) else None
        blocks = ids.grown(chain, one.prompt // block) if one.ids is None else one.ids
        # An answer's blocks have ids in the prompt that goes on behind it.
        leaves = blocks if following is None else following[:whole]
        chain = leaves = ids.grown(leaves, whole)
        found.append(
            Turn(
                conversation=conversation,
                number=n,
                prompt=one.prompt,
                output=one.output,
                blocks=blocks,
                leaves=leaves,
                due_s=None if one.arrival_s is None else one.arrival_s - first_s,
                source=conversation,
            )
        )
    return tuple(found)
