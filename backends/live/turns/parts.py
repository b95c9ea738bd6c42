"""What conversations need of a real machine: a model, a file for kept KV, and a cloud with what they are about."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.build import storage_measured
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.engine.stream import streams_of
from kvferry.backends.live.loading.cloud_of_contexts import CloudOfContexts
from kvferry.backends.live.loading.cloud_parts import check, nominal_s, stores_folder
from kvferry.backends.live.loading.library import Library, fingerprint
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.live.turns.kv import KvOfConversations
from kvferry.backends.live.turns.runner import TurnRunner
from kvferry.backends.live.turns.texts import Ids, Texts
from kvferry.backends.needs import KvOfTurns, KvOfTurnsInCloud
from kvferry.backends.world import Inputs, Say
from kvferry.codecs.sizes import Encoding
from kvferry.disk.block_sums import BlockSums
from kvferry.disk.direct_storage import Data, Storage
from kvferry.disk.kept_blocks import KeptBlocks
from kvferry.disk.kv_log import log_of
from kvferry.disk.paced_storage import PacedStorage
from kvferry.machine.ops import Extents, KvRef
from kvferry.model.decoders import decoder_of
from kvferry.model.kv import SessionKv
from kvferry.model.session import new_kv
from kvferry.model.turn_session import TurnSession
from kvferry.specs.budget import ContextReuseBudget
from kvferry.specs.errors import InputError
from kvferry.specs.live import ContextReuseLive
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import ContextReuseSpec
from kvferry.traces.chunks import causal_blocks
from kvferry.traces.stored import StoredContext
from kvferry.traces.turn import Turn

# Tokens of a rehearsal.
_FEW = 64


class TurnParts(MachineParts):
    """A runner of turns, the KV that they leave, and the cloud that they load from. `stack` closes all of it."""

    runner: TurnRunner

    def __init__(self, scenario: Scenario, need: KvOfTurns, say: Say, stack: ExitStack) -> None:
        if scenario.load is not None:
            raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
        self._scenario, self._turns = scenario, need.turns
        self.model, prompts = warm_model(scenario)
        longest = need.turns.longest
        self._rotary = decoder_of(self.model, latent=False).rotary(longest.prompt + longest.output)
        texts = Texts(need.turns, prompts)
        codec = need.codec if isinstance(need, KvOfTurnsInCloud) else None
        self._in_cloud = codec is not None
        self._file: KeptBlocks | None = None
        if need.places:
            self._file = _kept_file(scenario, need, self.model, prompts.tokenizer, codec, self._name_of, stack)
            if self._file.dropped:
                say(f"live.kv_file: {self._file.dropped:,} blocks are not whole any more, and are computed again")
            if self._file.storage.note is not None:
                say(self._file.storage.note)
        self.between_turns = self._kv = KvOfConversations(
            need.turns, texts, self._new_session, self._file, need.place_bytes
        )
        # Before the machine is, so that it is closed after it.
        stack.enter_context(closing(self._kv))
        self.runner = TurnRunner(need.turns, self._kv)
        self._cloud: CloudOfContexts | None = None
        self._document_of: list[int] = []
        if codec is not None and any(turn.stored for turn in need.turns.numbered):
            self._cloud, self._document_of = self._documents(codec, texts, say, stack)

    def machine_options(self) -> dict[str, Any]:
        options = {} if self._cloud is None else self._cloud.machine_options()
        return {
            **options,
            "storage": self._file,
            "source": lambda extents, request, inputs: self._kv.source(extents),
            "place": self._place,
            "nominal_s": nominal_s(self._scenario),
            "stream": streams_of(self._scenario.session.live.processor),
        }

    def warm_up(self, machine: LiveMachine) -> None:
        machine.warm(self._rehearse)
        if self._cloud is not None:
            self._cloud.begin()

    def stored(self, sequence: int) -> StoredContext:
        """What a turn's prompt takes: what lies in the cloud by its store, the rest as numbers are."""
        document = None if self._cloud is None else self._cloud.stored[self._document_of[sequence]]
        model, turn = self._scenario.model, self._turns.numbered[sequence]
        return _as_numbers(model, self._turns.block, len(turn.blocks), document)

    def inputs(self) -> Inputs:
        numbers = range(len(self._turns))
        stored = tuple(map(self.stored, numbers)) if self._in_cloud else None
        found = {turn: blocks for turn, blocks in self._kv.found_earlier.items() if blocks}
        return Inputs(stored=stored, found=found or None)

    def measured(self) -> dict[str, Any]:
        found: dict[str, Any] = {"answers": {str(turn): said for turn, said in self._kv.answers.items()}}
        if self._file is not None:
            found |= storage_measured(self._file.storage) | {"kept_blocks_dropped": self._file.dropped}
        return found

    def _name_of(self, block: int) -> bytes:
        return self._kv.name_of(block)

    def _new_session(self, turn: Turn, ids: Ids, spare: SessionKv | None) -> TurnSession:
        return TurnSession(
            self.model, ids, block=self._turns.block, output=turn.output, rotary=self._rotary, spare=spare
        )

    def _documents(self, codec: str, texts: Texts, say: Say, stack: ExitStack) -> tuple[CloudOfContexts, list[int]]:
        """What conversations are about, encoded block by block, and which of it each turn reads."""
        by_source: dict[int, int] = {}
        contexts: list[Ids] = []
        for number, turn in enumerate(self._turns.numbered):
            if turn.source not in by_source:
                by_source[turn.source] = len(contexts)
                contexts.append(texts.document(number))
        document_of = [by_source[turn.source] for turn in self._turns.numbered]
        seen = _as_reuse(self._scenario, max(map(len, contexts)), self._turns.block)
        check(seen, codec)
        _, prompts = warm_model(self._scenario)
        library = Library(seen, self.model, prompts, seen.model.name, stores_folder(), contexts)
        return CloudOfContexts(seen, codec, library, say, stack, document_of.__getitem__), document_of

    def _place(self, kv: KvRef | Extents, to: str, request: int | None, inputs: Sequence[Any]) -> None:
        if isinstance(kv, Extents):
            # What is read for a load got its place as it came into the host's memory.
            if isinstance(inputs[0], Data):
                self._kv.place(kv, inputs[0], request)
            return
        assert self._cloud is not None
        for chunk, keys, values in self._cloud.decoded(inputs[0]):
            self._kv.load(request, chunk, keys, values)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _rehearse(self) -> None:
        """A short turn, twice: kernels are chosen the first time."""
        longest = self._turns.longest
        few, block = min(_FEW, longest.prompt), max(1, min(_FEW, longest.prompt) // 4)
        for _ in range(2):
            session = TurnSession(self.model, [0] * few, block=block, output=4, rotary=self._rotary)
            if session.session is not None:
                session.session.project(0, 0)
                session.session.advance(0, 0)
            for layer in range(session.decoder.layers):
                session.read_layer(layer, few)
            token = session.next_token()
            for _ in range(min(3, longest.output)):
                token = session.after(token)
        # No turn waits for pages of memory.
        self._kv.spare = new_kv(session.decoder, (), longest.prompt + longest.output)
        self._kv.spare.touch()


def _as_numbers(model: ModelSpec, block: int, blocks: int, document: StoredContext | None) -> StoredContext:
    """Returns a prompt of so many blocks that begins with what is stored, the others being computed densely; they are
    nowhere to be fetched."""
    tokens = np.full(blocks, block)
    active = np.repeat(causal_blocks(tokens, np.cumsum(tokens) - tokens)[:, None, None], model.layers, axis=1)
    active = np.repeat(active, model.kv_heads, axis=2)
    n_bytes = np.full(active.shape, 2.0 * block * model.head_dim * model.kv_value_bytes)
    if document is None:
        return StoredContext(tokens, active, Encoding(n_bytes, (1.0,), entropy_coded=False))
    there = len(document.tokens)
    active = np.concatenate([document.active_blocks, active[there:]])
    n_bytes = np.concatenate([document.encoding.encoded_bytes, n_bytes[there:]])
    return StoredContext(tokens, active, replace(document.encoding, encoded_bytes=n_bytes))


def _as_reuse(scenario: Scenario, context: int, block: int) -> Scenario:
    """Returns the scenario of conversations as one that loads contexts, cut into blocks."""
    shared = {
        key: getattr(scenario.live, key) for key in ("weights", "family", "dtype", "processor", "text", "threads")
    }
    workload = ContextReuseSpec(kind="context-reuse", context=max(1, context), chunk_tokens=block)
    live, budget = ContextReuseLive(**shared), ContextReuseBudget()
    return scenario.model_copy(update={"workload": workload, "live": live, "budget": budget, "policies": {}})


def _kept_file(
    scenario: Scenario,
    need: KvOfTurns,
    model: PreTrainedModel,
    tokenizer: str,
    codec: str | None,
    name_of: Callable[[int], bytes],
    stack: ExitStack,
) -> KeptBlocks:
    live, block = scenario.session.live, need.turns.block
    of: dict[str, str | int] = {
        "model": scenario.model.name,
        "weights": fingerprint(model),
        "tokenizer": tokenizer,
        "numbers": str(model.dtype).removeprefix("torch."),
        # KV that was loaded has been through it.
        "codec": codec or "none",
        "block tokens": block,
    }
    path, temporary = None if live.kv_file is None else Path(live.kv_file), ExitStack()
    if path is None:
        try:
            made = tempfile.TemporaryDirectory(prefix="kvferry-kept-", dir=live.kv_folder)
        except OSError as error:
            raise InputError(f"live.kv_folder: {live.kv_folder}: no file can be made there: {error.strerror}") from None
        path = Path(temporary.enter_context(made)) / "kept.kv"
    like = scenario.device.storage
    with temporary:
        kept = KeptBlocks(
            path,
            of,
            places=need.places,
            place_bytes=need.place_bytes,
            make=partial(_storage, like if live.paced else None, 32 if like is None else like.queue_depth),
            name_of=name_of,
        )
        stack.enter_context(closing(kept))
        if live.kv_file is None:
            # Without names from now on: however this process ends, their room is given back.
            path.unlink()
            log_of(path).unlink()
    return kept


def _storage(like: Any, depth: int, path: Path, sums: BlockSums) -> Storage:
    if like is None:
        return Storage(path, writable=True, depth=depth, sums=sums)
    return PacedStorage(path, like=like, writable=True, depth=depth, sums=sums)
