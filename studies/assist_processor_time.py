"""Processor time per token of P/D-Device's roles for real: python studies/assist_processor_time.py [SETTING...]

First, for each bundled model: steps, which tables are made of, beside the run by which a device decodes through tokens
from a cloud, in turns behind one prompt. Then whole real runs of `pd_device/live` under every system: behind each token
that a role decodes, the same token is decoded once more by a step, behind the same KV and in the same thread, and does
not count as the run's. So the two of a pair lie milliseconds apart: beside steps that were measured minutes before, a
machine that has changed its speed looks like a cost. Processor time of the thread that computes, as the machine may
have other work; what is printed are medians.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from statistics import median, quantiles
from time import thread_time
from typing import Any
from unittest.mock import patch

from assist_tables import leaving_nothing, runner_of, seconds

from kvferry.backends.live.assist.runner import AssistRunner, Token
from kvferry.machine.following import Following
from kvferry.machine.handles import Batch, Continued
from kvferry.machine.handling import Forget, Prepare
from kvferry.machine.ops import DecodeRun, DecodeStep, Op, Prefill
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

CONTEXTS = (256, 512, 1024, 2048, 4096)
STEPS = 8
PAIRS = 24
SYSTEMS = ("pd-device", "refinement-only", "tokens-only", "cloud-only", "device-only")
RUNS = 5


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


def beside_runs(runner: AssistRunner) -> None:
    """Print what a token takes by steps and by a run, behind each context."""
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


class Pairs:
    """What tokens of a real run take, and the same tokens by steps: sums in seconds, by role."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = defaultdict(int)
        self.in_run_s: dict[str, float] = defaultdict(float)
        self.by_steps_s: dict[str, float] = defaultdict(float)
        # Taken by steps since an op began, all in all, which are no part of it; and the request that it decodes.
        self._beside_s = 0.0
        self._decoding: int | None = None

    def of(self, scenario: Scenario) -> "Pairs":
        """With the tokens of another run."""
        really, after = AssistRunner.run, AssistRunner._after

        def run(runner: AssistRunner, op: Op, request: int | None, *more: Any) -> Any:
            if not isinstance(op, DecodeRun | DecodeStep) or op.context_tokens < CONTEXTS[0] // 2:
                # Warming up is no part of the run.
                return really(runner, op, request, *more)
            if isinstance(op, DecodeRun):
                # The cloud's steps, in another thread, leave these alone.
                self._beside_s, self._decoding = 0.0, request
            began_s = thread_time()
            said = really(runner, op, request, *more)
            took_s = thread_time() - began_s
            if isinstance(op, DecodeRun):
                self._decoding = None
                self._add("device", op.tokens, took_s - self._beside_s)
            else:
                assert op.of is not None
                self._add("cloud", 1, took_s)
                self.by_steps_s["cloud"] += again_s(runner, op.of.sequences[0])
            return said

        def by_run(runner: AssistRunner, asked: Any, answer: Sequence[int]) -> int:
            said = after(runner, asked, answer)
            if self._decoding is not None:
                began_s = thread_time()
                self.by_steps_s["device"] += again_s(runner, self._decoding)
                self._beside_s += thread_time() - began_s
            return said

        def again_s(runner: AssistRunner, request: int) -> float:
            """Of the newest token by a step, which leaves nothing behind."""
            with leaving_nothing(runner, request) as session:
                session.history.pop()
                step = DecodeStep(1, len(session.history), Batch((request,)))
                return seconds(lambda: really(runner, step, None))

        with patch.object(AssistRunner, "run", run), patch.object(AssistRunner, "_after", by_run):
            assert run_scenario(scenario).outcome == "done"
        return self

    def _add(self, role: str, tokens: int, took_s: float) -> None:
        self.tokens[role] += tokens
        self.in_run_s[role] += took_s


def main() -> None:
    for model in ("byte-small", "byte-large"):
        print(model, flush=True)
        beside_runs(runner_of(model))
    print("within whole runs, ms per token: in the run, by steps, ratio (half of the runs)")
    for system in SYSTEMS:
        # A mask in a message of its own is made while the cloud decodes, on the same processor.
        papers = ["policies.assist.mask=with-token"] if system in ("pd-device", "refinement-only") else []
        scenario = load_scenario("pd_device/live", [f"system={system}", "live.cloud=within", *papers, *sys.argv[1:]])
        runs = [Pairs().of(scenario) for _ in range(RUNS + 1)][1:]
        for role, tokens in runs[0].tokens.items():
            in_run_s = median(run.in_run_s[role] for run in runs) / tokens
            by_steps_s = median(run.by_steps_s[role] for run in runs) / tokens
            low, middle, high = quantiles((run.in_run_s[role] / run.by_steps_s[role] for run in runs), n=4)
            of_half = f"{low:.3f} to {high:.3f}"
            print(
                f"  {system}, {role}: {1e3 * in_run_s:.2f}, {1e3 * by_steps_s:.2f}, {middle:.3f} ({of_half})",
                flush=True,
            )


if __name__ == "__main__":
    main()
