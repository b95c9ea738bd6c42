"""Tables for `pd_device/live`: python studies/assist_tables.py MODEL DIR; or, without DIR, whether they can hold.

Measures prefill and decoding of requests as the two roles carry them out, on this machine and one thread, and puts the
tables into a folder that `kvferry calibrate --model MODEL --output DIR` has made, in place of its own, which are of
contexts that are loaded. Scenarios then use it with `device: DIR/profile.yaml` and `costs: table`. Leave the machine
alone meanwhile.

A table's steps are those of a batch. Without DIR, processor time per token of such steps stands beside that of the run
by which a device decodes through tokens from a cloud, measured in turns.
"""

import argparse
import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.machine.following import Following
from kvferry.machine.handles import Batch, Continued
from kvferry.machine.handling import Forget, Prepare
from kvferry.machine.ops import DecodeRun, DecodeStep, Prefill
from kvferry.model.decoder import Decoder
from kvferry.scenarios.loader import load_scenario

CONTEXTS, TOKENS = (0, 128, 512), (64, 256, 512, 1024, 2048)
DECODED_CONTEXTS = (256, 512, 1024, 2048, 4096)
STEPS = 8
# Another request each time, as other text is read.
REPEATED = 3
COMPARED = 8


def prefill_s(runner: AssistRunner, context: int, tokens: int) -> float:
    """Of so many tokens behind so many that have been read."""

    def once(request: int) -> float:
        runner.handle(Prepare(tokens=context + tokens, beginning=0, question=0, answer=1), request)
        if context:
            runner.run(Prefill(context, 0), request)
        return seconds(lambda: runner.run(Prefill(tokens, context), request))

    return repeated(runner, once)


def step_s(runner: AssistRunner, context: int) -> float:
    """Of a token, the mean of some."""

    def once(request: int) -> float:
        runner.handle(Prepare(tokens=context, beginning=0, question=0, answer=STEPS), request)
        runner.run(Prefill(context, 0), request)
        step = DecodeStep(1, context, Batch((request,)))
        return sum(seconds(lambda: runner.run(step, None)) for _ in range(STEPS)) / STEPS

    return repeated(runner, once)


def run_s(runner: AssistRunner, context: int, request: int, by_run: bool) -> float:
    """Processor time per token, of a device's run behind a prompt and one token from the cloud, or of steps."""
    runner.handle(Prepare(tokens=context, beginning=0, question=0, answer=STEPS + 1), request)
    first = runner.run(Prefill(context, 0), request)
    following = Following()
    following.put(first)
    following.end()
    run, step = DecodeRun(STEPS, context + 1, Continued(following)), DecodeStep(1, context, Batch((request,)))
    began_s = thread_time()
    for op in (run,) if by_run else STEPS * (step,):
        runner.run(op, request)
    took_s = (thread_time() - began_s) / STEPS
    runner.handle(Forget(), request)
    return took_s


def compare(runner: AssistRunner) -> None:
    print("context, ms per token by steps, by a device's run, ratio", flush=True)
    for context in DECODED_CONTEXTS:
        found = {by_run: [run_s(runner, context, n, by_run)] for n, by_run in enumerate((False, True))}
        for n in range(2 * COMPARED):
            found[n % 2 == 1].append(run_s(runner, context, n, n % 2 == 1))
        # What else the machine does only adds to it.
        steps_s, runs_s = (min(found[by_run][1:]) for by_run in (False, True))
        print(f"{context:,}, {1e3 * steps_s:.2f}, {1e3 * runs_s:.2f}, {runs_s / steps_s:.2f}", flush=True)


def repeated(runner: AssistRunner, once: Callable[[int], float]) -> float:
    """The median, the first time left out."""
    found = []
    for request in range(REPEATED + 1):
        found.append(once(request))
        runner.handle(Forget(), request)
    return median(found[1:])


def seconds(work: Callable[[], object]) -> float:
    began_s = perf_counter()
    work()
    return perf_counter() - began_s


def write(path: Path, names: Sequence[str], rows: Iterable[Sequence[float]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        for row in rows:
            table.writerow(row)
            print(path.name, *row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="of both roles: byte-small, byte-large or a folder")
    parser.add_argument("folder", type=Path, nargs="?", help="of a profile; without one, steps and runs are compared")
    asked = parser.parse_args()
    scenario = load_scenario("pd_device/live", [f"model={asked.model}"])
    model, prompts = warm_model(scenario)
    assert prompts.by is not None
    runner = AssistRunner(Decoder(model), prompts, prompts.by, seed=scenario.seed)
    if asked.folder is None:
        compare(runner)
        return
    (tables,) = (asked.folder / "measured").iterdir()
    grid = ((context, tokens, prefill_s(runner, context, tokens)) for context in CONTEXTS for tokens in TOKENS)
    write(tables / "prefill.csv", ("context", "tokens", "seconds"), grid)
    steps = ((context, step_s(runner, context)) for context in DECODED_CONTEXTS)
    write(tables / "decode_step.csv", ("context", "seconds"), steps)


if __name__ == "__main__":
    main()
