"""Tables of a scenario's ops at points around its own, measured in the same minutes as a run of it: half before the
run, half behind. No table has the batch, context, selection or question of the run, unless a calibration's grid has."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from kvferry.calibration import compute, decoding, retrieval
from kvferry.calibration.decoding import Point
from kvferry.calibration.dispatch import dispatch
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement, merged, only
from kvferry.calibration.settings import Settings
from kvferry.calibration.speed import Speed
from kvferry.calibration.tables import tables
from kvferry.model.models import spec_of
from kvferry.model.scenario_model import model_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.sessions.as_batch import as_batch
from kvferry.sessions.systems import SESSION_SYSTEMS
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.system.whole_file import write_file
from kvferry.traces.chunks import CHUNK_TOKENS
from kvferry.traces.turns import turns_of

Task = Callable[[], list[Measurement]]
# The systems that decode with their KV elsewhere whose ops a calibration measures in place, and how.
_DECODING = {"kvswap": decoding.decoding, "specontext": lambda rig, _, point: retrieval.retrieving(rig, point)}


class TablesAround:
    """One run between two halves of its tables, with probes of the machine's speed before, between and behind them.
    Raises InputError for a scenario whose ops no part of a calibration measures."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        live, self._scenario, self._folder = scenario.live, scenario, folder
        self._rig = rig = Rig(
            Settings(model=scenario.model.name, device=live.processor, threads=live.threads, quick=True)
        )
        torch.set_num_threads(live.threads)
        rig.model, _ = model_of(scenario)
        rig.spec = spec_of(rig.model, scenario.model.name)
        self._tasks = list(_tasks(rig, folder, scenario))
        self._measured: list[Measurement] = []
        self.speed = Speed()

    def half(self) -> None:
        self.speed.probe()
        self._measured += [one for task in self._tasks for one in task()]
        self.speed.probe()

    def priced(self) -> Scenario:
        """Returns the scenario as it is to be simulated: by the tables, and the dispatch that was taken from them."""
        self.half()
        measured = merged(self._measured)
        for file, content in tables(measured).items():
            write_file(self._folder / "measured" / self._scenario.model.name / file, content)
        device = self._scenario.device
        main = device.processors[device.main].model_copy(update={"measured": str(self._folder / "measured")})
        if trips := only(measured, "dispatch"):
            main = main.model_copy(update={"dispatch_s": trips[0].typical})
        costs = self._scenario.costs.model_copy(update={"truth": "table"})
        changed = device.model_copy(update={"processors": {**device.processors, device.main: main}})
        return self._scenario.model_copy(update={"device": changed, "costs": costs})


def _tasks(rig: Rig, folder: Path, scenario: Scenario) -> Iterator[Task]:
    kind = scenario.workload.kind
    if kind == "context-reuse":
        yield from _of_loads(rig, scenario)
    elif kind == "decode" and scenario.system in _DECODING:
        system = DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
        yield from _of_steps(rig, folder, scenario, system)
    elif kind == "session":
        yield from _of_turns(rig, scenario)
        whole = SESSION_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
        if whole.decode in _DECODING:
            longest = turns_of(scenario.session.workload, scenario.seed).longest
            batch = as_batch(scenario, whole.decode, longest.prompt, longest.output)
            yield from _of_steps(rig, folder, batch, whole.decoding)
    else:
        what = f"no tables can be measured beside {scenario.system} of a {kind} workload"
        raise InputError(f"--paired: {what}; loads, conversations, {' and '.join(_DECODING)} have such")


def _of_loads(rig: Rig, scenario: Scenario) -> Iterator[Task]:
    workload, settings = scenario.context_reuse.workload, Settings(model="")
    context, chunk = workload.context, workload.chunk_tokens
    contexts = settings_reaching(context).contexts
    tokens = sorted(
        {n for length in {min(chunk, context), context % chunk} - {0} for n in around(settings.chunk_tokens, length)}
    )
    for before in contexts:
        for n in tokens:
            yield lambda b=before, n=n: compute.column(rig, b, n, 1.0)  # type: ignore[misc]
    near = around(contexts[1:], context)
    for before in near:
        for question in around(settings.question_tokens, workload.question):
            yield lambda b=before, q=question: compute.questions(rig, b, q)  # type: ignore[misc]
    if workload.output > 1:
        for before in near:
            yield lambda b=before: compute.answers(rig, b)  # type: ignore[misc]


def _of_turns(rig: Rig, scenario: Scenario) -> Iterator[Task]:
    turns, settings = turns_of(scenario.session.workload, scenario.seed), Settings(model="")
    contexts = settings_reaching(turns.longest.prompt).contexts
    for before in contexts:
        for n in around(settings.chunk_tokens, turns.block):
            yield lambda b=before, n=n: compute.column(rig, b, n, 1.0)  # type: ignore[misc]
    # What is new of a turn may be a single token, and as many as were never kept.
    for before in (max(before, compute.LEAST_CONTEXT) for before in contexts):
        for question in settings.question_tokens:
            yield lambda b=before, q=question: compute.questions(rig, b, q)  # type: ignore[misc]
        yield lambda b=before: compute.answers(rig, b)  # type: ignore[misc]


def _of_steps(rig: Rig, folder: Path, scenario: Scenario, system: DecodeSystem) -> Iterator[Task]:
    # Steps are measured with what it takes to hand their ops over.
    yield lambda: [dispatch(rig.settings)]
    settings, context = Settings(model=""), scenario.decode.workload.context
    measure = _DECODING[scenario.system]
    plan = plan_for(scenario, system)
    chosen = (plan.choice.selected or 0) * plan.choice.group_tokens
    # Of a prompt that is shorter than the grid's, what the shortest of that has.
    fewer = [n for n in settings.decode_selected if n < context] or settings.decode_selected[:1]
    contexts, selected = around(settings.decode_contexts, context), around(fewer, chosen)
    pairs = sorted({(context, selected[-1]) for context in contexts} | {(contexts[-1], n) for n in selected})
    for batch in batches_around(plan.sequences):
        for pair in pairs:
            yield partial(measure, rig, folder, Point(batch, *pair))


def batches_around(batch: int) -> tuple[int, int]:
    """Returns the batches a quarter below and above one (of 1: 1 and 2): the time of attention bends where its KV
    leaves a cache, which a calibration's grid of 1, 4 and 16 draws straight."""
    apart = -(-batch // 4)
    return (batch - apart, batch + apart) if batch > apart else (batch, batch + apart)


def settings_reaching(context: int) -> Settings:
    """Returns settings whose grid of contexts reaches beyond this one."""
    reach = 2 * CHUNK_TOKENS
    while reach < context:
        reach *= 2
    return Settings(model="", context=reach)


def around(points: Sequence[int], value: int) -> list[int]:
    """Returns the points of an ascending grid next to a value, which they include: two, or three where it is one."""
    below = [point for point in points if point < value][-1:]
    there = [point for point in points if point == value]
    above = [point for point in points if point > value][:1]
    found = [*below, *there, *above]
    return found if len(found) > 1 else list(points[:2] if above else points[-2:])
