"""(g): what to measure next: which number, if it is another one, changes the choice or the figure most."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, log

from kvferry.advice.answer import FIGURES, Statement, shown
from kvferry.advice.conversion import model_file
from kvferry.advice.question import Question
from kvferry.advice.trial import TOGETHER, Trial
from kvferry.advice.words import word
from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.runtimes import others
from kvferry.pipelines.decoding.sizing import NoRoom
from kvferry.pipelines.run import run_scenario
from kvferry.sim.slowed import slowed, with_slowed_storage
from kvferry.specs.link import LinkSpec
from kvferry.specs.scenario import Scenario

# Where nothing says how far a number may be off, both of these are tried: times as long, or a part of it.
TIMES = 2.0
_FEW_TURNS = 4
# Contenders that were within this of the best may overtake it.
_NEAR = 3.0


@dataclass(frozen=True)
class Number:
    """A number that figures rest on. ``slower``: a scenario in which it makes things take so many times as long;
    ``measure``: what measures it, if a command does; ``profile``: what then makes a profile of it; ``key``: of a
    processor, where llama-bench measures it."""

    name: str
    slower: Callable[[Scenario, float], Scenario]
    measure: str
    profile: str = "kvferry calibrate --output my-device --base {base} --from {file}"
    file: str = ""
    key: str = ""


def _storage(scenario: Scenario, times: float) -> Scenario:
    return scenario if scenario.device.storage is None else with_slowed_storage(scenario, times)


def _link(scenario: Scenario, times: float) -> Scenario:
    link = scenario.link
    rate = link.rate_bytes_per_s
    other = {"scale": link.scale / times} if rate is None else {"rate_bytes_per_s": rate / times}
    changed: LinkSpec = link.model_copy(update=other)
    return scenario.model_copy(update={"link": changed})


def _copies(scenario: Scenario, times: float) -> Scenario:
    memory = scenario.device.memory
    if memory.copy_bytes_per_s is None:
        return scenario
    changed = memory.model_copy(update={"copy_bytes_per_s": memory.copy_bytes_per_s / times})
    return scenario.model_copy(update={"device": scenario.device.model_copy(update={"memory": changed})})


COPIES = Number(
    "the copies between memories",
    _copies,
    "nvbandwidth -t host_to_device_memcpy_ce",
    "{advise} --set device.memory.copy_bytes_per_s='N GB/s'",
)
NUMBERS = (
    Number(
        "the rate of decoding",
        lambda scenario, times: slowed(scenario, decoding=times),
        "llama-bench -m {gguf} -p 0 -n 64 -d 0,4096 -o json > llama-bench.json",
        file="llama-bench.json",
        key="efficiency.gemv",
    ),
    Number(
        "the rate of prefill",
        lambda scenario, times: slowed(scenario, prefill=times),
        "llama-bench -m {gguf} -p 512,2048 -n 0 -d 0,4096 -o json > llama-bench.json",
        file="llama-bench.json",
        key="efficiency.gemm",
    ),
    Number(
        "the storage",
        _storage,
        "fio --name=read --rw=randread --direct=1 --size=2G --bs=64k --numjobs=8 --output-format=json > fio.json",
        file="fio.json",
    ),
    Number("the link", _link, "iperf3 -c SERVER -R -t 60 -J > iperf3.json", file="iperf3.json"),
    COPIES,
)


# What software takes to manage KV elsewhere: where it is assumed, other runtimes are as likely.
RUNTIME = Number(
    "the runtime",
    lambda scenario, times: scenario,
    "",
    "{advise} --set runtime={first}  # {of}whose time per token is nearest to yours: kvferry runtimes",
)


@dataclass(frozen=True)
class Sensitivity:
    """What becomes of the best composition where a number is another one. ``times``: as long, or a part of it; None: on
    other runtimes. ``swing``: the largest change of its figure, as a factor; ``overtaken``: by which composition where,
    and by how much it is then better."""

    number: Number
    times: float | None
    swing: float
    low: float
    high: float
    overtaken: tuple[str, ...]
    # Of other runtimes, by name.
    others: tuple[str, ...] = ()


def sensitivities(
    question: Question, ranked: Sequence[Trial], known: dict[str, float], goes_on: Callable[[], bool] = lambda: True
) -> list[Sensitivity]:
    """Returns what each number does, the one that matters most first: to the best over the turns of its trial, as its
    intervals are. `known`: by a number's name the factor to the ends of its interval, where it has one. Raises
    KeyboardInterrupt."""
    contenders = _contenders(question, ranked)
    own = ranked[0].figures[question.use.spec.best]
    found = []
    for number, times, cases in _cases(contenders[0], known):
        if not goes_on():
            break
        values: list[float] = [own]
        overtaken: list[str] = []
        for case, changed in cases.items():
            value, nearest = _figure(question, contenders[0], changed), _nearest(question, contenders, changed)
            if value == inf:
                instead = "" if nearest is None else f", and {nearest.composition.name} would be best"
                overtaken.append(f"{case}, {contenders[0].composition.name} does not fit{instead}")
                continue
            values.append(value)
            if nearest is not None and (figure := _figure(question, nearest, changed)) < 0.999 * value:
                better = 100 * (value / figure - 1)
                overtaken.append(f"{case}, {nearest.composition.name} would be {better:.2g} % better")
        names = () if times is not None else tuple(case.removeprefix("on ") for case in cases)
        swing = max(abs(log(value / own)) for value in values)
        found.append(Sensitivity(number, times, swing, min(values), max(values), tuple(overtaken), names))
    return sorted(found, key=lambda one: (not one.overtaken, -one.swing))


_Changed = Callable[[Scenario], Scenario]


def _cases(best: Trial, known: Mapping[str, float]) -> Iterator[tuple[Number, float | None, dict[str, _Changed]]]:
    """Yields each number, how many times as long things take with another one, and what that makes of scenarios."""
    if best.scenario is not None and best.composition.helped is None and (runtimes := others(best.scenario)):
        names = [one.runtime.name for one in runtimes if one.runtime is not None]
        yield RUNTIME, None, {f"on {name}": partial(_on_runtime, name) for name in names}
    for number in NUMBERS:
        times = known.get(number.name, TIMES)
        slow, fast = (partial(_slower, number, factor) for factor in (times, 1 / times))
        yield number, times, {f"{times:.3g} times as slow": slow, f"{times:.3g} times as fast": fast}


def _on_runtime(name: str, scenario: Scenario) -> Scenario:
    """The scenario on a runtime, where it is only assumed which one it has."""
    found = (one for one in others(scenario) if one.runtime is not None and one.runtime.name == name)
    return next(found, scenario)


def _slower(number: Number, times: float, scenario: Scenario) -> Scenario:
    return number.slower(scenario, times)


def _contenders(question: Question, ranked: Sequence[Trial]) -> list[Trial]:
    """The best, and of each other way to decode, to be helped, and of each other place to keep KV the best that gives
    up no more."""
    best, metric = ranked[0], question.use.spec.best
    found: dict[tuple[object, ...], Trial] = {}
    for one in ranked:
        composition = one.composition
        allowed = question.any_quality or composition.gives_up_no_more_than(best.composition.loss)
        near = one.figures[metric] <= _NEAR * best.figures[metric]
        if allowed and near:
            key = (
                composition.helped,
                composition.decode,
                composition.away,
                composition.load == "local-prefill",
                composition.keep == "drop",
            )
            found.setdefault(key, one)
    return [best, *(one for one in found.values() if one is not best)][:4]


def _nearest(question: Question, contenders: Sequence[Trial], changed: _Changed) -> Trial | None:
    """Returns which contender is ahead of the best over few turns, the first of them if there are several; None: none
    is. Whether it is so over all turns is another run."""
    if len(contenders) < 2:
        return None
    at = [_figure(question, one, changed, _FEW_TURNS) for one in contenders]
    fastest = min(range(len(at)), key=lambda n: at[n])
    return contenders[fastest] if at[fastest] < at[0] else None


def _figure(question: Question, one: Trial, changed: _Changed, turns: int | None = None) -> float:
    """The figure of a composition with another number, over the turns of its trial or over no more than so many."""
    scenario, metric = one.scenario, question.use.spec.best
    assert scenario is not None
    if one.composition.helped is None:
        most = scenario.session.workload.turns
        # Energy is that of answers without the time between two, as trials have it.
        together = TOGETHER if metric == "energy_j" else {}
        scenario = question.scenario(one.composition, {"workload.turns": min(turns or most, most), **together})
    try:
        run = run_scenario(changed(scenario))
    except NoRoom:
        return inf
    if run.interrupted:
        raise KeyboardInterrupt
    return metrics_for(scenario, run).get(metric, inf) if run.outcome == "done" else inf


def _on_npu(question: Question, number: Number) -> bool:
    """Whether the figures are of a processor on which the tool that measures the number does not run."""
    device = question.device
    return bool(number.key) and device.processors[device.main].kind == "npu"


def _measure(question: Question, number: Number) -> str:
    return "" if _on_npu(question, number) else number.measure.format(gguf=word(model_file(question, None).gguf))


def _command(question: Question, one: Sensitivity, device: str) -> str:
    number, advise = one.number, question.command()
    if _on_npu(question, number):
        key = f"device.processors.{question.device.main}.{number.key}"
        return f"{advise} --set {key}=N  # llama-bench does not run on the npu that the figures are of"
    first, *rest = one.others or ("NAME",)
    of = f"or {', '.join(rest)}, the one " if rest else "if it is the one "
    return number.profile.format(base=word(device), file=number.file, advise=advise, first=first, of=of)


def next_measurement(question: Question, found: Sequence[Sensitivity]) -> Statement:
    """Returns which number to measure, by how much the answer could change, and the commands."""
    metric, base = question.use.spec.best, question.described["device"]
    device = base if isinstance(base, str) else base["extends"]
    matters = [one for one in found if one.swing > 0.001 or one.overtaken]
    untried = [one.name for one in NUMBERS if one not in [each.number for each in found]]
    late = [f"not tried, as the time ran out: {', '.join(untried)}"] if untried else []
    if not matters:
        none = (
            [f"no {'other ' if late else ''}number that a measurement would give changes the answer"] if found else []
        )
        return Statement("g", "measure next", (*none, *late))
    first = matters[0]
    span = " to ".join(dict.fromkeys(shown(metric, end) for end in (first.low, first.high)))
    how = "another known one" if first.times is None else f"{first.times:.3g} times as fast or as slow"
    lines = [f"{first.number.name}: {how}, {FIGURES[metric]} is {span}"]
    if first.overtaken:
        lines += first.overtaken
    else:
        others = (
            f", as it does where each other number{' tried' if late else ''} is so far off" if len(found) > 1 else ""
        )
        lines[0] += f"; the choice stays the same{others}"
    profile = _command(question, first, device)
    lines.append(" && ".join(filter(None, (_measure(question, first.number), profile))))
    rest = [f"{one.number.name} ({shown(metric, one.low)} to {shown(metric, one.high)})" for one in matters[1:]]
    if rest:
        lines.append(f"then {', '.join(rest)}")
    lines += late
    facts = {
        one.number.name: {"times": one.times, "low": one.low, "high": one.high, "overtaken": list(one.overtaken)}
        for one in found
    }
    return Statement("g", "measure next", tuple(lines), {"numbers": facts, "command": profile})
