"""What fits: the longest context on the device; and where nothing fits, the least that a limit would have to allow,
and which model would."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, inf
from typing import Any

from kvferry.advice.answer import Statement, not_over_all
from kvferry.advice.composition import Composition
from kvferry.advice.least_memory import in_digits as _digits
from kvferry.advice.least_memory import least_memory
from kvferry.advice.question import Limit, Question
from kvferry.advice.trial import Trial, tried
from kvferry.analysis.metrics import metrics_for
from kvferry.api.scenario import load
from kvferry.pipelines.run import run_whole
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_model
from kvferry.scenarios.trained_context import trained_context
from kvferry.specs import human
from kvferry.specs.errors import InputError
from kvferry.specs.units import quantity
from kvferry.specs.weight_format import WEIGHT_FORMATS

# Contexts are looked for up to this many tokens, to the next 1Ki or 3 %.
MOST_TOKENS, _STEP_TOKENS, _CLOSE = 2**20, 1024, 0.03
# One turn, of which hardly anything is decoded: memory alone is asked for.
_QUESTION_TOKENS, _ANSWER_TOKENS = 64, 2
_ONE_TURN = {
    "workload.turns": 1,
    "workload.contexts": 1,
    "workload.decoded": 2,
    "workload.output": _ANSWER_TOKENS,
    "workload.spread": 0.0,
    "workload.question_spread": None,
    "workload.output_spread": None,
    "workload.context_percentiles": None,
    "workload.question_percentiles": None,
    "workload.output_percentiles": None,
    "workload.beginning": 0,
    "workload.question": _QUESTION_TOKENS,
    "workload.in_cloud": "nothing",
    "workload.trace": None,
}
_MOST_NAMED = 3


@dataclass(frozen=True)
class Fit:
    """``context``: the longest that fits, at least so many tokens where ``is_least``; 0: it is not asked for, as of a
    device that is helped. ``peak_bytes`` of ``memory_bytes`` are taken by the use's own contexts. ``in_memory``: the
    longest context with all KV in the processor's memory, where the choice has it elsewhere; else None. ``trained``:
    the longest that the model was trained for; None: it is not known, and the others are by memory alone.
    ``longest_turn``: tokens of the use's longest turn; ``few``: over how many turns it was judged, "": over all."""

    context: int
    is_least: bool
    memory_bytes: float
    peak_bytes: float
    in_memory: int | None = None
    trained: int | None = None
    longest_turn: int = 0
    few: str = ""

    @property
    def longest(self) -> int:
        """The longest context that memory and the model allow."""
        return self.context if self.trained is None else min(self.context, self.trained)

    @property
    def too_long(self) -> bool:
        """Whether the longest turn of the use is longer than what fits, so that an answer is of its first turns
        alone."""
        return bool(self.context) and not self.is_least and self.longest_turn > self.context

    def statement(self) -> Statement:
        """Says whether it fits, and the longest context."""
        facts = {
            "context": self.longest,
            "is_least": self.is_least,
            "memory_bytes": self.memory_bytes,
            "longest_turn": self.longest_turn,
            "fits_over_all_turns": None if self.few and not self.too_long else not self.too_long,
        }
        lines = [str(self)]
        if not self.too_long and self.longest_turn > self.longest and not self.is_least:
            turn = f"the longest turn of this use has {human.count(self.longest_turn)} tokens"
            lines.append(f"{turn}, more than the model was trained for")
        return Statement("a", "fits", tuple(lines), facts)

    def __str__(self) -> str:
        room = f"{human.size(self.peak_bytes)} of {human.size(self.memory_bytes)}"
        if self.too_long:
            turn = f"it does not fit over all turns: the longest has {human.count(self.longest_turn)} tokens"
            return f"{turn}; {self._reach}; {room} was {self.few.partition(',')[0]}"
        fits = f"it fits: {room}" if not self.few else f"{room}, {self.few}"
        return f"{fits}; {self._reach}" if self.context else fits

    @property
    def _reach(self) -> str:
        if self.trained is not None and self.trained <= self.context:
            trained = f"{human.count(self.trained)} tokens, which the model was trained for"
            return f"the longest context is {trained}"
        reach = f"{'more than ' if self.is_least else ''}{human.count(self.context)} tokens"
        reach += " by memory alone" if self.trained is None else ""
        beside = f" ({human.count(self.in_memory) if self.in_memory else 'none'} with KV in memory)"
        beside = beside if self.in_memory is not None else ""
        return f"the longest context is {reach}{beside}"


def holds(question: Question, one: Composition, tokens: int) -> bool:
    """Whether a composition holds a context of so many tokens, those of the question and the answer among them, beside
    the model."""
    context = max(0, tokens - _QUESTION_TOKENS - _ANSWER_TOKENS)
    return tried(question, replace(one, load="local-prefill"), {**_ONE_TURN, "workload.context": context}).is_done


