"""Layers of one turn whose KV lies elsewhere while it decodes: of its prompt a part is known."""

from collections.abc import Sequence
from typing import Any

import torch

from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.build import format_of
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.layers import Layers
from kvferry.backends.live.decoding.tiers import KvTiers
from kvferry.backends.needs import KvOnStorage
from kvferry.disk.direct_storage import Data
from kvferry.machine.ops import PrefillLayer
from kvferry.model.decoder import Rotary
from kvferry.model.turn_session import TurnSession
from kvferry.model.whole_prefill import PrefilledLayer


class TurnLayers(Layers):
    """Layers of the one prompt that a `session` has, whose KV is there or comes layer by layer from where it lies. What
    is decoded gets its place in the session, too, from which it may be kept in memory.

    `rotary`: of as many positions as any turn has."""

    def __init__(
        self,
        session: TurnSession,
        need: KvOnStorage,
        *,
        output: int,
        rotary: Rotary,
        index: Index | None,
        tiers: KvTiers,
    ) -> None:
        model, sizes, known = session.decoder.model, need.sizes, need.known
        format = format_of(sizes, model.dtype)
        super().__init__(
            model,
            [session.ids],
            format,
            output=output,
            slots=sizes.staying.slots,
            index=index,
            rebuilt_rank=sizes.keys.rebuilt_rank,
            tiers=tiers,
        )
        self._state.rotary, self._session = rotary, session
        self._coming = torch.zeros(0, dtype=torch.long)
        if known is not None and isinstance(format, BlockFormat):
            group, most = sizes.choice.group_tokens, sizes.choice.blocks
            self.blocks.lying = known.stored.blocks(group, most)  # type: ignore[union-attr]
            coming = known.stored.without(known.near).blocks(group, most)
            at = [torch.arange(begin * group, end * group) for begin, end in coming]
            self._coming = torch.cat(at).to(self.decoder.device) if at else self._coming
            session.coming = frozenset((self._coming // session.block).tolist())

    def _prefilled(self, op: PrefillLayer, inputs: Sequence[Any]) -> PrefilledLayer:
        if len(self._coming):
            self._take_in(self._state.depth, next(one for one in inputs if isinstance(one, Data)))
        return self._session.read_layer(self._state.depth, int(op.tokens))

    def _take_in(self, layer: int, read: Data) -> None:
        """Takes in KV of a layer that was read: of each row the KV blocks that come."""
        format = self.blocks.format
        assert isinstance(format, BlockFormat)
        came = format.unpacked(read.rows()).unflatten(0, (format.rows, -1)).to(self.decoder.device)
        keys, values = format.keys_values(format.side_by_side(came))
        self._session.put_layer(layer, self._coming, keys, values)
        read.release()

    def _put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        super()._put(layer, keys, values)
        session = self._session
        session.kv.append(layer, self._state.position, keys[0], values[0])
        if layer == self.decoder.layers - 1:
            session.history = [*session.ids, *self.answers[0]]
