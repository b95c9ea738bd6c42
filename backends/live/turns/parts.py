"""What conversations need of a real machine: a model, a file for kept KV, and a cloud with what they are about."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.backends.live.assist.parts import tokens_of
from kvferry.backends.live.decoding.build import check_plan, storage_measured
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.backends.live.decoding.written import Bytes
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.engine.stream import streams_of
from kvferry.backends.live.loading.cloud_parts import check, nominal_s, stores_are_kept, stores_folder
from kvferry.backends.live.loading.library import Library
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.live.turns.cloud_of_turns import CloudOfTurns
from kvferry.backends.live.turns.files import check_decoding, kept_file, turn_file
from kvferry.backends.live.turns.in_blocks import TurnsInBlocks
from kvferry.backends.live.turns.kv import KvOfConversations
from kvferry.backends.live.turns.runner import TurnRunner
from kvferry.backends.live.turns.texts import Ids, Texts
from kvferry.backends.needs import KvOfTurns, KvOfTurnsInCloud, KvOnStorage
from kvferry.backends.world import Inputs, Say
from kvferry.codecs.sizes import Encoding
from kvferry.disk.direct_storage import Data
from kvferry.machine.ops import DecodeRun, Extents, KvRef, Op
from kvferry.model.decoder import Rotary
from kvferry.model.decoders import decoder_of
from kvferry.model.kv import SessionKv
from kvferry.model.session import new_kv
from kvferry.model.turn_session import TurnSession
from kvferry.specs.budget import ContextReuseBudget
from kvferry.specs.errors import InputError
from kvferry.specs.live import ContextReuseLive
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.specs.tier import Tier
from kvferry.specs.workload import ContextReuseSpec
from kvferry.traces.chunks import causal_blocks
from kvferry.traces.stored import StoredContext
from kvferry.traces.turn import Turn

# Tokens of a rehearsal.
_FEW = 64


class TurnParts(MachineParts):
    """A runner of turns, the KV that they leave, and the cloud that they load from. `stack` closes all of it."""

    def __init__(self, scenario: Scenario, need: KvOfTurns, say: Say, stack: ExitStack) -> None:
        if scenario.load is not None:
            raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
        self._scenario, self._turns, self._price_s = scenario, need.turns, nominal_s(scenario)
        self.model, prompts = warm_model(scenario)
        longest = need.turns.longest
        self._rotary = decoder_of(self.model, latent=False).rotary(longest.tokens)
        texts = Texts(need.turns, prompts)
        codec = need.codec if isinstance(need, KvOfTurnsInCloud) else None
        self._in_cloud = codec is not None
        check_decoding(scenario, need)
        self._file = kept_file(scenario, need, self.model, prompts.tokenizer, codec, self._name_of, stack)
        if self._file is not None:
            if self._file.dropped:
                say(f"live.kv_file: {self._file.dropped:,} blocks are not whole any more, and are computed again")
            if self._file.storage.note is not None:
                say(self._file.storage.note)
        self._storage = turn_file(scenario, need, self._file, stack)
        self.between_turns = self._kv = KvOfConversations(
            need.turns, texts, self._new_session, self._file, need.place_bytes, self._storage
        )
        # Before the machine is, so that it is closed after it.
        stack.enter_context(closing(self._kv))
        helped = tokens_of(prompts) if need.helped else None
        self._turn_runner = turns = TurnRunner(need.turns, self._kv, helped, prompts.tokenizer)
        self.runner: TurnRunner | TurnsInBlocks = turns
        self._in_blocks: TurnsInBlocks | None = None
        if need.decoding is not None:
            self.runner = self._in_blocks = TurnsInBlocks(need, self.model, prompts, self._kv, turns, self._rotary, say)
        self._cloud: CloudOfTurns | None = None
        sends = isinstance(need, KvOfTurnsInCloud) and need.sends
        if codec is not None and (sends or any(turn.stored for turn in need.turns.numbered)):
            self._cloud = self._documents(codec, texts, say, stack, takes=sends)
            self._kv.cloud = self._cloud if sends else None

    def machine_options(self) -> dict[str, Any]:
        options = {} if self._cloud is None else self._cloud.machine_options()
        return {
            **options,
            "storage": self._storage,
            "source": self._source,
            "handler": self._turn_runner.handle,
            "place": self._place,
            "nominal_s": self._nominal_s,
            "stream": streams_of(self._scenario.session.live.processor),
        }

    def _nominal_s(self, op: Op) -> float | None:
        # One that goes on behind a cloud may wait for it.
        return None if isinstance(op, DecodeRun) else self._price_s(op)

    def warm_up(self, machine: LiveMachine) -> None:

        def rehearse() -> None:
            self._kv.spare = _rehearse(self.model, self._rotary, self._turns.longest)

        machine.warm(rehearse)
        self._kv.machine = machine
        self._turn_runner.begin(machine.env)
        if self._cloud is not None:
            self._cloud.begin()

    def stored(self, sequence: int) -> StoredContext:
        """What a turn's prompt takes: what lies in the cloud by its store, the rest as numbers are."""
        numbers = _as_numbers(self._scenario.model, self._turns.block, len(self._turns.numbered[sequence].blocks))
        return numbers if self._cloud is None else self._cloud.stored_turn(sequence, numbers)

    def inputs(self) -> Inputs:
        numbers = range(len(self._turns))
        stored = tuple(map(self.stored, numbers)) if self._in_cloud else None
        found = {turn: blocks for turn, blocks in self._kv.found_earlier.items() if blocks}
        turns = None if self._in_blocks is None else self._in_blocks.chosen
        in_cloud = {turn: blocks for turn, blocks in self._kv.found_in_cloud.items() if blocks}
        return Inputs(stored=stored, found=found or None, in_cloud=in_cloud or None, turns=turns)

    def measured(self) -> dict[str, Any]:
        found: dict[str, Any] = {"answers": {str(turn): said for turn, said in self._kv.answers.items()}}
        if self._file is not None:
            found |= storage_measured(self._file.storage) | {"kept_blocks_dropped": self._file.dropped}
        return found if self._in_blocks is None else found | self._in_blocks.measured()

    def turn(self, number: int, need: KvOnStorage) -> None:
        assert self._in_blocks is not None
        check_plan(need.sizes, self._scenario.session.live.processor)
        self._in_blocks.begin(need)

    def _source(self, extents: Extents, request: int | None, inputs: Sequence[Any]) -> Bytes:
        if extents.blocks is None and self._in_blocks is not None:
            return self._in_blocks.tiers.source(extents, request, inputs)
        return self._kv.source(extents)

    def _name_of(self, block: int) -> bytes:
        return self._kv.name_of(block)

    def _new_session(self, turn: Turn, ids: Ids, spare: SessionKv | None) -> TurnSession:
        return TurnSession(
            self.model, ids, block=self._turns.block, output=turn.output, rotary=self._rotary, spare=spare
        )

    def _documents(self, codec: str, texts: Texts, say: Say, stack: ExitStack, *, takes: bool) -> CloudOfTurns:
        """What conversations are about, encoded block by block, and which of it each turn reads."""
        by_source: dict[int, int] = {}
        contexts: list[Ids] = []
        document_of: dict[int, int] = {}
        for number, turn in enumerate(self._turns.numbered):
            if not turn.stored:
                continue
            if turn.source not in by_source:
                by_source[turn.source] = len(contexts)
                contexts.append(texts.document(number))
            document_of[number] = by_source[turn.source]
        seen = _as_reuse(self._scenario, max(map(len, contexts), default=0), self._turns.block)
        check(seen, codec)
        _, prompts = warm_model(self._scenario)
        library = Library(seen, self.model, prompts, seen.model.name, stores_folder(), contexts)
        return CloudOfTurns(
            seen,
            codec,
            library,
            say,
            stack,
            turns=self._turns,
            document_of=document_of,
            takes=takes,
            finds=stores_are_kept(),
        )

    def _place(self, kv: KvRef | Extents, to: Tier, request: int | None, inputs: Sequence[Any]) -> Data | None:
        if isinstance(kv, Extents) and kv.blocks is None and self._in_blocks is not None:
            return self._in_blocks.tiers.place(kv, to, request, inputs)
        if isinstance(kv, Extents):
            # What is read for a load got its place as it came into the host's memory.
            if isinstance(inputs[0], Data):
                self._kv.place(kv, inputs[0], request)
            return None
        assert self._cloud is not None
        for chunk, keys, values in self._cloud.decoded(inputs[0]):
            self._kv.load(request, chunk, keys, values)
        return None


