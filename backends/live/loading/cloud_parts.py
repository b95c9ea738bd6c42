"""What a real world needs to load stored contexts: a server with the contexts, a client, decoders."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.backends.live.engine.link import FETCHES_AHEAD, Fetched
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.engine.stream import streams_of
from kvferry.backends.live.loading.distortion import relative_errors
from kvferry.backends.live.loading.library import Library, chunks_of
from kvferry.backends.live.loading.runner import SessionRunner
from kvferry.backends.live.loading.temporary_stores import TemporaryStores
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.needs import ContextsInCloud
from kvferry.backends.world import Inputs, Say
from kvferry.cloud.client import CloudClient, CloudGone, WrongToken
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import DamagedStore, Index
from kvferry.codecs import codec
from kvferry.codecs.pool import CodecPool
from kvferry.machine.ops import Decompress, KvRef
from kvferry.model.prompts import Prompts
from kvferry.model.scenario_model import model_of
from kvferry.model.session import Session
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.errors import InputError, LinkDown
from kvferry.specs.scenario import Scenario
from kvferry.traces.stored import StoredContext

# The variable that names the folder of encoded contexts, to keep them from run to run. Without it they are temporary.
STORES = "KVFERRY_STORES"
TOKEN = "KVFERRY_TOKEN"


class LoadingParts(MachineParts):
    """What a LiveMachine needs to load contexts: a session runner, a client and decoders. `stack` closes them."""

    runner: SessionRunner

    def __init__(self, scenario: Scenario, need: ContextsInCloud, say: Say, stack: ExitStack) -> None:
        codec_name = need.codec
        check(scenario, codec_name)
        self.model, self._library = _library(scenario, stores_folder())
        self._scenario, self._codec_name = scenario, codec_name
        sequences = range(len(self._library.asked.contexts))
        names = [self._library.name(n, codec_name) for n in sequences]
        url = scenario.context_reuse.live.cloud
        if url is None:
            for n in sequences:
                self._library.ensure(n, codec_name, say)
            server = ServerProcess(self._library.folder, scenario.link, token=None)
            url = stack.enter_context(server).url
        self.client = stack.enter_context(CloudClient(url, token=os.environ.get(TOKEN), names=names.__getitem__))
        self._stored, self._gone = self._weighed(names, codec_name, say)
        self.runner = SessionRunner(
            self.model, self._library.prompt, chunk_tokens=scenario.context_reuse.workload.chunk_tokens
        )
        self._pool = stack.enter_context(CodecPool(scenario.device.decompressor.workers))
        self._pool.decode(self._first_chunks(codec_name)).result()
        # Of the encoding, by level; measured as all is run once.
        self._kv_errors: list[float] = []

    def machine_options(self) -> dict[str, Any]:
        device = self._scenario.device
        costs = main_costs(self._scenario.costs.truth, device, self._scenario.model)
        dispatch_s = device.processors[device.main].dispatch_s
        return {
            "fetcher": self._gone or self.client,
            "decode": self._decode,
            "decompress_workers": device.decompressor.workers,
            "place": self._place,
            "nominal_s": lambda op: costs.cost(op).duration_s + dispatch_s,
            "stream": streams_of(self._scenario.context_reuse.live.processor),
        }

    def warm_up(self, machine: LiveMachine) -> None:
        machine.warm(self._warm_up)
        if self._gone is None:
            self.client.connect(FETCHES_AHEAD)
        if self._scenario.context_reuse.live.cloud is None and self._gone is None:
            with suppress(LinkDown):  # the fetches will tell
                self.client.restart_replay()

    def stored(self, sequence: int) -> StoredContext:
        return self._stored[sequence]

    def inputs(self) -> Inputs:
        return Inputs(stored=tuple(self._stored))

    def measured(self) -> dict[str, Any]:
        answers = {str(request): answer for request, answer in sorted(self.runner.answers.items())}
        return {"answers": answers, "kv_relative_errors": self._kv_errors}

    def _weighed(self, names: Sequence[str], codec_name: str, say: Say) -> tuple[list[StoredContext], CloudGone | None]:
        """The contexts with the sizes of their stores. Without the cloud, or with a damaged index there, everything is
        computed locally: then the sizes are the modelled ones, and the second value is what fetches fail with."""
        try:
            return [self._library.stored(n, self._index(n, name, codec_name)) for n, name in enumerate(names)], None
        except (LinkDown, DamagedStore) as error:
            say(f"nothing can be fetched: {error}")
            return [self._library.estimated(n, codec_name) for n in range(len(names))], CloudGone(str(error))

    def _index(self, sequence: int, name: str, codec_name: str) -> Index:
        try:
            index = self.client.index(name)
            self._library.check(sequence, codec_name, index)
            return index
        except WrongToken as error:
            has = "holds another" if os.environ.get(TOKEN) else "is not set"
            raise InputError(f"live.cloud: {error}; it is taken from {TOKEN}, which {has}") from None
        except InputError as error:
            if self._scenario.context_reuse.live.cloud is None:
                raise
            raise InputError(
                f"live.cloud: context {sequence} of this scenario cannot be had: {error}; "
                f"`kvferry encode` makes its store for the server's folder"
            ) from None

    def _warm_up(self) -> None:
        """Run everything once: the first time is slow, as kernels are chosen and pages of buffers are mapped, and no
        request should pay for it."""
        workload, asked = self._scenario.context_reuse.workload, self._library.asked
        for one in asked.requests[: 1 if asked.closed else 8]:
            self.runner.reserve(one.context, workload.turns * (one.question + one.output))
        prompt = self._library.prompt(0)
        few = prompt.context[: 2 * workload.chunk_tokens]
        for _ in range(2):
            session = Session(
                self.model,
                few,
                chunk_tokens=workload.chunk_tokens,
                room=len(prompt.questions) + 1,
                attention=prompt.attention,  # masks of the first chunks are those of the few as well
            )
            session.prefill()
            session.read(prompt.question(0))
            session.read(prompt.questions[:1])
        self._kv_errors = relative_errors(chunks_of(session), self._codec_name, self._scenario.model.layers)
        self.runner.session(0)

    def _first_chunks(self, codec_name: str) -> list[bytes]:
        heads = np.zeros(
            (self._scenario.context_reuse.workload.chunk_tokens, self._scenario.model.head_dim), np.float32
        )
        return [codec.encode(codec_name, heads, heads)]

    def _decode(self, op: Decompress, request: int | None, inputs: Sequence[Any]) -> "tuple[Fetched, Any]":
        fetched: Fetched = inputs[0]
        return fetched, self._pool.decode(self._split(fetched)).result()

    def _split(self, fetched: Fetched) -> list[memoryview]:
        """The chunks of a payload. Raises DamagedChunk when they are not the ones that were fetched: the checksums of a
        store fit whatever its writer has put there, two chunks in place of one as well."""
        chunks, ids = codec.split(fetched.payload), fetched.chunks.ids
        if len(chunks) != len(ids):
            raise codec.DamagedChunk(f"{len(chunks)} encoded chunks came in place of {len(ids)}")
        spec, tokens = self._scenario.model, self._library.tokens(fetched.chunks.sequence)
        for i, chunk in zip(ids, chunks, strict=True):
            wanted = codec.Shape(
                self._codec_name, fetched.chunks.level, tokens[i // (spec.layers * spec.kv_heads)], spec.head_dim
            )
            if (came := codec.shape_of(chunk)) != wanted:
                raise codec.DamagedChunk(f"chunk {i} is {came}, not {wanted}")
        return chunks

    def _place(self, kv: KvRef, to: str, request: int | None, inputs: Sequence[Any]) -> None:
        if isinstance(inputs[0], Fetched):  # nothing is entropy-coded: numbers are restored where they are used
            fetched, decoded = inputs[0], codec.decode_many(self._split(inputs[0]))
        else:
            fetched, decoded = inputs[0]
        assert request is not None
        for chunk, (keys, values) in zip(fetched.chunks.ids, decoded, strict=True):
            self.runner.load(request, chunk, keys, values)


def encode_contexts(scenario: Scenario, codec_name: str, folder: Path, say: Say) -> Iterator[Path]:
    """Write those stores of a scenario's contexts that do not exist yet; yields the path of each. Raises InputError."""
    check(scenario, codec_name)
    _, library = _library(scenario, _made(folder, "--output"))
    for n in range(len(library.asked.contexts)):
        yield library.ensure(n, codec_name, say)


