"""Finds which system to build or to switch on for a device, a model and a use."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic, process_time

from kvferry.advice.answer import Answer, Statement, missed, not_over_all, runners_up
from kvferry.advice.bound import bound_of
from kvferry.advice.choice import chosen, runners
from kvferry.advice.composition import Composition
from kvferry.advice.counterparts import counterparts
from kvferry.advice.evidence import evidence_of, left_out
from kvferry.advice.fit import fit_of, holding_longest, why_none
from kvferry.advice.folder import clear, write_answer, write_scenario, write_study
from kvferry.advice.measure import next_measurement, sensitivities
from kvferry.advice.quality import quality
from kvferry.advice.question import Question, question_of
from kvferry.advice.search import Search
from kvferry.advice.today import today
from kvferry.advice.trial import Trial, energy_of
from kvferry.advice.trials import Trials
from kvferry.advice.worth import not_worth
from kvferry.analysis.executors.executor import Executor
from kvferry.api.intervals import sureness_of
from kvferry.api.repeats import unwatched
from kvferry.pipelines.plugins import naming_plugins
from kvferry.pipelines.run import run_scenario
from kvferry.specs import human
from kvferry.specs.errors import InputError, Terminated
from kvferry.system import signals

# All of it takes no longer; of this, the search, and with it the judging of its choice over all turns, what that is
# compared with, and what is said of its results.
LIMIT_S, _SEARCH_SHARE, _JUDGED_SHARE, _COMPARED_SHARE, _EXPLAINED_SHARE = 110.0, 0.4, 0.6, 0.5, 0.6
# Processor time of drawing five pictures and of writing the page, with matplotlib's import; assumed. At most this share
# of all time is kept for it.
_WRITTEN_S, _MOST_RESERVED = 5.0, 0.3

# Processor time of a first answer, after which nothing more is begun for it.
_QUICK_S = 10.0

Say = Callable[[str], None]


@naming_plugins()
def advise(
    device: str,
    model: str,
    link: str | None = None,
    use: str = "chat",
    *,
    memory: str | float | None = None,
    ttft: str | float | None = None,
    tokens_per_s: float | None = None,
    energy: str | float | None = None,
    context: str | int | None = None,
    storage: str | None = None,
    helper: str | None = None,
    weights: str | None = None,
    any_quality: bool = False,
    settings: Sequence[str] = (),
    output: str | Path | None = None,
    refine: bool = True,
    limit_s: float | None = LIMIT_S,
    executor: Executor | str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    say: Say = lambda what: None,
) -> Answer:
    """Searches the compositions of a session, and of a device that a helper helps, for the best one.

    `device`, `model`: names or files; `link`: a trace, or a rate such as "100 Mbit/s"; None: there is none. `use`:
    chat, documents, agent, long-answers, or a file of that form. Limits: `memory` that all may take, `ttft` (of 19 of
    20 turns), `tokens_per_s`, `energy` of an answer. `context`: of the use, in other words than its own; `storage`:
    what the device has built in; `helper`: a device that may answer along, over the link; `weights`: the format of the
    model's weights. `any_quality`: what attends to a part of the tokens counts like the rest. `settings`: as --set has
    them. `output`: a folder for the scenario, the study behind the answer and a report. `refine`: False: the first
    answer, within seconds. `limit_s`: after which nothing more is begun; None: it takes as long as it takes.
    `executor`: of the study, as in ``sweep``.
    `progress` is called with what is done, `say` with the first answer.

    Ctrl-C ends the refinement, and the answer is the best so far. Raises InputError for a question that cannot be
    asked, a model that fits nowhere, and limits that contradict each other.
    """
    question = question_of(
        device=device,
        model=model,
        link=link,
        use=use,
        memory=memory,
        ttft=ttft,
        tokens_per_s=tokens_per_s,
        energy=energy,
        context=context,
        storage=storage,
        helper=helper,
        weights=weights,
        any_quality=any_quality,
        settings=settings,
    )
    return answer(
        question, refine=refine, limit_s=limit_s, output=output, executor=executor, progress=progress, say=say
    )


def answer(
    question: Question,
    *,
    refine: bool = True,
    limit_s: float | None = LIMIT_S,
    output: str | Path | None = None,
    executor: Executor | str | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, of: None,
    say: Say = lambda what: None,
) -> Answer:
    """Answers a question; arguments and errors are those of ``advise``."""
    began_s, cpu_s, limit = monotonic(), process_time(), inf if limit_s is None else limit_s
    runs = 0

    def done() -> None:
        nonlocal runs
        runs += 1
        progress("running compositions", runs, 0)

    def in_time() -> bool:
        return monotonic() < began_s + limit and (refine or process_time() - cpu_s < _QUICK_S)

    search = Search(question, done, began_s + _SEARCH_SHARE * limit)
    work = _Work()
    spent: dict[str, float] = {}
    work.carry_out(search.first, "over the first turns")
    ranked = search.few.ranked()
    if work.interrupted and not ranked:
        raise KeyboardInterrupt if work.ended_by == signal.SIGINT else Terminated(128 + work.ended_by)
    if not ranked and (not refine or not any(one.is_done for one in search.few.all)):
        raise _none(search, search.few, in_time)
    spent["first"] = process_time() - cpu_s

    first = ranked[0] if ranked else None

    def refined() -> None:
        if first is not None:
            over = "" if search.few is search.whole else ", over few turns"
            say(f"first answer{over}: {first.composition.name}")
        if refine:
            search.refine()

    if not work.interrupted:
        work.carry_out(refined, "while it was refined")
    if refine and not work.interrupted:
        work.carry_out(lambda: search.judge(began_s + _JUDGED_SHARE * limit), "while it was judged over all turns")
    if not work.interrupted:
        work.carry_out(lambda: compare(search, began_s + _COMPARED_SHARE * limit), "while it was compared")
    if first is not None and search.has_failed(first):
        say(f"over all turns it does not do: {first.composition.name} {_why_not(search, first)}")
    if not (ranked := search.ranked):
        raise _none(search, search.whole if search.whole.all else search.few, in_time)
    held: list[Trial] = []
    if search.is_coarse and not work.interrupted:
        work.carry_out(lambda: held.extend(holding_longest(question, ranked)), "while its longest turn was tried")
    ranked = held or ranked
    counted: list[Trial] = []
    if not work.interrupted:
        work.carry_out(lambda: counted.extend(_with_energy(search.trials, ranked)), "while its energy was counted")
    ranked = counted or ranked
    statements = _Statements(search, ranked, lambda: monotonic() < began_s + _EXPLAINED_SHARE * limit)
    work.carry_out(statements.first, "while it was explained")
    if not work.interrupted:
        work.carry_out(statements.rest, "while it was explained")
    spent["explained"] = process_time() - cpu_s
    found = Answer(
        question=question,
        best=ranked[0],
        ranked=ranked,
        statements=statements.all,
        tried=search.tried,
        coarse=search.is_coarse,
        judged_turns=search.judged_turns,
        cut_short=search.climb.cut_short,
        interrupted=work.interrupted,
        ended_by=work.ended_by,
        processor_s=spent,
        folder=None if output is None else Path(output),
    )
    folder = found.folder
    if folder is not None:
        work.finish(lambda: clear(folder, question))
        work.finish(lambda: write_scenario(found.best, folder))
        drawn: list[Path] = []
        if refine and not work.interrupted:
            kept_s = reserve_s(monotonic() - began_s, process_time() - cpu_s, limit)
            goes_on = lambda: monotonic() < began_s + limit - kept_s  # noqa: E731
            every = [*search.whole.all, *search.few.all]
            late: list[str] = []
            work.carry_out(
                lambda: late.extend(
                    write_study(found, every, statements.fit, folder, progress, goes_on, executor, drawn.extend)
                ),
                "while its pictures were drawn",
            )
            if late:
                files = ", ".join(f"kvferry sweep {folder / name}.yaml" for name in late)
                say(f"not all of {', '.join(late)} was run, as the time ran out: {files}")

        def told() -> Answer:
            return replace(found, interrupted=work.interrupted, ended_by=work.ended_by)

        work.finish(lambda: write_answer(told(), folder, drawn))
        return told()
    return found


class _Work:
    """Carries parts of an answer out until a signal ends one: Ctrl-C, or SIGTERM. ``interrupted``: which; None: none
    was."""

    def __init__(self) -> None:
        self.interrupted: str | None = None
        self.ended_by = 0

    def finish(self, part: Callable[[], None]) -> None:
        """Does it all the same where a first signal comes meanwhile; a second one ends it."""
        if not self.carry_out(part, "while it was written"):
            part()

    def carry_out(self, part: Callable[[], None], when: str) -> bool:
        """Returns whether it came to its end."""
        try:
            part()
            return True
        except KeyboardInterrupt:
            number = signal.SIGINT.value
        except Terminated:
            number = signal.SIGTERM.value
        except Exception:
            if (came := signals.last()) is None:
                raise
            number = came
        signals.dealt_with()
        self.interrupted, self.ended_by = self.interrupted or when, self.ended_by or number
        return False


def reserve_s(wall_s: float, processor_s: float, limit_s: float) -> float:
    """Returns the seconds to keep for drawing and writing, at the pace of the work so far: on a busy machine it takes
    many times its processor time."""
    if limit_s == inf:
        return 0.0
    return min(_MOST_RESERVED * limit_s, _WRITTEN_S * max(1.0, wall_s / max(processor_s, 1e-3)))


def _why_not(search: Search, few: Trial) -> str:
    """Why what did over few turns does not over all."""
    own = search.whole.of(few.composition) if few.composition in search.whole else None
    return f"misses {missed(search.question, own)}" if own is not None and own.is_done else "does not fit in memory"


def _none(search: Search, trials: Trials, goes_on: Callable[[], bool]) -> InputError:
    """Why nothing tried answers the question, and whether more might have been tried."""
    if not trials.all:
        return InputError("limit: is over before one composition was run; as in 110 s")
    tried, space = len(trials.all), human.count(search.question.space.number)
    turns, of = (search.judged_turns[1] if trials is search.whole else search.judged_turns[0]), search.judged_turns[1]
    if turns == of and not search.climb.cut_short:
        return why_none(search.question, trials.all, trials.settings, goes_on=goes_on)
    few = "" if turns == of else f", over {turns} of {of} turns"
    late = "; there was no time for more" if search.climb.cut_short else ""
    said = f"none of the {tried} compositions that were run (of {space}{few}{late})"
    return why_none(search.question, trials.all, trials.settings, said, goes_on)


def compare(search: Search, until_s: float) -> None:
    """Runs what the best composition is judged beside. Raises KeyboardInterrupt."""
    trials = search.trials
    for best in search.ranked[:1]:
        for one in counterparts(search.question.space, best.composition):
            if monotonic() < until_s:
                trials.of(one)


def _with_energy(trials: Trials, ranked: Sequence[Trial]) -> list[Trial]:
    """The trials, those that are shown with their energy: the others need none, as it did not count."""
    question, found = trials.question, dict[Composition, Trial]()
    for one in [] if question.counts_energy else [ranked[0], *runners_up(ranked, question.use.spec.best)]:
        energy = energy_of(question, one.composition, trials.settings(one.composition))
        found[one.composition] = replace(one, figures={**one.figures, **energy})
    return [found.get(one.composition, one) for one in ranked]


class _Statements:
    """Makes the statements of an answer, letter by letter; each is there as soon as its runs are done."""

    def __init__(self, search: Search, ranked: Sequence[Trial], goes_on: Callable[[], bool]) -> None:
        self._question, self._ranked, self._trials = search.question, ranked, search.trials
        self._judged = search.judged_turns
        self._tried = {one.composition for one in search.trials.all}
        # Beside an answer over few turns all others are over few.
        alone = search.is_coarse or search.few is search.whole
        few = [] if alone else search.few.ranked()
        self._few = [one for one in few if not search.has_failed(one)]
        self._missing = search.trials.missing_limits()
        self._few_missing = [] if alone else search.few.missing_limits()
        self._goes_on = goes_on
        self.said: dict[str, Statement] = {}

    def first(self) -> None:
        """Makes the statements that need no run, and then what needs hardly one."""
        question, ranked = self._question, self._ranked
        self._say(chosen(question, ranked, not_over_all(self._judged)))
        self._say(runners(question, ranked, self._few, self._tried, self._missing))
        self._say(today(question, ranked))
        fit = self.fit = fit_of(question, ranked[0], self._judged)
        self._say(fit.statement())
        self._say(chosen(question, ranked, not_over_all(self._judged, fit.too_long)))
        self._say(today(question, ranked, fit))
        self._say(not_worth(question, ranked, self._few, fit, self._missing, self._few_missing))

    def rest(self) -> None:
        """Makes the statements that need further runs, with other numbers or no limits. Raises KeyboardInterrupt."""
        question, ranked = self._question, self._ranked
        if self._goes_on():
            self._say(bound_of(self._trials).statement(ranked[0]))
        self._say(quality(question, ranked))
        sureness = None
        if ranked[0].scenario is not None and ranked[0].composition.helped is None and self._goes_on():
            run = run_scenario(ranked[0].scenario)
            if run.interrupted:
                raise KeyboardInterrupt
            sureness = sureness_of(ranked[0].scenario, run, unwatched)
        evidence = evidence_of(ranked[0], sureness)
        self._say(replace(evidence, left_out=left_out(ranked[0], sureness)).statement(ranked[0]))
        factors = {} if sureness is None else sureness.evidence
        known = {f"the rate of {of}": factors[of]["factor"] for of in ("prefill", "decoding") if of in factors}
        found = sensitivities(question, ranked, known, self._goes_on)
        self._say(replace(evidence, left_out=left_out(ranked[0], sureness, found)).statement(ranked[0]))
        self._say(next_measurement(question, found))

    def _say(self, one: Statement) -> None:
        self.said[one.key] = one

    @property
    def all(self) -> tuple[Statement, ...]:
        return tuple(self.said[key] for key in sorted(self.said))
