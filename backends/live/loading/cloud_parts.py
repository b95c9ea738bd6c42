"""What a real world needs to load stored contexts: a server with the contexts, a client, decoders."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.engine.stream import streams_of
from kvferry.backends.live.loading.cloud_of_contexts import CloudOfContexts
from kvferry.backends.live.loading.distortion import relative_errors
from kvferry.backends.live.loading.library import Library, chunks_of
from kvferry.backends.live.loading.runner import SessionRunner
from kvferry.backends.live.loading.temporary_stores import TemporaryStores
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.needs import ContextsInCloud
from kvferry.backends.world import Inputs, Say
from kvferry.codecs import codec
from kvferry.machine.ops import KvRef, Op
from kvferry.model.prompts import Prompts
from kvferry.model.scenario_model import model_of
from kvferry.model.session import Session
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.stored import StoredContext

# The variable that names the folder of encoded contexts, to keep them from run to run. Without it they are temporary.
STORES = "KVFERRY_STORES"


class LoadingParts(MachineParts):
    """What a LiveMachine needs to load contexts: a session runner, a client and decoders. `stack` closes them."""

    runner: SessionRunner

    def __init__(self, scenario: Scenario, need: ContextsInCloud, say: Say, stack: ExitStack) -> None:
        check(scenario, need.codec)
        self.model, self._library = _library(scenario, stores_folder())
        self._scenario, self._codec_name = scenario, need.codec
        self.cloud = CloudOfContexts(scenario, need.codec, self._library, say, stack)
        self.runner = SessionRunner(
            self.model, self._library.prompt, chunk_tokens=scenario.context_reuse.workload.chunk_tokens
        )
        # Of the encoding, by level; measured as all is run once.
        self._kv_errors: list[float] = []

    def machine_options(self) -> dict[str, Any]:
        return {
            **self.cloud.machine_options(),
            "place": self._place,
            "nominal_s": nominal_s(self._scenario),
            "stream": streams_of(self._scenario.context_reuse.live.processor),
        }

    def warm_up(self, machine: LiveMachine) -> None:
        machine.warm(self._warm_up)
        self.cloud.begin()

    def stored(self, sequence: int) -> StoredContext:
        return self.cloud.stored[sequence]

    def inputs(self) -> Inputs:
        return Inputs(stored=tuple(self.cloud.stored))

    def measured(self) -> dict[str, Any]:
        answers = {str(request): answer for request, answer in sorted(self.runner.answers.items())}
        return {"answers": answers, "kv_relative_errors": self._kv_errors}

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

    def _place(self, kv: KvRef, to: str, request: int | None, inputs: Sequence[Any]) -> None:
        assert request is not None
        for chunk, keys, values in self.cloud.decoded(inputs[0]):
            self.runner.load(request, chunk, keys, values)


def nominal_s(scenario: Scenario) -> Callable[[Op], float]:
    """Prices ops on the idle main processor, dispatch included."""
    device = scenario.device
    costs = main_costs(scenario.costs.truth, device, scenario.model)
    dispatch_s = device.processors[device.main].dispatch_s
    return lambda op: costs.cost(op).duration_s + dispatch_s


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


def stores_are_kept() -> bool:
    """Whether that folder stays for later processes, as the user has named it."""
    return bool(os.environ.get(STORES))


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
