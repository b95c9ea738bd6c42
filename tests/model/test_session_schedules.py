"""Every system's schedule, carried out by the pipeline on a real model in the fake machine's time: whatever is
computed, streamed, raced or wasted, the answer is that of a plain forward pass."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from tiny import tiny_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from fake_machine import FakeMachine
from logits import LOGIT_TOLERANCE
from transformers import DynamicCache

from kvferry.backends.live.loading.runner import Prompt, SessionRunner
from kvferry.machine.ops import Chunks, Decompress, KvRef, Op
from kvferry.machine.ticket import Ticket
from kvferry.model.decoder import Decoder
from kvferry.model.models import random_model
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.reuse import Admission, ContextRequest, context_reuse
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.record import RequestRecord
from kvferry.policies.loading.loader import Compute, LinkWindow, Loader, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress

pytestmark = pytest.mark.torch

# Copies take the fake machine no time.
SPEC = tiny_model(layers=4).model_copy(update={"kv_value_bytes": 1e-3})
# Five whole chunks and a partial one.
CHUNK = 12
TOKENS = np.array([12, 12, 12, 12, 12, 5])
CONTEXT = tuple(np.random.default_rng(1).integers(0, SPEC.vocabulary, TOKENS.sum()).tolist())
QUESTION = (3, 1, 4, 1)
# Of the link: a unit of some 4 bytes takes about as long as the op or two that compute it.
RATE = 4.0


class Wasteful:
    """Computes everything in order and streams everything from the end, whatever the other path has done."""

    window = LinkWindow()

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._next_stream = problem.units - 1

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        return next((Compute((u,)) for u in range(progress.problem.units) if progress.computable(u)), None)

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        if self._next_stream < 0:
            return None
        self._next_stream -= 1
        return Stream((self._next_stream + 1,))


LOADERS: dict[str, Callable[[], Loader]] = {name: system.new_loader for name, system in SYSTEMS.items()}
LOADERS["wasteful"] = Wasteful


class ModelMachine(FakeMachine):
    """A fake machine whose ops are done on a model when they end, and whose copies bring the true KV of a store."""

    def __init__(self, runner: SessionRunner, store: DynamicCache) -> None:
        super().__init__(capacity_bytes=1e9, bytes_per_s=RATE)
        self._runner, self._store = runner, store
        self._moved: dict[Ticket, Chunks] = {}

    def submit(self, op: Op, *, after: Iterable[Ticket] = (), request: int | None = None, **how: Any) -> Ticket:
        ticket = super().submit(op, after=after, request=request, **how)
        if isinstance(op, Decompress):
            (fetched,) = after
            self._moved[ticket] = self._moved[fetched]
        else:
            _at_end(ticket, lambda: self._runner.run(op, request))
        return ticket

    def fetch(self, chunks: Chunks, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        ticket = super().fetch(chunks, after=after, request=request)
        self._moved[ticket] = chunks
        return ticket

    def copy(self, kv: KvRef, to: str, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        ticket = super().copy(kv, to, after=after, request=request)
        (opened,) = after
        _at_end(ticket, lambda: self._load(request, self._moved[opened]))
        return ticket

    def _load(self, request: int | None, chunks: Chunks) -> None:
        assert request is not None
        for chunk in chunks.ids:
            t, l, h = np.unravel_index(chunk, (len(TOKENS), SPEC.layers, SPEC.kv_heads))
            layer, span = self._store.layers[l], slice(t * CHUNK, t * CHUNK + int(TOKENS[t]))
            self._runner.load(request, chunk, layer.keys[0, h, span], layer.values[0, h, span])


def _at_end(ticket: Ticket, do: Callable[[], Any]) -> None:
    assert ticket.callbacks is not None
    ticket.callbacks.append(lambda _: None if ticket.cancelled else do())


def run(loaders: list[Loader], family: str, output_tokens: int = 3) -> tuple[list[RequestRecord], SessionRunner]:
    """Requests that begin together, over one context. Their sessions stay open: one more token could be asked for."""
    torch.set_num_threads(1)
    model = random_model(family, SPEC, seed=2, spread=0.25)
    store = DynamicCache()
    with torch.no_grad():
        model(torch.tensor([CONTEXT]), past_key_values=store)
    runner = SessionRunner(model, lambda request: Prompt(CONTEXT, QUESTION, output_tokens + 1), chunk_tokens=CHUNK)
    machine = ModelMachine(runner, store)
    sizes = np.random.default_rng(0).uniform(1.0, 3.0, (len(TOKENS), SPEC.layers, SPEC.kv_heads))
    context = Context(
        sequence=7,
        model=SPEC,
        coupling="all_heads",
        tokens=TOKENS,
        active_blocks=np.ones(sizes.shape, dtype=int),
        encoded_bytes=sizes,
        level_scale=(1.0, 0.8, 0.6, 0.5, 0.4),
    )
    admission, pace = Admission(machine), Pace(window_s=20.0)
    processes = []
    for n, loader in enumerate(loaders):
        request = ContextRequest(
            request=n,
            context=context,
            problem=context.problem(lambda op: np.ones(np.shape(op.tokens))),
            question_tokens=len(QUESTION),
            output_tokens=output_tokens,
            outlook=Outlook(bytes_per_s=RATE, rtt_s=0.0),
        )
        processes.append(machine.env.process(context_reuse(machine, request, loader, admission, pace)))
    machine.env.run(until=machine.env.all_of(processes))
    return [process.value[0] for process in processes], runner


def check(runner: SessionRunner, request: int) -> None:
    model, session = runner.model, runner.session(request)
    ids = torch.tensor([CONTEXT + QUESTION])
    plain = model.generate(ids, max_new_tokens=3, do_sample=False)[0, -3:].tolist()
    assert runner.answers[request] == plain
    with torch.no_grad():
        wanted = model(ids).logits[0, -1]
        got = model(ids[:, -len(QUESTION) :], past_key_values=session.cache()).logits[0, -1]
    assert (got - wanted).abs().max() < LOGIT_TOLERANCE[torch.float32] * wanted.std()


@pytest.mark.parametrize("name", sorted(LOADERS))
def test_every_schedule_gives_the_same_answer(name: str) -> None:
    family = sorted(Decoder.families)[sorted(LOADERS).index(name) % len(Decoder.families)]
    (record,), runner = run([LOADERS[name]()], family)
    check(runner, 0)
    computed, streamed = record.units_computed, record.units_streamed
    assert computed + streamed == len(TOKENS) * SPEC.layers
    if name == "local-prefill":
        assert streamed == 0
    elif name in ("stream-only", "kivi", "cachegen", "cachegen-best-level"):
        assert computed == 0
    else:
        assert computed > 0
        assert streamed > 0


@pytest.mark.parametrize("family", sorted(Decoder.families))
def test_ferry_on_every_family(family: str) -> None:
    (record,), runner = run([LOADERS["ferry"]()], family)
    check(runner, 0)
    assert 0 < record.units_computed < len(TOKENS) * SPEC.layers


def test_two_requests_over_one_context_have_sessions_of_their_own() -> None:
    records, runner = run([LOADERS["sparkv"](), LOADERS["wasteful"]()], "qwen3")
    assert len(records) == 2
    for request in range(2):
        check(runner, request)
