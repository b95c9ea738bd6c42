"""What conversations really say: token ids of their turns, and names of their blocks by content."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from kvferry.model.prompts import Prompts
from kvferry.specs.errors import InputError
from kvferry.traces.turn import Turn, Turns

Ids = tuple[int, ...]


class Texts:
    """Blocks with equal ids have equal tokens; else every conversation has a text of its own, of which its questions
    are parts. A later turn goes on from what was really answered.

    Raises InputError for a log whose conversations forget what was said, or share what they go on with.
    """

    def __init__(self, turns: Turns, prompts: Prompts) -> None:
        self._turns, self._block = turns.numbered, turns.block
        longest = turns.longest
        self._apart = longest.tokens
        self._prompts = prompts
        # By turn, the one before it in its conversation; of first turns, what they read.
        self._before: dict[int, int] = {}
        self._first: dict[int, Ids] = {}
        said: dict[int, Ids] = {}
        for n, turn in enumerate(self._turns):
            if turn.number:
                self._before[n] = n - 1
            else:
                self._first[n] = self._beginning(turn, said)
        if not all(self._goes_on(self._turns[n], self._turns[m]) for n, m in self._before.items()):
            raise InputError("workload.trace: conversations that forget what was said have no tokens here; take sim")
        self._check_shared()

    def prompt(self, number: int, answers: Mapping[int, Sequence[int]]) -> Ids:
        """Returns the token ids of a turn's prompt, once the turns before it are answered."""
        before = self._before.get(number)
        if before is None:
            return self._first[number]
        turn = self._turns[number]
        known = (*self.prompt(before, answers), *answers[before])
        return (*known, *self._text(turn.conversation, len(known), turn.prompt))

    def document(self, number: int) -> Ids:
        """Returns what lies in the cloud of a conversation from the beginning, by its first turn."""
        return self._first[number][: self._turns[number].stored * self._block]

    def ids(self, number: int, answers: Mapping[int, Sequence[int]]) -> Ids:
        """Returns the token ids of a turn's prompt, and of its answer once that is whole."""
        answer = answers.get(number, ())
        whole = len(answer) == self._turns[number].output
        return (*self.prompt(number, answers), *(answer if whole else ()))

    def names(self, number: int, answers: Mapping[int, Sequence[int]]) -> dict[int, bytes]:
        """Returns names by id of a turn's blocks, as far as their tokens are known: equal names are equal tokens behind
        equal ones, in every run."""
        turn, ids = self._turns[number], self.ids(number, answers)
        found, name = dict[int, bytes](), b""
        for n, block in enumerate(turn.leaves[: len(ids) // self._block]):
            tokens = np.array(ids[n * self._block : (n + 1) * self._block], "<i4").tobytes()
            name = found[block] = hashlib.sha256(name + tokens).digest()
        return found

    def _check_shared(self) -> None:
        """What is answered is not known beforehand, so that no other conversation can have it."""
        first = {self._turns[n].conversation: frozenset(self._turns[n].blocks) for n in self._first}
        of_first, owner = frozenset[int]().union(*first.values()), dict[int, int]()
        for turn in self._turns:
            for block in turn.leaves:
                if block in first[turn.conversation]:
                    continue
                if block in of_first or owner.setdefault(block, turn.conversation) != turn.conversation:
                    what = f"has in common with another one what turn {turn.number + 1} goes on with, or answers"
                    where = f"workload.trace: conversation {turn.conversation + 1}"
                    raise InputError(f"{where} {what}: real answers are others; take sim")

    def _beginning(self, turn: Turn, said: dict[int, Ids]) -> Ids:
        """The first prompt of a conversation; blocks are said as they were elsewhere."""
        ids = list(self._text(turn.conversation, 0, turn.prompt))
        for n, block in enumerate(turn.blocks):
            at = slice(n * self._block, (n + 1) * self._block)
            ids[at] = said.setdefault(block, tuple(ids[at]))
        return tuple(ids)

    def _text(self, conversation: int, begin: int, end: int) -> Ids:
        return self._prompts.tokens(conversation, end, 0, self._apart)[0][begin:]

    @staticmethod
    def _goes_on(turn: Turn, before: Turn) -> bool:
        same = turn.conversation == before.conversation and turn.number == before.number + 1
        return same and turn.blocks[: len(before.leaves)] == before.leaves
