"""Tables for `pd_device/live`: python studies/assist_tables.py MODEL DIR.

Measures prefill and decoding of requests as the two roles carry them out, on this machine and one thread, and puts the
tables into a folder that `kvferry calibrate --model MODEL --output DIR` has made, in place of its own, which are of
contexts that are loaded. Scenarios then use it with `device: DIR/profile.yaml` and `costs: table`. Leave the machine
alone meanwhile.

Whether its steps are what devices and clouds take within whole runs is what studies/assist_processor_time.py measures.
"""

import argparse
import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.machine.handles import Batch
from kvferry.machine.handling import Forget, Prepare
from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.model.decoder import Decoder
from kvferry.scenarios.loader import load_scenario

CONTEXTS, TOKENS = (0, 128, 512), (64, 256, 512, 1024, 2048)
DECODED_CONTEXTS = (256, 512, 1024, 2048, 4096)
STEPS = 8
# Another request each time, as other text is read.
REPEATED = 3


def prefill_s(runner: AssistRunner, context: int, tokens: int) -> float:
    """Of this many tokens behind this many that have been read."""

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
    parser.add_argument("folder", type=Path, help="of a profile")
    asked = parser.parse_args()
    scenario = load_scenario("pd_device/live", [f"model={asked.model}"])
    model, prompts = warm_model(scenario)
    assert prompts.by is not None
    runner = AssistRunner(Decoder(model), prompts, prompts.by, seed=scenario.seed)
    (tables,) = (asked.folder / "measured").iterdir()
    grid = ((context, tokens, prefill_s(runner, context, tokens)) for context in CONTEXTS for tokens in TOKENS)
    write(tables / "prefill.csv", ("context", "tokens", "seconds"), grid)
    steps = ((context, step_s(runner, context)) for context in DECODED_CONTEXTS)
    write(tables / "decode_step.csv", ("context", "seconds"), steps)


if __name__ == "__main__":
    main()