def _library(scenario: Scenario, folder: Path) -> tuple[PreTrainedModel, Library]:
    torch.set_num_threads(scenario.context_reuse.live.threads)
    model, model_folder = model_of(scenario)
    text = None if scenario.context_reuse.live.text is None else Path(scenario.context_reuse.live.text)
    prompts = Prompts(model_folder, scenario.model.vocabulary, text, scenario.seed)
    return model, Library(scenario, model, prompts, scenario.model.name, folder)


def stores_folder() -> Path:
    """The folder of encoded contexts: the user's, or one that goes with this process."""
    kept = os.environ.get(STORES)
    return _made(Path(kept).expanduser(), STORES) if kept else _temporary_stores().path


def _made(folder: Path, asked_by: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{asked_by}: {folder}: cannot be made: {error.strerror}") from None
    return folder


@cache
def _temporary_stores() -> TemporaryStores:
    return TemporaryStores()


def check(scenario: Scenario, codec_name: str) -> None:
    """Raises InputError for what a real world cannot do: compute heads separately, add background load, encode with a
    codec that has only modelled sizes, or use recorded chunks."""
    if scenario.coupling != "all_heads":
        raise InputError("coupling: a real model computes all heads of a layer together; set coupling: all_heads")
    if scenario.load is not None:
        raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
    if codec_name not in codec.CODECS:
        known = ", ".join(codec.CODECS)
        raise InputError(f"policies.codec: {codec_name!r} has sizes but no real encoder; backend torch knows {known}")
    if scenario.context_reuse.workload.chunks is not None:
        raise InputError("workload.chunks: backend torch makes its chunks with the model itself; leave chunks out")