def holding_longest(question: Question, ranked: Sequence[Trial]) -> list[Trial]:
    """Returns trials over few turns without the first ones that do not hold the use's longest turn; nothing where none
    does."""
    longest = question.turns.longest.tokens
    known: dict[Composition, bool] = {}
    for n, one in enumerate(ranked):
        if one.composition.helped is not None:
            return list(ranked[n:])
        # What evicts and what loads makes no difference to one turn.
        alike = replace(one.composition, load="local-prefill", evict="lru")
        if alike not in known:
            known[alike] = holds(question, alike, longest)
        if known[alike]:
            return list(ranked[n:])
    return []


def longest_context(question: Question, one: Composition) -> tuple[int, bool]:
    """Returns the longest context, in tokens, that a composition holds beside the model, and whether it is only known
    that no less would."""

    def fits(tokens: int) -> bool:
        return holds(question, one, tokens)

    if not fits(_STEP_TOKENS):
        return 0, False
    low = _STEP_TOKENS
    while low < MOST_TOKENS and fits(2 * low):
        low *= 2
    if low >= MOST_TOKENS:
        return low, True
    return _between(fits, low, 2 * low), False


def _between(fits: Callable[[int], bool], low: int, high: int) -> int:
    while high - low > max(_STEP_TOKENS, _CLOSE * low):
        middle = (low + high) // 2 // _STEP_TOKENS * _STEP_TOKENS
        if middle in (low, high):
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fit_of(question: Question, best: Trial, judged: tuple[int, int] = (0, 0)) -> Fit:
    """Returns how long a context may be for the composition of a trial. `judged`: over how many turns of how many."""
    assert best.scenario is not None
    granted = best.scenario.budget.memory_bytes or best.scenario.device.memory.free_bytes
    one, peak_bytes = best.composition, best.figures["memory_peak_bytes"]
    few, turn = not_over_all(judged), question.turns.longest.tokens
    if one.helped is not None:
        return Fit(0, True, granted, peak_bytes)
    trained = trained_context(str(question.described["model"]))
    in_memory = Composition(kv_bits=one.kv_bits, prefill_chunk=one.prefill_chunk)
    beside = None if one.away is None else longest_context(question, in_memory)[0]
    context, is_least = longest_context(question, one)
    # It ran; steps between contexts are wider.
    context = context if few else max(context, turn)
    return Fit(context, is_least, granted, peak_bytes, beside, trained, turn, few)


# --- nothing keeps all limits --------------------------------------------------------------------------------------


def why_none(
    question: Question,
    trials: list[Trial],
    settings: Callable[[Composition], Mapping[str, Any]] = lambda one: {},
    of: str = "no composition",
    goes_on: Callable[[], bool] = lambda: True,
) -> InputError:
    """Returns why no composition answers a question: what keeps each limit from being kept with the others, which one
    to drop, and what the least is that is possible then. `settings`: those with which the trials were run; `of`: what
    was run, in words, where there was no time for more; `goes_on`: whether there is time for one more run."""
    done = [one for one in trials if one.is_done]
    if not done:
        return _does_not_fit(question, trials, settings, of, goes_on)
    possible = _with_more_memory(question, trials, settings, goes_on)
    granted = None if question.memory is None else _granted(question)
    memory = [f"--memory {granted}"] if possible else []
    for limit in question.limits:
        others = tuple(one for one in question.limits if one is not limit)
        left = [one for one in done if not one.broken(others) and limit.constraint.metric in one.figures]
        if left:
            best = min(left, key=lambda one: one.figures[limit.constraint.metric])
            excess = limit.constraint.excess(best.figures[limit.constraint.metric])
            possible.append((excess, f"drop --{limit.spelled}", f"{_possible(limit, best)}{_with(others, granted)}"))
    asked = " and ".join([*memory, *map(_spelled, question.limits)])
    if len(question.limits) == 1 and possible and not memory:
        return InputError(f"{of} keeps {asked}: {possible[0][2]}")
    if possible:
        ways = "; or ".join(f"{drop}: {says}" for _, drop, says in sorted(possible))
        return InputError(f"{of} keeps {asked} together; {ways}")
    each = (min(done, key=lambda one: one.figures.get(of.constraint.metric, inf)) for of in question.limits)
    ways = "; ".join(
        f"--{one.spelled}: {_possible(one, best)}" for one, best in zip(question.limits, each, strict=True)
    )
    return InputError(f"{of} keeps any of {asked}: drop them all; {ways}{_with((), granted)}")


def _with_more_memory(
    question: Question,
    trials: list[Trial],
    settings: Callable[[Composition], Mapping[str, Any]],
    goes_on: Callable[[], bool],
) -> list[tuple[float, str, str]]:
    """By how much the least memory that keeps all other limits is more than what is granted, and the words for it;
    nothing where no limit is on memory, or more of it keeps them neither."""
    found = None if question.memory is None else least_memory(question, trials, settings, goes_on)
    if found is None:
        return []
    excess = found.n_bytes / quantity(question.memory or "", "size") - 1
    return [(excess, "drop --memory", f"{found}{_with(question.limits)}")]