@torch.no_grad()  # type: ignore[untyped-decorator]
def _rehearse(model: PreTrainedModel, rotary: Rotary, longest: Turn) -> SessionKv:
    """Takes a short turn, twice: kernels are chosen the first time. Returns buffers for the longest turn, so that none
    waits for pages of memory."""
    few, block = min(_FEW, longest.prompt), max(1, min(_FEW, longest.prompt) // 4)
    for _ in range(2):
        session = TurnSession(model, [0] * few, block=block, output=4, rotary=rotary)
        if session.session is not None:
            session.session.project(0, 0)
            session.session.advance(0, 0)
        for layer in range(session.decoder.layers):
            session.read_layer(layer, few)
        token = session.next_token()
        for _ in range(min(3, longest.output)):
            token = session.after(token)
    spare = new_kv(session.decoder, (), longest.tokens)
    spare.touch()
    return spare


def _as_numbers(model: ModelSpec, block: int, blocks: int) -> StoredContext:
    """Returns a prompt of so many blocks as they are computed densely: they are nowhere to be fetched."""
    tokens = np.full(blocks, block)
    active = np.repeat(causal_blocks(tokens, np.cumsum(tokens) - tokens)[:, None, None], model.layers, axis=1)
    active = np.repeat(active, model.kv_heads, axis=2)
    n_bytes = np.full(active.shape, 2.0 * block * model.head_dim * model.kv_value_bytes)
    return StoredContext(tokens, active, Encoding(n_bytes, (1.0,), entropy_coded=False))


def _as_reuse(scenario: Scenario, context: int, block: int) -> Scenario:
    """Returns the scenario of conversations as one that loads contexts, cut into blocks."""
    shared = {
        key: getattr(scenario.live, key) for key in ("weights", "family", "dtype", "processor", "text", "threads")
    }
    workload = ContextReuseSpec(kind="context-reuse", context=max(1, context), chunk_tokens=block)
    live, budget = ContextReuseLive(**shared), ContextReuseBudget()
    return scenario.model_copy(update={"workload": workload, "live": live, "budget": budget, "policies": {}})
