"""From an experiment's figures to the answer to a claim, and the conditions under which it holds."""

from collections.abc import Iterator
from statistics import mean

from kvferry.analysis.reproduction.paper import EvidenceSpec, Key, Paper
from kvferry.analysis.reproduction.results import Results
from kvferry.analysis.reproduction.verdict import Figure
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.specs.scenario import Scenario


def figures_of(paper: Paper, evidence: EvidenceSpec, results: Results) -> tuple[Figure, ...]:
    """Our answer with each seed; a seed without one for any case is left out."""
    seeds = range(len(paper.seeds_of(evidence.experiment)))
    found = (_figure_with(seed, paper, evidence, results) for seed in seeds)
    return tuple(figure for figure in found if figure is not None)


def _figure_with(seed: int, paper: Paper, evidence: EvidenceSpec, results: Results) -> Figure | None:
    """The answer with the seed at this place of the experiment's; None when no case has one."""
    found = {case: _case_with(seed, evidence, case, results) for case in paper.cases_of(evidence)}
    figures = [figure for figure in found.values() if figure is not None]
    if not figures:
        return None
    done = all(results.rows[key][seed]["outcome"] == "done" for key in paper.runs_of(evidence))
    value = max(figures) if evidence.take == "max" else mean(figures)
    return Figure(value=value, low=min(figures), high=max(figures), complete=done and len(figures) == len(found))


def _case_with(seed: int, evidence: EvidenceSpec, case: str, results: Results) -> float | None:
    def of(system: str, metric: str, at: str = case) -> float | None:
        return results.of_seeds(Key(evidence.experiment, at, system), metric)[seed]

    ours = of(evidence.system, evidence.metric)
    if ours is None:
        return None
    ours *= evidence.scale
    if evidence.less_case is not None:
        before = of(evidence.system, evidence.metric, evidence.less_case)
        return None if before is None else ours - before
    if not evidence.against:
        return ours
    others = [of(system, evidence.against_metric or evidence.metric) for system in evidence.against]
    known = [other for other in others if other is not None]
    if len(known) < len(others) or not ours:
        return None
    return (mean(known) if evidence.of_several == "mean" else min(known)) / ours


def conditions_of(paper: Paper, evidence: EvidenceSpec, results: Results) -> str:
    """What the paper leaves open and we had to choose: contexts, models, devices, links, bits, variants."""
    experiment = paper.experiments[evidence.experiment]
    scenarios = {key.case: results.scenarios[key] for key in paper.runs_of(evidence)}
    words = [experiment.title, _contexts(scenarios)]
    words += [
        " or ".join(dict.fromkeys(describe(scenario) for scenario in scenarios.values()))
        for describe in (_model, _device, lambda one: WORKLOADS[one.workload.kind].medium(one))
    ]
    words += _variants(paper, evidence, results)
    ours = [f"{what}: {said}" for what, said in (("Fitted", evidence.fitted), ("Chosen", evidence.chosen)) if said]
    remarks = [experiment.remark, evidence.remark, *ours]
    return ". ".join(remark.strip().rstrip(".") for remark in ("; ".join(words), *remarks) if remark)


def _contexts(scenarios: dict[str, Scenario]) -> str:
    alone = len(scenarios) == 1
    lengths = [f"{'' if alone else f'{case} '}{scenario.workload.context:,}" for case, scenario in scenarios.items()]
    return f"context of {', '.join(lengths)} tokens"


def _model(scenario: Scenario) -> str:
    return scenario.model.name


def _device(scenario: Scenario) -> str:
    return scenario.device.name


def _variants(paper: Paper, evidence: EvidenceSpec, results: Results) -> Iterator[str]:
    for system in (evidence.system, *evidence.against):
        bits = [
            bits
            for case in paper.cases_of(evidence)
            if (bits := results.figure(Key(evidence.experiment, case, system), "streamed_bits_per_value")) is not None
        ]
        encoded = f", {mean(bits):.1f} bit/value" if bits else ""
        yield f"{system}: {paper.systems[system].about}{encoded}"
