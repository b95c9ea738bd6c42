"""Tables for `pd_device/live`: python studies/assist_tables.py MODEL DIR.

Measures prefill and decoding of requests as the two roles carry them out, on this machine and one thread, and puts the
tables into a folder that `kvferry calibrate --model MODEL --output DIR` has made, in place of its own, which are of
contexts that are loaded. Scenarios then use it with `device: DIR/profile.yaml` and `costs: table`.

What is taken is processor time of the thread that computes, so that other work does not count that keeps it from a
core. Other work slows caches and clocks all the same: the machine's speed comes and goes for seconds to minutes, so the
whole grid is gone through several times, and a point is the median of its turns.

Whether its steps are what devices and clouds take within whole runs is what studies/assist_processor_time.py measures,
and studies/assist_live.py how far the simulator with these tables is off.
"""

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import thread_time

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.machine.handles import Batch
from kvferry.machine.handling import Forget, Prepare
from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.model.decoder import Decoder
from kvferry.scenarios.loader import load_scenario

# A cloud reads 2,048 tokens in pieces of 512: the last of them has 1,536 behind it.
CONTEXTS, TOKENS = (0, 128, 512, 1536), (64, 256, 512, 1024, 2048)
DECODED_CONTEXTS = (256, 512, 1024, 2048, 4096)
# As many as the scenario answers: few lie in one fast or slow moment of the machine together.
STEPS = 48
TURNS = 5
AXES = {"prefill": ("context", "tokens"), "decode_step": ("context",)}

# Seconds by the features of a point, by table.
Grids = Mapping[str, Mapping[tuple[int, ...], float]]


def runner_of(model: str) -> AssistRunner:
    scenario = load_scenario("pd_device/live", [f"model={model}"])
    loaded, prompts = warm_model(scenario)
    assert prompts.by is not None
    return AssistRunner(Decoder(loaded), prompts, prompts.by, seed=scenario.seed)


def turn(runner: AssistRunner, request: int) -> Grids:
    """Every point once; each request is another text."""
    return {
        "prefill": {
            (context, tokens): prefill_s(runner, request, context, tokens) for context in CONTEXTS for tokens in TOKENS
        },
        "decode_step": {(context,): step_s(runner, request, context) for context in DECODED_CONTEXTS},
    }


def prefill_s(runner: AssistRunner, request: int, context: int, tokens: int) -> float:
    """Of so many tokens behind so many that have been read."""
    runner.handle(Prepare(tokens=context + tokens, beginning=0, question=0, answer=1), request)
    if context:
        runner.run(Prefill(context, 0), request)
    took_s = seconds(lambda: runner.run(Prefill(tokens, context), request))
    runner.handle(Forget(), request)
    return took_s


def step_s(runner: AssistRunner, request: int, context: int) -> float:
    """Of a token, the mean of some."""
    runner.handle(Prepare(tokens=context, beginning=0, question=0, answer=STEPS), request)
    runner.run(Prefill(context, 0), request)
    step = DecodeStep(1, context, Batch((request,)))
    took_s = sum(seconds(lambda: runner.run(step, None)) for _ in range(STEPS)) / STEPS
    runner.handle(Forget(), request)
    return took_s


def seconds(work: Callable[[], object]) -> float:
    began_s = thread_time()
    work()
    return thread_time() - began_s


def medians(turns: Sequence[Grids]) -> Grids:
    return {
        table: {point: median(one[table][point] for one in turns) for point in points}
        for table, points in turns[0].items()
    }


def write(profile: Path, grids: Grids) -> None:
    """Puts tables into the folder of a profile."""
    (folder,) = (profile / "measured").iterdir()
    for table, points in grids.items():
        with (folder / f"{table}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow((*AXES[table], "seconds"))
            for point, took_s in points.items():
                rows.writerow((*point, took_s))
                print(folder.name, table, *point, f"{1e3 * took_s:.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="of both roles: byte-small, byte-large or a folder")
    parser.add_argument("folder", type=Path, help="of a profile")
    asked = parser.parse_args()
    runner = runner_of(asked.model)
    # First times are slow.
    turns = [turn(runner, request) for request in range(TURNS + 1)][1:]
    write(asked.folder, medians(turns))


if __name__ == "__main__":
    main()
