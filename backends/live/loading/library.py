"""A scenario's contexts, computed by its real model and encoded into stores, which the cloud of a live run serves."""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.backends.live.loading.runner import Prompt
from kvferry.backends.sim.parts import ModelledContexts
from kvferry.backends.world import Say
from kvferry.cloud.store import DamagedStore, Index, Store, StoredModel, StoreHeader, StoreWriter
from kvferry.cloud.store_folder import SUFFIX
from kvferry.codecs import codec
from kvferry.codecs.pool import CodecPool
from kvferry.codecs.sizes import CODECS, Encoding
from kvferry.model.attention import Attention, BlockSparse, dense
from kvferry.model.prompts import Prompts
from kvferry.model.recording import Recording, record
from kvferry.model.session import Session
from kvferry.specs.errors import InputError, pick
from kvferry.specs.scenario import Scenario
from kvferry.traces.chunks import causal_blocks
from kvferry.traces.requests import ContextRequests, context_requests
from kvferry.traces.stored import StoredContext

# Chunks that wait for the encoders at most.
_AHEAD = 8


class Library:
    """The contexts of a scenario's requests, by number: their prompts, their stores in `folder`, their sizes.

    A store's name is a hash of everything that it is made from, so that it can be used again by later runs.
    `contexts`: token ids, in place of those that the workload has.
    """

    def __init__(
        self,
        scenario: Scenario,
        model: PreTrainedModel,
        prompts: Prompts,
        name: str,
        folder: Path,
        contexts: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        self._scenario, self._model, self._prompts, self.folder = scenario, model, prompts, folder
        spec, workload = scenario.model, scenario.context_reuse.workload
        self.stored_model = StoredModel(
            name=name,
            fingerprint=fingerprint(model),
            tokenizer=prompts.tokenizer,
            layers=spec.layers,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
        )
        self.asked = context_requests(workload, scenario.seed)
        longest_question = workload.turns * max(one.question for one in self.asked.requests)
        self._apart = max(self.asked.contexts) + longest_question
        self._recordings: dict[int, Recording] = {}
        self._contexts: dict[int, tuple[int, ...]] = {}
        if contexts is not None:
            self.asked = ContextRequests(contexts=tuple(map(len, contexts)), requests=(), closed=True)
            self._contexts = dict(enumerate(contexts))

    def tokens(self, sequence: int) -> list[int]:
        """The tokens of each token chunk of a context."""
        each = self._scenario.context_reuse.workload.chunk_tokens
        whole, rest = divmod(self.asked.contexts[sequence], each)
        return [each] * whole + ([rest] if rest else [])

    def name(self, sequence: int, codec_name: str) -> str:
        """The name of a context's store: the same for the same model, tokens, chunks and codec."""
        made_from = hashlib.sha256()
        context, tokens = self._context(sequence), self.tokens(sequence)
        parts = (self.stored_model.model_dump_json(exclude={"name"}), codec_name, codec.VERSION, tokens, context)
        for part in parts:
            made_from.update(repr(part).encode() + b"\0")
        return f"{codec_name}-{made_from.hexdigest()[:20]}"

    def prompt(self, request: int) -> Prompt:
        """The prompt of the conversation that begins with this request. Conversations about one context ask the same
        questions."""
        turns = self._scenario.context_reuse.workload.turns
        asked = self.asked.requests[request // turns]
        context, questions = self._prompts.tokens(asked.source, asked.context, turns * asked.question, self._apart)
        return Prompt(context, questions, asked.output, self._attention(asked.source), turns)

    def ensure(self, sequence: int, codec_name: str, say: Say) -> Path:
        """The path of a context's store, which is written unless it exists and holds this context. Raises InputError
        when it cannot be written."""
        path = self.folder / f"{self.name(sequence, codec_name)}{SUFFIX}"
        if path.exists():
            try:
                with Store(path) as store:
                    self.check(sequence, codec_name, store.index)
                    return path
            except (InputError, DamagedStore) as error:
                say(f"{path} is not context {sequence} as it should be, and is written again: {error}")
        say(f"encoding context {sequence} ({self.asked.contexts[sequence]:,} tokens, {codec_name})")
        self._write(path, sequence, codec_name)
        return path

    def check(self, sequence: int, codec_name: str, index: Index) -> None:
        """Raises InputError when this is the index of another context, model, chunking or codec: a name proves nothing,
        as files can be renamed."""
        context = self._context(sequence)
        index.check_context(self._header(sequence, codec_name), context)

    def _header(self, sequence: int, codec_name: str) -> StoreHeader:
        return StoreHeader.at_all_levels(self.stored_model, self.tokens(sequence), codec_name)

    def stored(self, sequence: int, index: Index) -> StoredContext:
        """A context with the sizes of its store, and with the attention blocks that this scenario's attention runs."""
        coded = pick("codec", CODECS, index.header.codec)(np.ones((1, 1, 1)), 1).entropy_coded
        return self._stored(sequence, Encoding(index.encoded_bytes(), index.level_scale, coded))

    def estimated(self, sequence: int, codec_name: str) -> StoredContext:
        """A context without a store: with the sizes that the simulator models."""
        return self._stored(
            sequence, ModelledContexts(self._scenario, codec_name, self.asked.contexts).stored(sequence).encoding
        )

    def _stored(self, sequence: int, encoding: Encoding) -> StoredContext:
        tokens = np.array(self.tokens(sequence))
        if self._scenario.context_reuse.live.attention == "dense":
            blocks = causal_blocks(tokens, np.cumsum(tokens) - tokens)
            active = np.broadcast_to(blocks[:, None, None], encoding.encoded_bytes.shape)
        else:
            active = self._recording(sequence).chunks.active_blocks
        return StoredContext(tokens, active, encoding)

    def _attention(self, sequence: int) -> Attention:
        return (
            dense
            if self._scenario.context_reuse.live.attention == "dense"
            else BlockSparse(self._recording(sequence).masks)
        )

    def _recording(self, sequence: int) -> Recording:
        """The block masks of a context, found in the real attention of a dense prefill, which runs once."""
        if sequence not in self._recordings:
            context = self._context(sequence)
            chunk_tokens = self._scenario.context_reuse.workload.chunk_tokens
            self._recordings[sequence] = record(self._model, context, chunk_tokens=chunk_tokens, room=1)
        return self._recordings[sequence]

    def _write(self, path: Path, sequence: int, codec_name: str) -> None:
        context = self._context(sequence)
        header = self._header(sequence, codec_name)
        session = Session(self._model, context, chunk_tokens=self._scenario.context_reuse.workload.chunk_tokens, room=1)
        session.prefill()
        waiting: deque[tuple[tuple[int, int, int], int, Future[bytes]]] = deque()
        with CodecPool(2) as pool, StoreWriter(path, header, context) as writer:

            def put() -> None:
                place, level, data = waiting.popleft()
                writer.put(*place, data.result(), level)

            for place, keys, values in chunks_of(session):
                depth = place[1] / self._scenario.model.layers
                for level in range(header.levels):
                    waiting.append((place, level, pool.encode(codec_name, keys, values, level, depth)))
                while len(waiting) > _AHEAD:
                    put()
            while waiting:
                put()

    def _context(self, sequence: int) -> tuple[int, ...]:
        if sequence not in self._contexts:
            self._contexts[sequence], _ = self._prompts.tokens(sequence, self.asked.contexts[sequence], 0, self._apart)
        return self._contexts[sequence]


def chunks_of(session: Session) -> Iterator[tuple[tuple[int, int, int], np.ndarray, np.ndarray]]:
    """Every chunk (t, l, h) with its keys and values as float32[tokens, head_dim]."""
    kv = session.kv
    for place in np.ndindex(len(kv.tokens), kv.layers, kv.heads):
        keys, values = (part.float().cpu().numpy() for part in kv.chunk(*place))
        yield place, keys, values


def fingerprint(model: PreTrainedModel) -> str:
    """A hash that differs when the weights do. Of large tensors it covers a sample, of small ones every number."""
    found = hashlib.sha256()
    for name, weights in sorted(model.state_dict().items()):
        sample = weights.flatten()[:: max(1, weights.numel() // 65_536)]
        found.update(f"{name} {tuple(weights.shape)} {weights.dtype}\0".encode())
        found.update(sample.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()[:32]
