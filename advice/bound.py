"""(e): what nothing that gives the whole answer can be better than, on this device.

The same turns are run with memory for everything, so that KV never leaves it and no block is computed twice. What lies
in the cloud alone comes within the clairvoyant bound of a load (policies/loading/bound.py), which a run of that load
alone has.
"""

from dataclasses import dataclass, replace

from kvferry.advice.answer import AS_GOOD, EQUAL, FIGURES, Statement, more, shown
from kvferry.advice.composition import KV_BITS, Composition
from kvferry.advice.quality import over_link
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial, figures_of
from kvferry.advice.trials import Trials
from kvferry.api.result import run as carry_out
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario

# Enough for any KV.
_ALL_MEMORY_BYTES = 1e15


@dataclass(frozen=True)
class Bound:
    """``figure``: the least of the metric that the use is judged by; None: it is not known."""

    metric: str
    figure: float | None
    why_not: str = ""
    # Prices each load by itself: loads that share their time may do better.
    by_parts: bool = False

    def statement(self, best: Trial) -> Statement:
        """How much better than the best anything could be."""
        own = best.figures[self.metric]
        if self.figure is None:
            return Statement("e", "bound", (self.why_not,))
        gap = own / self.figure - 1
        side = "more" if self.metric == "tpot_s" else "less"
        encoded = over_link(best) if best.composition.loss == "none" else None
        given_up = "nothing" if encoded is None else f"no more than the best over the link ({encoded})"
        alone = ", each load by itself" if self.by_parts else ""
        least = f"{FIGURES[self.metric]}{alone}: nothing on this device that gives up {given_up} has {side} than"
        if gap > EQUAL:
            said = f"the best: {more(1 + gap)}"
        elif best.composition.helped is not None and gap < -EQUAL:
            said = f"the best has {shown(self.metric, own)}, with help"
        elif best.composition.loss != "none" and gap < -EQUAL:
            said = f"the best has {shown(self.metric, own)}, as it gives up a part of the answer"
        elif gap < -AS_GOOD:
            said = f"the best has {shown(self.metric, own)}: loads that share their time do better than each by itself"
        else:
            said = "the best reaches it"
        return Statement(
            "e",
            "bound",
            (f"{least} {shown(self.metric, self.figure)}; {said}",),
            {"bound": self.figure, "gap": gap, "by_parts": self.by_parts},
        )


def bound_of(trials: Trials) -> Bound:
    """Returns the bound of a question, over as many turns as its trials. Raises KeyboardInterrupt."""
    question, metric = trials.question, trials.question.use.spec.best
    if metric == "energy_j":
        return Bound(metric, None, "no bound on energy is known")
    ideal = _ideal(trials)
    run = run_scenario(ideal)
    if run.interrupted:
        raise KeyboardInterrupt
    if run.outcome != "done" or run.sessions is None:
        return Bound(metric, None, f"no bound: {run.why}")
    figures = figures_of(ideal, run)
    if metric == "tpot_s":
        return Bound(metric, figures[metric])
    turns = run.sessions.turns
    saved_s, by_parts = 0.0, False
    for turn in turns:
        if turn.from_cloud:
            by_parts = True
            saved_s += max(0.0, turn.got_s - turn.began_s - _load_bound_s(question, turn.from_cloud))
    return Bound(metric, figures[metric] - saved_s / len(turns), by_parts=by_parts)


def _ideal(trials: Trials) -> Scenario:
    loads = trials.question.space.parts["load"]
    plain = replace(trials.question, memory=None)
    one = Composition(load=loads[0], decode="vllm", keep="memory", kv_bits=KV_BITS[0])
    scenario = plain.scenario(one, trials.settings(one))
    device = scenario.device
    memory = device.memory.model_copy(update={"capacity_bytes": _ALL_MEMORY_BYTES})
    return scenario.model_copy(update={"device": device.model_copy(update={"memory": memory})})


def _load_bound_s(question: Question, tokens: int) -> float:
    """The clairvoyant bound of loading so many tokens. The largest of a use's loads stands for those like it."""
    described = {key: value for key, value in question.described.items() if key not in ("workload", "system")}
    workload = {"kind": "context-reuse", "context": tokens}
    asked = [one for one in question.settings if not one.startswith(("policies.", "workload."))]
    result = carry_out({**described, "system": "ferry", "workload": workload}, asked, intervals=False)
    return result.metrics.get("bound_s", 0.0)
