"""Keys and queries of a long generation, token by token: what they say drifts away from the prompt (DynaKV 2.3)."""

import math
from dataclasses import dataclass

import numpy as np

from kvferry.traces.chance import Source, generator

# Kinds of layers: further layers are each like one of these, so that thousands of tokens take seconds.
KINDS = 4


@dataclass(frozen=True, kw_only=True)
class KeyProcess:
    """Statistics of keys and queries, of which a few numbers each matter: ``width`` of a key in every row.

    A text goes from scene to scene, of ``scene_tokens`` on average. Each scene is about a topic: one that was there
    before, the more likely the more often it was, or, with the chance ``novelty``, a new one: so topics that the prompt
    did not have take over as decoding goes on. A topic is a centre in each row, of variance 1 in each number. A key
    lies around its topic's centre, ``spread`` away in each number. The centre itself walks: by ``drift`` in each number
    in a thousand tokens.

    A query looks for the topic of the present scene with the weight ``present``, and for others by an interest of its
    own, whose correlation with itself n tokens later is exp(-n / ``persistence``).
    """

    width: int = 8
    scene_tokens: float = 24.0
    novelty: float = 0.15
    spread: float = 0.35
    drift: float = 0.1
    present: float = 0.6
    persistence: float = 24.0

    def __post_init__(self) -> None:
        if self.width < 1 or not self.scene_tokens >= 1:
            raise ValueError("width and scene_tokens are 1 or more")
        if not (0 <= self.novelty <= 1 and 0 <= self.present <= 1):
            raise ValueError(f"novelty and present lie in 0..1, got {self.novelty} and {self.present}")
        if min(self.spread, self.drift) < 0 or self.persistence <= 0:
            raise ValueError("spread and drift are 0 or more, persistence is positive")

    def topics(self, tokens: int, seed: int, sequence: int) -> np.ndarray:
        """int[tokens]: the topic of each token of a sequence. Longer texts of one seed begin with shorter ones."""
        chance = generator(Source.DECODED_SCENES, seed, sequence)
        changes = chance.random(tokens) < 1 / self.scene_tokens
        changes[0] = True
        news, picks = chance.random(tokens), chance.random(tokens)
        # A scene on a former topic picks one of the former scenes: so topics are as likely as they were frequent.
        of_scene: list[int] = []
        topics = 0
        for at in np.flatnonzero(changes):
            new = not of_scene or news[at] < self.novelty
            of_scene.append(topics if new else of_scene[int(picks[at] * len(of_scene))])
            topics += new
        return np.array(of_scene)[np.cumsum(changes) - 1]

    def drawn(self, tokens: int, kinds: int, sequences: int, heads: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and queries float32[rows, tokens, width]: rows kind by kind, sequence by sequence, head by head."""
        parts = [
            self._of(tokens, heads, seed, kind, sequence) for kind in range(kinds) for sequence in range(sequences)
        ]
        keys, queries = zip(*parts, strict=True)
        return np.concatenate(keys), np.concatenate(queries)

    def _of(self, tokens: int, rows: int, seed: int, *place: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the heads of one kind of layer and one sequence, `place`."""
        topics = self.topics(tokens, seed, place[-1])
        centres = generator(Source.DECODED_CENTRES, seed, *place).standard_normal(
            (int(topics.max()) + 1, rows, self.width), np.float32
        )
        chance = generator(Source.DECODED_KEYS, seed, *place)
        steps = chance.standard_normal((rows, tokens, self.width), np.float32)
        walks = np.cumsum(steps, axis=1) * np.float32(self.drift / math.sqrt(1000))
        there = centres[topics].swapaxes(0, 1) + walks
        keys = there + np.float32(self.spread) * chance.standard_normal((rows, tokens, self.width), np.float32)
        chance = generator(Source.DECODED_QUERIES, seed, *place)
        interest = chance.standard_normal((rows, tokens, self.width), np.float32)
        kept = math.exp(-1 / self.persistence)
        fresh = np.float32(math.sqrt(1 - kept**2))
        for token in range(1, tokens):
            interest[:, token] = np.float32(kept) * interest[:, token - 1] + fresh * interest[:, token]
        own, other = np.float32(math.sqrt(self.present)), np.float32(math.sqrt(1 - self.present))
        return keys, own * there + other * interest
