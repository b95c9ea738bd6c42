"""Quest: KV blocks by the most that a key of theirs can score (arXiv 2406.10774)."""

from dataclasses import dataclass

from kvferry.policies.decode.top_blocks import TopByOwnQuery
from kvferry.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class PageBounds(TopByOwnQuery):
    """Keeps the least and the largest value of every number of a block's keys in memory: with the layer's own query,
    they bound the score of any key in it."""

    kind = "page-bounds"

    def rank(self, model: ModelSpec) -> int:
        return 2 * model.key_width
