"""A model on its device, inside a live machine: ops are measured where loads run them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from time import perf_counter

import torch
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.copies import Copies, CudaCopies
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.engine.stream import Stream, streams_of
from kvferry.backends.live.loading.runner import Prompt, SessionRunner
from kvferry.calibration.masks import drawn_masks
from kvferry.calibration.measurement import repeated
from kvferry.calibration.settings import Settings
from kvferry.machine.ops import Op
from kvferry.model.attention import Attention, BlockSparse, dense
from kvferry.model.models import load_model, random_model, spec_of
from kvferry.model.session import Session
from kvferry.scenarios import loader
from kvferry.scenarios.library import names
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.traces.chance import Source, generator
from kvferry.traces.chunks import CHUNK_TOKENS


class Rig:
    """The model that is measured, loaded when it is first needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def model(self) -> PreTrainedModel:
        """Raises InputError when there is no such model, or it does not fit."""
        settings = self.settings
        torch.set_num_threads(settings.threads)
        if not settings.random_weights:
            try:
                return load_model(settings.model, settings.dtype, settings.device)
            except InputError as error:
                if settings.model not in names("model"):
                    raise
                raise InputError(f"{error}; its description is there: --random-weights draws weights for it") from None
        described = loader.load_model(settings.model)
        dtype = settings.dtype or "float32"
        return random_model(settings.family, described, seed=0, dtype=dtype, device=settings.device)

    @cached_property
    def spec(self) -> ModelSpec:
        """The model's dimensions; its name is that of its folder."""
        if self.settings.random_weights:
            return spec_of(self.model, loader.load_model(self.settings.model).name)
        return spec_of(self.model, Path(self.settings.model).name)

    @property
    def on_cuda(self) -> bool:
        return self.settings.device.startswith("cuda")

    def settle(self) -> None:
        """Wait until the device has done what was launched."""
        if self.on_cuda:
            torch.cuda.synchronize(self.settings.device)

    def seconds_of(self, call: Callable[[], object], least: int = 5) -> tuple[float, ...]:
        """Returns the seconds of the call until the device is done, of at least so many repetitions."""

        def once() -> list[float]:
            began_s = perf_counter()
            call()
            self.settle()
            return [perf_counter() - began_s]

        return repeated(once, least=least, seconds=self.settings.point_s / self.settings.passes)

    def context(self, tokens: int, seed: int = 0) -> tuple[int, ...]:
        """Random token ids: the time of an op does not depend on them."""
        return tuple(generator(Source.MEASURED_TOKENS, seed).integers(0, self.spec.vocabulary, tokens).tolist())

    @contextmanager
    def running(
        self, context: int, *, question: int = 1, output: int = 1, attention: Attention = dense
    ) -> Iterator["Running"]:
        """A live machine with requests over a context of this many tokens."""
        prompt = Prompt(self.context(context), self.context(question, 1), output, attention)
        runner = SessionRunner(self.model, lambda request: prompt, chunk_tokens=CHUNK_TOKENS)
        with LiveMachine("device", runner, capacity_bytes=1.0, stream=self.streams) as machine:
            yield Running(machine, runner)

    @property
    def copies(self) -> Copies | None:
        """Copies of a device that has memory of its own."""
        return CudaCopies(self.settings.device) if self.on_cuda else None

    @property
    def streams(self) -> Callable[[str], Stream] | None:
        return streams_of(self.settings.device)


class Running:
    """Sessions under way on a live machine."""

    def __init__(self, machine: LiveMachine, runner: SessionRunner) -> None:
        self.machine, self.runner = machine, runner
        self._last = 0

    def loaded(self, chunks: int | None = None) -> tuple[int, Session]:
        """A new request whose first `chunks` token chunks (None: all) are there, with all layers: noise."""
        self.runner.close(self._last)
        self._last += 1
        session = self.runner.session(self._last)
        fill(session, chunks)
        return self._last, session

    def seconds(self, ops: Sequence[Op], request: int) -> list[float]:
        """Seconds that each op ran, from start to end; ops are submitted one after the other, as loads do."""
        seconds = []
        for op in ops:
            ticket = self.machine.submit(op, request=request)
            self.machine.env.run(until=ticket)
            seconds.append((ticket.end_s or 0.0) - (ticket.start_s or 0.0))
        return seconds


def fill(session: Session, chunks: int | None = None) -> None:
    """Put noise where the KV of the first `chunks` token chunks (None: all) belongs, in all layers."""
    kv = session.kv
    for t in range(len(kv.tokens) if chunks is None else chunks):
        side = torch.randn(kv.heads, kv.tokens[t], kv.head_dim, dtype=torch.float32).to(kv.dtype)
        for l in range(kv.layers):
            session.load(t, l, None, side, side)


def block_sparse(rig: Rig, context: int, tokens: int, density: float) -> BlockSparse:
    """Attention of the last chunk over that share of its causal blocks, drawn at random, the diagonal always in."""
    return BlockSparse(drawn_masks(rig.spec, context, tokens, density))
