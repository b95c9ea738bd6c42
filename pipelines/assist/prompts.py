"""Prompts that an instance has not read to their end, and which of them comes next."""

import math
from collections.abc import Sequence

from kvferry.machine.machine import Refused
from kvferry.machine.ops import Prefill
from kvferry.pipelines.assist.in_hand import Down, Prompt
from kvferry.pipelines.assist.kv_memory import KvMemory
from kvferry.policies.assist.serving import Serving
from kvferry.specs.errors import OutOfMemory


class Prompts:
    """A prompt without memory for its KV takes that when its prefill begins, and waits for it where there is none; no
    other then takes any before it. ``waiting``: in order of arrival."""

    def __init__(self, serving: Serving, kv: KvMemory) -> None:
        self._serving, self._kv = serving, kv
        self.waiting: list[Prompt] = []
        # The one that memory was lacking for.
        self._lacking: Prompt | None = None
        # Whether the next piece goes by arrival, whatever is shorter.
        self._by_arrival = False

    def remove(self, prompt: Prompt) -> None:
        self.waiting.remove(prompt)
        self._lacking = None if self._lacking is prompt else self._lacking

    def fail(self, down: Down) -> None:
        """None of them will be read."""
        for prompt in self.waiting:
            prompt.done.fail(down)
            # Nobody may be waiting for it any more.
            prompt.done.defused = True
        self.waiting.clear()
        self._lacking = None

    def next(self, most: float = math.inf, but: Sequence[Prompt] = ()) -> Prompt | None:
        """The next one that has memory for its KV or gets it now, and that only where no other lacks it; None where
        there is none, or this one has more tokens than `most`. `but`: these are taken."""
        for n in self._serving.in_order(self.waiting, by_arrival=self._by_arrival):
            prompt = self.waiting[n]
            if prompt in but:
                continue
            if not prompt.has_memory and self._lacking in (None, prompt):
                lease = self._kv.reserve(prompt.before + prompt.left)
                self._lacking = None
                if not isinstance(lease, Refused):
                    prompt.lease, prompt.has_memory = lease, True
                elif self._kv.is_used:
                    self._lacking = prompt
                else:
                    self.waiting.remove(prompt)
                    prompt.done.fail(OutOfMemory(f"an instance of the cloud: {lease}"))
                    return self.next(most, but)
            if prompt.has_memory:
                return prompt if prompt.left <= most else None
        return None

    def beside(self, prompt: Prompt, piece: Prefill) -> list[Prompt]:
        """Returns whole prompts to prefill in the same pass as the rest of this one, while no request decodes."""
        if not self._serving.batched_prefill or piece.tokens < prompt.left:
            return []
        found: list[Prompt] = []
        room = self._serving.alone_tokens - int(piece.tokens)
        while (other := self.next(room, (prompt, *found))) is not None:
            found.append(other)
            room -= other.left
        return found

    def begun(self) -> None:
        """A piece of one has begun."""
        self._by_arrival = len(self.waiting) > 1 and not self._by_arrival

    def read(self, prompt: Prompt, tokens: int, token: str | None) -> None:
        """So many tokens of it are read, and `token` follows."""
        prompt.left, prompt.before = prompt.left - tokens, prompt.before + tokens
        if not prompt.left and not prompt.is_lost:
            self.waiting.remove(prompt)
            prompt.done.succeed(token)
