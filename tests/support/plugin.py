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
