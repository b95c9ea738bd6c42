"""Keys and queries of a long generation, token by token: what they say drifts away from the prompt (DynaKV 2.3)."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from kvferry.specs.workload import KeysSpec
from kvferry.system.memo import Memo
from kvferry.traces.chance import Source, generator

# Kinds of layers: further layers are each like one of these, so that thousands of tokens take seconds.
KINDS = 4
# Keys and queries that were drawn last, and how many numbers of them are kept at most.
_DRAWN = Memo[tuple[np.ndarray, np.ndarray]](1)
_MOST_NUMBERS = 1 << 25


class KeyProcess:
    """Keys and queries with such statistics, of ``width`` numbers in every row.

    A text goes from scene to scene, of ``scene`` tokens on average. Each scene is about a topic: one that was there
    before, the more likely the more often it was, or, with the chance ``novelty``, a new one: so topics that the prompt
    did not have take over as decoding goes on. A topic is a centre in each row, of variance 1 in each number. A key
    lies around its topic's centre, ``spread`` away in each number. All centres of a row walk together: by ``drift`` in
    each number in a thousand tokens.

    Of a query's variance the share ``present`` looks for the topic of the present scene, the share ``whim`` for
    anything, new with every token, and the rest for what it is interested in for a while: that interest has a
    correlation with itself n tokens later of exp(-n / ``persistence``).
    """

    def __init__(self, statistics: KeysSpec) -> None:
        self.statistics = statistics
        self.width = statistics.width

    def kinds(self, layers: int) -> int:
        """Kinds of layers that are told apart in a model of this many."""
        return min(layers, KINDS)

    def topics(self, tokens: int, seed: int, sequence: int) -> np.ndarray:
        """int[tokens]: the topic of each token of a sequence. Longer texts of one seed begin with shorter ones."""
        like, chance = self.statistics, generator(Source.DECODED_SCENES, seed, sequence)
        changes, news, picks = chance.random((tokens, 3)).T
        changes = changes < 1 / like.scene
        changes[0] = True
        # A scene on a former topic picks one of the former scenes: so topics are as likely as they were frequent.
        of_scene: list[int] = []
        topics = 0
        for at in np.flatnonzero(changes):
            new = not of_scene or news[at] < like.novelty
            of_scene.append(topics if new else of_scene[int(picks[at] * len(of_scene))])
            topics += new
        return np.array(of_scene)[np.cumsum(changes) - 1]

    def drawn(self, tokens: int, kinds: int, sequences: int, heads: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and queries float32[rows, tokens, width]: rows kind by kind, sequence by sequence, head by head. Not to
        be written to: the next run may begin with the same."""
        numbers = 2 * kinds * sequences * heads * tokens * self.width
        if numbers > _MOST_NUMBERS:
            return self._drawn(tokens, kinds, sequences, heads, seed)
        depends = self.statistics.model_dump_json(), tokens, kinds, sequences, heads, seed
        return _DRAWN.of(depends, lambda: self._drawn(tokens, kinds, sequences, heads, seed))

    def _drawn(self, tokens: int, kinds: int, sequences: int, heads: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        topics = [self.topics(tokens, seed, sequence) for sequence in range(sequences)]
        parts = [part for kind in range(kinds) for part in self._of_kind(topics, heads, seed, kind)]
        keys, queries = zip(*parts, strict=True)
        found = np.concatenate(keys), np.concatenate(queries)
        for of in found:
            of.flags.writeable = False
        return found

    def _of_kind(
        self, topics: Sequence[np.ndarray], rows: int, seed: int, kind: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Keys and queries of the heads of one kind of layer, sequence by sequence."""
        like, tokens = self.statistics, len(topics[0])
        drawn = [
            generator(Source.DECODED_QUERIES, seed, kind, sequence).standard_normal(
                (tokens, 2, rows, self.width), np.float32
            )
            for sequence in range(len(topics))
        ]
        interests = self._interests(np.stack([of[:, 0] for of in drawn], axis=1))
        for sequence, of in enumerate(topics):
            there, keys = self._around(of, rows, seed, kind, sequence)
            interest, whims = interests[:, sequence], drawn[sequence][:, 1]
            parts = (like.present, there), (1 - like.present - like.whim, interest), (like.whim, whims)
            queries = np.zeros_like(there)
            for share, part in parts:
                queries += np.float32(math.sqrt(share)) * part
            yield keys.swapaxes(0, 1).copy(), queries.swapaxes(0, 1).copy()

    def _interests(self, drawn: np.ndarray) -> np.ndarray:
        """Turns normal numbers [tokens, sequences, rows, width] into what the sequences are interested in, in place:
        token by token, for which they go together."""
        kept = math.exp(-1 / self.statistics.persistence)
        fresh = np.float32(math.sqrt(1 - kept**2))
        for token in range(1, len(drawn)):
            drawn[token] = np.float32(kept) * drawn[token - 1] + fresh * drawn[token]
        return drawn

    def _around(self, topics: np.ndarray, rows: int, seed: int, *place: int) -> tuple[np.ndarray, np.ndarray]:
        """The centres of a sequence's topics as they are at each token, and keys around them, [tokens, rows, width]."""
        centres = generator(Source.DECODED_CENTRES, seed, *place).standard_normal(
            (int(topics.max()) + 1, rows, self.width), np.float32
        )
        # Drawn token by token, so that longer texts begin with shorter ones.
        steps, noise = (
            generator(Source.DECODED_KEYS, seed, *place)
            .standard_normal((len(topics), 2, rows, self.width), np.float32)
            .swapaxes(0, 1)
        )
        there = centres[topics] + np.cumsum(steps, axis=0) * np.float32(self.statistics.drift / math.sqrt(1000))
        return there, there + np.float32(self.statistics.spread) * noise
