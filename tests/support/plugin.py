"""Plugins as a user would write them, one entry each, and what takes them back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry.pipelines.plugins import drop, used

LOADER = '''\
"""A loader of one's own."""

from kvferry.policies.loading.single_path import StreamOnly


class Mine(StreamOnly):
    """Streams all, as a test does."""


KVFERRY = {"loader": {"mine": Mine}}
'''
# Goes wrong in line 8, when asked for the first stream.
FAULTY = '''\
from kvferry.policies.loading.single_path import StreamOnly


class Faulty(StreamOnly):
    """Divides by nothing."""

    def next_stream(self, progress, facts):
        return 1 / 0


KVFERRY = {"loader": {"faulty": Faulty}}
'''


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Nothing of a plugin is known behind a test."""
    yield
    for plugin in used():
        drop(plugin)


def written(text: str, name: str = "mine.py") -> Path:
    """The plugin in the current folder."""
    Path(name).write_text(text)
    return Path(name)


# An index that scores by chance, and brings its selector.
RANDOM = '''\
"""Blocks by chance: what any selector has to beat."""

import numpy as np

from kvferry.policies.decode.key_index import IndexShape, KeyIndex


class Random(KeyIndex):
    def __init__(self, shape: IndexShape, seed: int = 0) -> None:
        super().__init__(shape)
        self.chance = np.random.default_rng(seed)

    @staticmethod
    def price(block_tokens, key_width):
        return 0, 1  # nothing is kept

    def scores(self, layer, queries, blocks):
        return self.chance.random((self.shape.sequences, self.shape.heads, blocks))


KVFERRY = {"index": {"random": Random}}
'''
# Heavy hitters: blocks by the attention that they got so far; before that, by their number.
HITTERS = """\
import numpy as np

from kvferry.policies.decode.key_index import IndexShape, KeyIndex


class Hitters(KeyIndex):
    def __init__(self, shape: IndexShape) -> None:
        super().__init__(shape)
        self.mass = np.zeros((shape.layers, shape.sequences, shape.heads, shape.room_blocks), np.float32)

    @staticmethod
    def price(block_tokens, key_width):
        return 1, 1

    def scores(self, layer, queries, blocks):
        return self.mass[layer, :, :, :blocks] + 1e-6 * np.arange(blocks)

    def attended(self, layer, ids, weights):
        assert ids.shape == weights.shape and (weights > 0).all()
        assert (weights.sum(-1) <= self.shape.query_heads / self.shape.heads + 1e-4).all()
        mass = self.mass[layer]
        np.put_along_axis(mass, ids, np.take_along_axis(mass, ids, 2) + weights, 2)


KVFERRY = {"index": {"hitters": Hitters}}
"""
# Sinks and the newest blocks with those that score best, as InfLLM has them.
INFLLM = """\
from dataclasses import dataclass

import numpy as np

from kvferry.policies.decode.page_bounds import PageBounds


@dataclass(frozen=True, kw_only=True)
class InfLLM(PageBounds):
    sinks: int = 1
    recent: int = 2

    def take(self, ranked):
        stored = ranked.stored_blocks
        assert ranked.block_tokens * stored <= ranked.stored_tokens and ranked.scores.shape == ranked.blocks.ids.shape
        return ranked.best_with(np.r_[: self.sinks, stored - self.recent : stored])


KVFERRY = {"selector": {"infllm": InfLLM}}
"""
