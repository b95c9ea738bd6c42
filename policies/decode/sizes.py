"""Sizes of decoding with KV blocks that are the same in every world: what is chosen among, by what, and what stays."""

from dataclasses import dataclass

from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.policies.decode.spans import Spans


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Sizes what attention chooses among. ``heads``: parts of the KV heads that choose, and are read, for themselves; a
    row is one of them, of a sequence in a layer. ``blocks``: KV blocks of the context in each row, of ``group_tokens``
    each; ``selected``: how many of them are; None: all."""

    group_tokens: int
    heads: int
    blocks: int
    selected: int | None


@dataclass(frozen=True, kw_only=True)
class Known:
    """Sizes what is there of a sequence's KV before its prefill. ``tokens``: of the prompt's, as many; the others are
    prefilled. ``stored``: those whose KV blocks lie already where they are to lie; ``near``: of these, those that have
    a copy in the processor's memory."""

    tokens: int
    stored: Spans = Spans()
    near: Spans = Spans()


@dataclass(frozen=True, kw_only=True)
class KeySizes:
    """Sizes the part of keys that stays in memory. ``index``: what is scored; None: nothing. ``vector_bytes``: what a
    KV block of a row is scored by. ``rebuilt_rank``: numbers per token from which keys are rebuilt, all heads together;
    None: keys are read."""

    index: IndexSpec | None = None
    vector_bytes: int = 0
    rebuilt_rank: int | None = None

    @property
    def rank(self) -> int:
        """Returns width of the compressed keys over all heads, kept to be rebuilt from or scored; 0: there are none."""
        return self.rebuilt_rank or (self.index.rank if self.index else 0)


@dataclass(frozen=True, kw_only=True)
class StayingSizes:
    """Sizes what stays in the processor's memory. ``slots``: of each row's reuse buffer in each layer; 0: there is
    none. ``tokens``: of each row of a layer, kept from one step to the next where slots do not say it.
    ``newest_tokens``: new tokens of a sequence, where the others lie on the host; None: all of them stay.
    ``mapped_bytes``: what a file that is mapped into memory may take there, of the whole batch; None: it is read past
    the page cache. ``ahead``: what of a layer's kept tokens is read while the layer before computes; None: all."""

    slots: int = 0
    tokens: int = 0
    newest_tokens: int | None = None
    mapped_bytes: float | None = None
    ahead: ReadAhead | None = None
