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
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import thread_time
from typing import NamedTuple

from transformers import PreTrainedModel

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.decoding.warm_model import warm_model
from kvferry.machine.handles import Batch
from kvferry.machine.handling import Forget, Prepare, TakeIn
from kvferry.machine.ops import DecodeRun, DecodeStep, Op, Prefill
from kvferry.model.decoder import Decoder
from kvferry.model.prompts import Prompts
from kvferry.model.request_session import RequestSession
from kvferry.scenarios.loader import load_scenario

# A cloud reads 2,048 tokens in pieces of 512: the last of them has 1,536 behind it.
CONTEXTS, TOKENS = (0, 128, 512, 1024, 1536), (64, 256, 512, 1024, 2048)
DECODED_CONTEXTS = (256, 512, 1024, 2048, 4096)
# As many as the scenario answers: few lie in one fast or slow moment of the machine together.
STEPS = 48
TURNS = 5
AXES = {"prefill": ("context", "tokens"), "decode_step": ("context",)}

# The number of a request that is read anew.
_NEW = 0
# Seconds by the features of a point, by table.
Grids = Mapping[str, Mapping[tuple[int, ...], float]]


class Points(NamedTuple):
    """Of the tables around some ops. Empty: there is no such op."""

    contexts: Sequence[int]
    tokens: Sequence[int]
    decoded_contexts: Sequence[int]


def points_of(ops: Iterable[Op]) -> Points:
    ops = list(ops)
    prefills = [one for one in ops if isinstance(one, Prefill)]
    decoded = [one.context_tokens for one in ops if isinstance(one, DecodeStep)]
    for one in ops:
        if isinstance(one, DecodeRun):
            decoded += [one.context_tokens, one.context_tokens + one.tokens]
    return Points(
        _around(CONTEXTS, [one.context_tokens for one in prefills]),
        _around(TOKENS, [one.tokens for one in prefills]),
        _around(DECODED_CONTEXTS, decoded),
    )


def _around(points: Sequence[int], values: Iterable[float]) -> Sequence[int]:
    """The nearest below and above each value."""
    found: set[int] = set()
    for value in values:
        found.add(max((point for point in points if point <= value), default=points[0]))
        found.add(min((point for point in points if point >= value), default=points[-1]))
    return sorted(found)


class Held:
    """A model with a whole prompt of each context, behind which tokens are decoded and taken back."""

    def __init__(self, model: PreTrainedModel, prompts: Prompts) -> None:
        self._runner = _runner(model, prompts)
        for context in DECODED_CONTEXTS:
            self._asked(context, context)
            self._runner.run(Prefill(context, 0), context)

    def grids(self, points: Points, steps: int, *, refined: bool) -> Grids:
        """Every point once, tokens as the mean of so many steps. `refined`: as are the prompts."""
        prefill = {}
        for tokens in points.tokens:
            prefill |= self._prefill_s(points.contexts, tokens, refined)
        return {"prefill": prefill} | (
            {"decode_step": {(context,): self._step_s(context, steps) for context in points.decoded_contexts}}
            if points.decoded_contexts
            else {}
        )

    def _prefill_s(self, contexts: Sequence[int], tokens: int, refined: bool) -> dict[tuple[int, ...], float]:
        """Of pieces of so many tokens, in prompts that end behind the last: piece by piece, as roles read them."""
        found: dict[tuple[int, ...], float] = {}
        read = math.inf
        for context in contexts:
            if context < read:
                self._asked(_NEW, contexts[-1] + tokens, refined)
                read = 0
            if context > read:
                self._runner.run(Prefill(context - read, read), _NEW)
            piece = Prefill(tokens, context)
            found[context, tokens] = seconds(lambda: self._runner.run(piece, _NEW))  # noqa: B023
            read = context + tokens
        self._runner.handle(Forget(), _NEW)
        return found

    def _asked(self, request: int, tokens: int, refined: bool = False) -> None:
        prepared = self._runner.handle(Prepare(tokens=tokens, beginning=0, question=0, answer=STEPS), request)
        if refined:
            self._runner.handle(TakeIn(text=prepared.text, answer=STEPS, refined=True), request)

    def _step_s(self, context: int, steps: int) -> float:
        step = DecodeStep(1, context, Batch((context,)))
        with leaving_nothing(self._runner, context):
            return seconds(lambda: [self._runner.run(step, None) for _ in range(steps)]) / steps


@contextmanager
def leaving_nothing(runner: AssistRunner, request: int) -> Iterator[RequestSession]:
    """Forgets what a request reads and says in the block."""
    asked = runner._asked[request]
    before = [*asked.session.history], asked.next, [*asked.said], asked.told
    yield asked.session
    asked.session.history, asked.next, asked.said, asked.told = before


def runner_of(model: str) -> AssistRunner:
    return _runner(*warm_model(load_scenario("pd_device/live", [f"model={model}"])))


def _runner(model: PreTrainedModel, prompts: Prompts) -> AssistRunner:
    assert prompts.by is not None
    return AssistRunner(Decoder(model), prompts, prompts.by, seed=1)


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


def write(folder: Path, grids: Grids) -> None:
    """Puts a model's tables into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, points in grids.items():
        with (folder / f"{table}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow((*AXES[table], "seconds"))
            for point, took_s in points.items():
                rows.writerow((*point, took_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="of both roles: byte-small, byte-large or a folder")
    parser.add_argument("folder", type=Path, help="of a profile")
    asked = parser.parse_args()
    runner = runner_of(asked.model)
    # First times are slow.
    turns = [turn(runner, request) for request in range(TURNS + 1)][1:]
    tables = medians(turns)
    (folder,) = (asked.folder / "measured").iterdir()
    write(folder, tables)
    for table, points in tables.items():
        for point, took_s in points.items():
            print(table, *point, f"{1e3 * took_s:.2f} ms")


if __name__ == "__main__":
    main()
