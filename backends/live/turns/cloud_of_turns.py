"""The cloud of conversations: what they are about, and the KV that their turns send there and load again."""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvferry.backends.live.engine.link import Fetcher
from kvferry.backends.live.engine.thread_work import Moving
from kvferry.backends.live.loading.cloud_of_contexts import CloudOfContexts
from kvferry.backends.live.loading.library import Library
from kvferry.backends.world import Say
from kvferry.cloud.store import DamagedStore, Index, Store, StoreHeader, StoreWriter
from kvferry.codecs import codec
from kvferry.codecs.sizes import CODECS, Encoding
from kvferry.machine.ops import Chunks
from kvferry.specs.errors import InputError, LinkDown, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.stored import StoredContext
from kvferry.traces.turn import Turns


class CloudOfTurns(CloudOfContexts):
    """A CloudOfContexts of documents, whose number `document_of` says for a turn, and a Fetcher of what turns read.
    Blocks behind a document lie there as stores of their own, which are named by their tokens and all before them.
    `takes`: turns send KV; `finds`: what earlier runs have sent is taken for there."""

    def __init__(
        self,
        scenario: Scenario,
        codec_name: str,
        library: Library,
        say: Say,
        stack: ExitStack,
        *,
        turns: Turns,
        document_of: Mapping[int, int],
        takes: bool,
        finds: bool,
    ) -> None:
        self._turns, self._document_of = turns, document_of
        # By block: its number among all that lie here, and its index. By number: its name there.
        self._numbers: dict[int, int] = {}
        self._names: list[str] = []
        self._indexes: dict[int, Index] = {}
        super().__init__(scenario, codec_name, library, say, stack, lambda turn: document_of[turn], takes=takes)
        self._listed: frozenset[str] = frozenset()
        if takes and finds:
            with suppress(LinkDown, InputError):
                self._listed = frozenset(self.client.contexts())

    # --- what lies there -----------------------------------------------------------------------------------------

    def document(self, turn: int) -> StoredContext | None:
        """Returns what a turn's conversation is about; None: nothing."""
        number = self._document_of.get(turn)
        return None if number is None else self.stored[number]

    def stored_turn(self, turn: int, as_numbers: StoredContext) -> StoredContext:
        """Returns what a turn's prompt takes, where blocks that do not lie here are `as_numbers`."""
        document = self.document(turn)
        there = 0 if document is None else len(document.tokens)
        n_bytes, active = as_numbers.encoding.encoded_bytes.copy(), as_numbers.active_blocks.copy()
        scale: tuple[float, ...] = (1.0,)
        if document is not None:
            n_bytes[:there], active[:there] = document.encoding.encoded_bytes, document.active_blocks
            scale = document.encoding.level_scale
        for n, block in enumerate(self._turns.numbered[turn].blocks):
            if n >= there and (index := self._indexes.get(block)) is not None:
                n_bytes[n], scale = index.encoded_bytes()[0], scale if there else index.level_scale
        known = there or any(block in self._indexes for block in self._turns.numbered[turn].blocks)
        return StoredContext(as_numbers.tokens, active, Encoding(n_bytes, scale, bool(known) and self._entropy_coded))

    def found(self, names: Mapping[int, bytes]) -> list[int]:
        """Returns those of these blocks that lie here, which an earlier run may have sent."""
        for block, name in names.items():
            stored = self._numbered(block, name)
            if block not in self._indexes and stored in self._listed:
                with suppress(LinkDown, InputError, DamagedStore):
                    index = self.client.index(stored, self._library.stored_model)
                    if index.header == self._header:
                        self._indexes[block] = index
        return [block for block in names if block in self._indexes]

    # --- what goes there -----------------------------------------------------------------------------------------

    def send(self, block: int, name: bytes, ids: Sequence[int], kv: torch.Tensor) -> LinkDown | None:
        """Encodes KV [layers, 2, heads, tokens, head_dim] of a block and has it kept here. Returns why it could not
        be."""
        stored = self._numbered(block, name)
        try:
            with tempfile.TemporaryDirectory(prefix="kvferry-sent-") as folder:
                self._indexes[block] = self._put(stored, Path(folder) / "block.kvs", ids, kv)
        except (LinkDown, InputError, OSError) as error:
            return LinkDown(str(error))
        return None

    def _put(self, stored: str, path: Path, ids: Sequence[int], kv: torch.Tensor) -> Index:
        with StoreWriter(path, self._header, ids) as writer:
            layers, _, heads = kv.shape[:3]
            for l, h, level in np.ndindex(layers, heads, self._header.levels):
                keys, values = (kv[l, side, h].float().cpu().numpy() for side in (0, 1))
                encoded = self._pool.encode(self._codec_name, keys, values, level, l / layers)
                writer.put(0, l, h, encoded.result(), level)
        with Store(path) as store:
            index = store.index
        self.client.put(stored, path.read_bytes(), index)
        return index

    # --- as a Fetcher --------------------------------------------------------------------------------------------

    def machine_options(self) -> dict[str, Any]:
        options = super().machine_options()
        self._behind: Fetcher = options["fetcher"]
        return {**options, "fetcher": self}

    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes | memoryview:
        document, blocks = self.document(chunks.sequence), self._turns.numbered[chunks.sequence].blocks
        there, each = 0 if document is None else len(document.tokens), self._per_block
        parts: list[bytes | memoryview] = []
        for n, ids in groupby(chunks.ids, lambda one: one // each if one >= there * each else -1):
            if n < 0:
                part = Chunks(chunks.sequence, tuple(ids), chunks.n_bytes, chunks.level)
            else:
                # Behind those of turns come sequences of blocks.
                block = len(self._turns) + self._numbers[blocks[n]]
                part = Chunks(block, tuple(one - n * each for one in ids), chunks.n_bytes, chunks.level)
            parts.append(self._behind.fetch(part, request, moving))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _name_of(self, sequence: int) -> str:
        behind = sequence - len(self._turns)
        return super()._name_of(sequence) if behind < 0 else self._names[behind]

    def _tokens_of(self, sequence: int) -> Sequence[int]:
        return [self._turns.block] * len(self._turns.numbered[sequence].blocks)

    # --- what they share -----------------------------------------------------------------------------------------

    @property
    def _per_block(self) -> int:
        model = self._library.stored_model
        return model.layers * model.kv_heads

    @cached_property
    def _header(self) -> StoreHeader:
        return StoreHeader.at_all_levels(self._library.stored_model, [self._turns.block], self._codec_name)

    @cached_property
    def _entropy_coded(self) -> bool:
        return bool(pick("codec", CODECS, self._codec_name)(np.ones((1, 1, 1)), 1).entropy_coded)

    def _numbered(self, block: int, of_tokens: bytes) -> str:
        """Gives a block its number and returns its name, which its tokens say."""
        number, stored = self._numbers.setdefault(block, len(self._names)), self._name(of_tokens)
        self._names[number : number + 1] = [stored]
        return stored

    def _name(self, of_tokens: bytes) -> str:
        """The name of a block's store: the same for the same model, tokens, block and codec."""
        model = self._library.stored_model.model_dump_json(exclude={"name"})
        made_from = f"{model} {codec.VERSION} {self._turns.block} {of_tokens.hex()}"
        return f"{self._codec_name}-turn-{hashlib.sha256(made_from.encode()).hexdigest()[:32]}"
