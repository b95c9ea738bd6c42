"""What prompts that a cloud helps with need of a real machine: a model, loaded when it is wanted, and a text."""

from contextlib import ExitStack
from typing import Any

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.machine_parts import MachineParts
from kvferry.backends.needs import Prompts
from kvferry.backends.world import Say
from kvferry.machine.handling import Forget, Handling, Prepare
from kvferry.machine.ops import DecodeRun, Extents, Prefill
from kvferry.model.decoders import decoder_of
from kvferry.model.models import load_model
from kvferry.model.prompts import Prompts as PromptTexts
from kvferry.model.tokens import Tokens
from kvferry.specs.assist import AssistSpec
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# A request that is none, to warm up with, and its tokens.
_NONE, _FEW = 2**32 - 1, 64


def tokens_of(prompts: PromptTexts) -> Tokens:
    """Returns what makes tokens of a prompt's text. Raises InputError where nothing does."""
    if prompts.by is None:
        what = "a prompt is sent as text, and this model has no tokenizer"
        raise InputError(f"live.weights: {what}; take one of a folder with a tokenizer.json")
    return prompts.by


class PromptParts(MachineParts):
    """A runner of requests, and storage that the model is really loaded from."""

    runner: AssistRunner

    def __init__(self, scenario: Scenario, need: Prompts, say: Say, stack: ExitStack) -> None:
        if scenario.load is not None:
            raise InputError("load: backend torch runs beside whatever this machine does; leave load out")
        workload, live = scenario.workload, scenario.live
        self._resident = not isinstance(workload, AssistSpec) or workload.resident
        if not self._resident and live.weights == "random":
            raise InputError("workload.resident: random weights lie on no storage; say true")
        self._scenario = scenario
        model, prompts = warm_model(scenario)
        self.runner = AssistRunner(decoder_of(model, latent=False), prompts, tokens_of(prompts), seed=scenario.seed)

    def machine_options(self) -> dict[str, Any]:
        return {"storage": self, "handler": self._handle}

    def _handle(self, handling: Handling, request: int | None) -> Any:
        found = self.runner.handle(handling, request)
        if isinstance(handling, Forget) and not self._resident:
            self.runner.model.decoder = None
        return found

    def read(self, extents: Extents) -> bytes:
        """Load the model from storage, as a device does that does not keep it in memory."""
        live = self._scenario.live
        model = load_model(live.weights or self._scenario.model.name, live.dtype, live.processor)
        self.runner.model.decoder = decoder_of(model, latent=False)
        return b""

    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        """Raises InputError."""
        raise InputError("nothing is written to a machine's storage of models")

    def warm_up(self, machine: LiveMachine) -> None:
        self.runner.begin(machine.env)
        machine.warm(self._rehearse)

    def _rehearse(self) -> None:
        """A short request, twice."""
        for _ in range(2):
            self.runner.handle(Prepare(tokens=_FEW, beginning=0, question=0, answer=_FEW), _NONE)
            self.runner.run(Prefill(_FEW, 0), _NONE)
            self.runner.run(DecodeRun(4, _FEW), _NONE)
            self.runner.handle(Forget(), _NONE)
