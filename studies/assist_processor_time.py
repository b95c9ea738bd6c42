"""Processor time per token of P/D-Device's roles for real: python studies/assist_processor_time.py [SETTING...]

First, for each bundled model: steps, which tables are made of, beside the run by which a device decodes through tokens
from a cloud, in turns behind one prompt. Then whole real runs of `pd_device/live` under every system, beside what those
steps say: the device's runs (byte-small) and the cloud's steps (byte-large). Processor time of the thread that
computes, as the machine may have other work; what is printed are medians.
"""

import sys
from collections.abc import Sequence
from statistics import median, quantiles
from time import thread_time
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from kvferry.backends.live.assist.runner import AssistRunner, Token
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.machine.following import Following
from kvferry.machine.handles import Batch, Continued
from kvferry.machine.handling import Forget, Prepare
from kvferry.machine.ops import DecodeRun, DecodeStep, Op, Prefill
from kvferry.model.decoder import Decoder
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

CONTEXTS = (256, 512, 1024, 2048, 4096)
STEPS = 8
PAIRS = 24
SYSTEMS = ("pd-device", "refinement-only", "tokens-only", "cloud-only", "device-only")
RUNS = 3


def runner_of(model: str) -> AssistRunner:
    scenario = load_scenario("pd_device/live", [f"model={model}"])
    loaded, prompts = warm_model(scenario)
    assert prompts.by is not None
    return AssistRunner(Decoder(loaded), prompts, prompts.by, seed=scenario.seed)


def token_s(runner: AssistRunner, request: int, context: int, first: Token, by_run: bool) -> float:
    """Of a device's run behind the prompt and one token from the cloud; or of steps, which go on from there."""
    following = Following()
    following.put(first)
    following.end()
    run, step = DecodeRun(STEPS, context + 1, Continued(following)), DecodeStep(1, context, Batch((request,)))
    began_s = thread_time()
    for op in (run,) if by_run else STEPS * (step,):
        runner.run(op, request)
    return (thread_time() - began_s) / STEPS


def steps_s(runner: AssistRunner) -> list[float]:
    """Of a token by steps, behind each context."""
    found = []
    for request, context in enumerate(CONTEXTS):
        runner.handle(Prepare(tokens=context, beginning=0, question=0, answer=2 * STEPS + 1), request)
        first = runner.run(Prefill(context, 0), request)
        # By run or not, in pairs; the first pair warms up.
        pairs: dict[bool, list[float]] = {False: [], True: []}
        for n in range(PAIRS + 1):
            for by_run in (True, False) if n % 2 else (False, True):
                pairs[by_run].append(token_s(runner, request, context, first, by_run))
        runner.handle(Forget(), request)
        steps, runs = pairs[False][1:], pairs[True][1:]
        low, middle, high = quantiles((one / other for one, other in zip(runs, steps, strict=True)), n=4)
        print(
            f"  {context:5,}: {1e3 * median(steps):.2f} ms by steps, {1e3 * median(runs):.2f} ms by a run, "
            f"ratio {middle:.3f} (half of all pairs: {low:.3f} to {high:.3f})",
            flush=True,
        )
        found.append(median(steps))
    return found


class Noted(NamedTuple):
    """Tokens that an op has decoded, the KV behind which they stand in the mean, and what it took."""

    op: type[Op]
    tokens: int
    context: float
    took_s: float


def noted(settings: Sequence[str]) -> list[Noted]:
    """What a real run decodes."""
    found: list[Noted] = []
    really = AssistRunner.run

    def run(runner: AssistRunner, op: Op, *more: Any) -> Any:
        began_s = thread_time()
        said = really(runner, op, *more)
        took_s = thread_time() - began_s
        if isinstance(op, DecodeRun):
            found.append(Noted(DecodeRun, op.tokens, float(op.middle.context_tokens), took_s))
        elif isinstance(op, DecodeStep):
            found.append(Noted(DecodeStep, 1, float(op.context_tokens), took_s))
        return said

    with patch.object(AssistRunner, "run", run):
        assert run_scenario(load_scenario("pd_device/live", list(settings))).outcome == "done"
    # Warming up is no part of the run.
    return [one for one in found if one.context > CONTEXTS[0] // 2]


def main() -> None:
    steps: dict[type[Op], list[float]] = {}
    for op, model in ((DecodeRun, "byte-small"), (DecodeStep, "byte-large")):
        print(model, flush=True)
        steps[op] = steps_s(runner_of(model))
    print("within whole runs, ms per token: measured, by steps, ratio (of the runs)")
    for system in SYSTEMS:
        runs = [noted([f"system={system}", "live.cloud=within", *sys.argv[1:]]) for _ in range(RUNS)]
        for op, who in ((DecodeRun, "device"), (DecodeStep, "cloud")):
            of = [[one for one in run if one.op is op] for run in runs]
            if not of[0]:
                continue
            # A run is one op of many tokens, steps are many: a median is of those alone that are many.
            measured_s = [median([one.took_s / one.tokens for one in run]) for run in of]
            by_steps_s = median(float(np.interp(one.context, CONTEXTS, steps[op])) for run in of for one in run)
            ratios = ", ".join(f"{one / by_steps_s:.3f}" for one in measured_s)
            print(
                f"  {system}, {who}: {1e3 * median(measured_s):.2f}, {1e3 * by_steps_s:.2f}, "
                f"{median(measured_s) / by_steps_s:.3f} ({ratios})",
                flush=True,
            )


if __name__ == "__main__":
    main()