def _with(limits: Sequence[Limit], memory: str | None = None) -> str:
    """Names the limits that a figure holds under besides."""
    others = [*([] if memory is None else [f"--memory {memory}"]), *map(_spelled, limits)]
    return f", with {' and '.join(others)}" if others else ""


def _spelled(limit: Limit) -> str:
    return f"--{limit.spelled} {limit.constraint.text.partition(' ')[2]}"


def _granted(question: Question) -> str:
    return human.size(quantity(question.memory or "", "size"))


def _possible(limit: Limit, best: Trial) -> str:
    """The least that can be asked for, or of a rate the most, in three digits that the composition keeps."""
    figure = best.figures[limit.constraint.metric]
    if limit.constraint.metric == "tpot_s":
        return f"the most that is possible is {_digits(1 / figure, floor):.3g} tokens/s ({best.composition.name})"
    least = human.of_unit(limit.constraint.metric)(_digits(figure, ceil))
    return f"the least that is possible is {least} ({best.composition.name})"


def _does_not_fit(
    question: Question,
    trials: list[Trial],
    settings: Callable[[Composition], Mapping[str, Any]],
    of: str,
    goes_on: Callable[[], bool],
) -> InputError:
    """Nothing ran to its end."""
    refused = next((one.why for one in trials if one.outcome == "refused"), None)
    outcomes = {one.outcome for one in trials}
    if outcomes == {"refused"} and refused is not None:
        return InputError(refused)
    why = next(one.why for one in trials if one.outcome != "refused").rstrip("; ")
    if question.memory is not None:
        plain = replace(question, limits=())
        for asked in [question, plain] if question.limits else [plain]:
            if (least := least_memory(asked, trials, settings, goes_on)) is not None:
                said = f"memory: {_granted(question)} holds {of}; {least}{_with(asked.limits)}"
                return InputError(f"{said}; drop --memory, or grant that much")
    would = [*_smaller_formats(question), *_smaller_models(question), *_weights_elsewhere(question)]
    rest = f"; what would fit: {'; '.join(would)}" if would else "; no format and no bundled model would fit"
    return InputError(f"model: fits nowhere on {question.device.name}: {why}{rest}")


def _fits(question: Question, **changed: object) -> bool:
    """Whether one turn as long as the use's longest runs with another model or format, its KV in memory."""
    longest = question.turns.longest.tokens
    context = max(0, longest - _QUESTION_TOKENS - _ANSWER_TOKENS)
    described = {**question.described, **changed}
    try:
        budget = [f"budget.memory={question.memory}"] if question.memory else []
        scenario = load(described, [*budget, *question.plain_settings])
        scenario = load(scenario, {**_ONE_TURN, "workload.context": context})
        return run_whole(scenario).outcome == "done"
    except InputError:
        return False


def _smaller_formats(question: Question) -> list[str]:
    engine = question.device.engine
    formats = [name for name in WEIGHT_FORMATS if engine is None or name in engine.weights]
    found = [name for name in formats if _fits(question, precision={"weights": name})]
    return [f"its weights as {' or '.join(found[:_MOST_NAMED])}"] if found else []


def _smaller_models(question: Question) -> list[str]:
    sizes = sorted(((load_model(name).parameters, name) for name in names("model")), reverse=True)
    own = load_model(str(question.described["model"])).parameters
    found: list[str] = []
    for parameters, name in sizes:
        if len(found) == _MOST_NAMED:
            break
        if 1e8 < parameters < own and _fits(question, model=name):
            found.append(f"{name} ({parameters / 1e9:.2g} B parameters)")
    return [f"smaller models, such as {', '.join(found)}"] if found else []


def _weights_elsewhere(question: Question) -> list[str]:
    """Weights partly on the CPU or on storage, which a batch may have and a session not."""
    kept = ("device", "model", "precision", "link", "seed")
    described = {key: value for key, value in question.described.items() if key in kept}
    longest = question.turns.longest
    workload = {"kind": "decode", "context": longest.prompt, "output": min(32, longest.output)}
    found = []
    for to in ("cpu", "storage"):
        budget = {"offload": to} | ({"memory": question.memory} if question.memory else {})
        try:
            asked = {**described, "name": "elsewhere", "system": "vllm", "workload": workload, "budget": budget}
            scenario = load(asked, [one for one in question.plain_settings if not one.startswith("workload.")])
            figures = metrics_for(scenario, run_whole(scenario))
        except InputError:
            continue
        if "decode_tokens_per_s" in figures:
            found.append(f"its weights partly on {to}, {figures['decode_tokens_per_s']:.3g} tokens/s (docs/offload.md)")
    return found
