"""(h): what a choice loses, by what was measured on the bundled models: an indication, and no more, on other models."""

from collections.abc import Iterator, Sequence

from kvferry.advice.answer import Statement, giving_up, runners_up
from kvferry.advice.composition import KV_BITS, Composition
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.analysis.metrics import metrics_for
from kvferry.codecs.sizes import measured
from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.run import run_whole
from kvferry.sessions.as_batch import as_batch
from kvferry.specs import human
from kvferry.specs.errors import InputError, quoted_name
from kvferry.specs.scenario import Scenario

# Tokens that are decoded to see how many of all a selector takes in.
_FEW_TOKENS = 4


def over_link(one: Trial) -> str | None:
    """Returns what KV that comes over the link loses as it is encoded; None: none comes so."""
    composition = one.composition
    if composition.helped is not None or composition.load == "local-prefill":
        return None
    # What is found or computed is not coarser.
    if not one.figures.get("found_in_cloud_share"):
        return None
    codec = SYSTEMS[composition.load].codec
    levels = measured().get(codec)
    if levels is None:
        return f"{codec}: not known"
    worst = levels[-1] if composition.loss == "coarser" else levels[0]
    return f"KV error {human.percent(worst.relative_error)}, {worst.kl_nats:.2g} nats ({codec})"


def is_lossless(one: Trial) -> bool:
    """Whether it gives just the model's own answer."""
    return one.composition.loss == "none" and over_link(one) is None


def lossless(ranked: Sequence[Trial], metric: str) -> Trial | None:
    """Returns the best that loses nothing, where the first loses something; None: the first does not, or none was
    run."""
    exact = [one for one in ranked if is_lossless(one)]
    return min(exact, key=lambda one: one.figures[metric]) if exact and not is_lossless(ranked[0]) else None


def quality(question: Question, ranked: Sequence[Trial]) -> Statement:
    """Returns what each composition that is named loses, and that it is not known for the model of the question."""
    metric = question.use.spec.best
    exact = lossless(ranked, metric)
    shown = [ranked[0], *runners_up(ranked, metric), *([] if exact is None else [exact]), *giving_up(ranked, metric)]
    losses = {one.composition.name: list(_losses(question, one)) for one in shown}
    alike: dict[str, list[str]] = {}
    for name, of in losses.items():
        alike.setdefault(", ".join(of) or "nothing lost", []).append(name)
    lines = [f"{what}: {', '.join(names)}" for what, names in alike.items()]
    model = quoted_name(str(question.described["model"]))
    weights = question.described.get("precision", {}).get("weights")
    of_weights = [] if weights is None else [f"what {weights} weights lose"]
    of_kv = ["what else is lost (measured on models of a few million parameters)"]
    if unknown := [*of_weights, *(of_kv if any(losses.values()) else [])]:
        lines.append(f"not known for {model}: {', '.join(unknown)}")
    return Statement("h", "quality", tuple(lines), {"loses": losses})


def _losses(question: Question, one: Trial) -> Iterator[str]:
    composition = one.composition
    if composition.helped is not None:
        system = ASSIST_SYSTEMS[composition.helped]
        if composition.loss == "part":
            kept = one.figures.get("assisted_ratio", system.assist.ratio)
            yield f"the device reads {human.percent(float(kept))} of the prompt, chosen by {system.assist.refiner}"
        elif system.answers == "cloud":
            yield "nothing: the helper's model answers"
        return
    if (encoded := over_link(one)) is not None:
        yield encoded
    if composition.kv_bits < KV_BITS[0]:
        yield f"KV of {composition.kv_bits:g} bits, how much is not known"
    if composition.decoding.roles.selective and one.scenario is not None:
        yield from _attended(question, one.scenario, composition)


def _attended(question: Question, scenario: Scenario, composition: Composition) -> Iterator[str]:
    longest = question.turns.longest
    batch = as_batch(scenario, composition.decode, longest.prompt, _FEW_TOKENS)
    decode = scenario.policies["decode"].parameters if "decode" in scenario.policies else {}
    try:
        figures = metrics_for(batch, run_whole(batch, system=composition.decoding.with_policies(decode)))
    except InputError:
        yield "attends to a part of the tokens"
        return
    share = figures.get("attended_share")
    mass = figures.get("attention_mass")
    yield f"attends to {human.percent(share)} of the tokens" if share is not None else "attends to a part of the tokens"
    yield f"attention mass {human.percent(mass)}" if mass is not None else "attention mass: not known"
