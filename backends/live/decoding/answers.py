"""Answers of a model: the next token of every sequence, greedily, or what it is made to say."""

from collections.abc import Callable, Sequence

import torch

# Called with logits [sequences, vocabulary] of the next token of these sequences, before it is chosen.
Listener = Callable[[torch.Tensor, Sequence[int]], None]


def unheard(logits: torch.Tensor, sequences: Sequence[int]) -> None:
    """Does nothing."""


class Answers:
    """``tokens`` said so far, by sequence.

    `follow` [sequences][tokens] are said instead of what the model would say.
    """

    def __init__(
        self,
        sequences: int,
        follow: Sequence[Sequence[int]] | None = None,
        listen: Listener = unheard,
    ) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(sequences)]
        self._follow, self._listen = follow, listen

    def say(self, logits: torch.Tensor, sequences: Sequence[int]) -> torch.Tensor:
        """Returns the next token of each of these sequences, int64[sequences], from its logits [sequences,
        vocabulary]."""
        self._listen(logits, sequences)
        said = logits.argmax(-1)
        if self._follow is not None:
            follow = [self._follow[sequence][len(self.tokens[sequence])] for sequence in sequences]
            said = torch.tensor(follow, device=logits.device)
        for sequence, token in zip(sequences, said.tolist(), strict=True):
            self.tokens[sequence].append(token)
        return said
