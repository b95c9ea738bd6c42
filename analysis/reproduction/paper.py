"""What a paper claims and how we judge it, as data: the files of one folder in analysis/papers.

claims.csv        the figures as the paper prints them, and where
experiments.yaml  systems, experiments, and which of their figures answers which claim
exhibits.yaml     its numbered tables and figures
cells.csv         cells of its tables, where it prints any that are run
rates.csv         rates that people measured on their devices: cases and cells of the experiments that name `rates`
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import Field, NonNegativeInt, ValidationError, model_validator

from kvferry.analysis.reproduction.measured_rates import Measured, measured_rates, named_by_case
from kvferry.scenarios.faults import complaints_of, input_error
from kvferry.specs.base import BadKey, Spec
from kvferry.specs.document import read_document
from kvferry.specs.errors import InputError, pick

PAPERS = Path(__file__).resolve().parents[1] / "papers"
AnySpec = TypeVar("AnySpec", bound=Spec)
Statistic = Literal["value", "mean", "sweep", "bound", "measured"]


class Claim(Spec):
    """A figure of the paper, as printed. `statistic` says how it is judged: see verdict.py."""

    id: str
    metric: str
    statistic: Statistic
    subject: str
    reference: str
    low: float
    high: float
    conditions: str
    where: str


class SystemSpec(Spec):
    """A system as an experiment runs it. `about` is its name in reports. `everywhere`: what an experiment's storage is
    does not matter to it, so its cells are compared with those of other experiments, too."""

    system: str
    policies: Mapping[str, Any] = Field(default_factory=dict)
    about: str
    everywhere: bool = False


class ExperimentSpec(Spec):
    """A base scenario with settings (dotted keys, as ``--set`` takes them); every case under every system.

    `by` is "simulation", or a measurement of measurements.py, whose figures need no run. `seeds` replaces the paper's;
    an experiment that sets `seed` itself, in its settings or a case, is run with that one alone. `own`: settings of one
    system in one case, over those of the case; where it is given for a system, that runs the cases named there alone.
    """

    title: str
    where: str
    base: str
    settings: Mapping[str, Any] = Field(default_factory=dict)
    cases: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    rates: Measured | None = None
    systems: tuple[str, ...] = Field(min_length=1)
    own: Mapping[str, Mapping[str, Mapping[str, Any]]] = Field(default_factory=dict)
    by: str = "simulation"
    seeds: tuple[NonNegativeInt, ...] = ()
    # Printed with every claim that it answers.
    remark: str = ""

    @model_validator(mode="after")
    def _with_cases(self) -> "ExperimentSpec":
        if not self.cases and self.rates is None:
            raise BadKey("cases", "none is named; one would do, or `rates`")
        return self

    def cases_of(self, system: str) -> tuple[str, ...]:
        """The ones that a system is run in."""
        return tuple(case for case in self.cases if case in self.own.get(system, self.cases))


class Key(NamedTuple):
    """The key of a run: experiment, case and system, by name."""

    experiment: str
    case: str
    system: str


class EvidenceSpec(Spec):
    """Which figure answers a claim: `metric` of `system`, case by case, then `take` over the cases.

    `against`: the figure is instead the metric of that system over the metric of `system`; of several, the least, or
    their `mean`, as `of_several` says.
    `less_case`: the metric of `system` in that case is taken off.
    """

    experiment: str
    metric: str
    system: str
    cases: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    against_metric: str | None = None
    of_several: Literal["least", "mean"] = "least"
    less_case: str | None = None
    take: Literal["mean", "max", "range"]
    # Our figure times this is in the claim's unit.
    scale: float = 1.0
    # What was fitted to this claim, so that a hit proves little.
    fitted: str = ""
    # What the figure rests on that the paper does not print and we have chosen.
    chosen: str = ""
    # A remark for readers of the verdict.
    remark: str = ""


class OrderSpec(Spec):
    """A shape: in an experiment's cases the metric rises from each of these systems to the next."""

    experiment: str
    systems: tuple[str, ...] = Field(min_length=2)
    metric: str = "ttft_s"


class ExhibitSpec(Spec):
    """A numbered table or figure: what was run for it; nothing: it cannot be judged here, `why` says so.

    `not_compared`: what it states besides and nothing here is compared with.
    """

    name: str
    experiments: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    order: OrderSpec | None = None
    why: str
    not_compared: str = ""


class PanelSpec(Spec):
    """A metric of some systems, case by case, or over a setting `x` of the cases (as ``settings_of`` names it)."""

    title: str
    experiment: str
    systems: tuple[str, ...] = Field(min_length=1)
    # Empty: all.
    cases: tuple[str, ...] = ()
    x: str | None = None
    metric: str = "ttft_s"
    label: str = "TTFT (s)"


class PictureSpec(Spec):
    """Panels side by side."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    panels: tuple[PanelSpec, ...] = Field(min_length=1)
    columns: int = Field(default=3, ge=1)


class PrintedCell(Spec):
    """A cell as the paper prints it, `printed` digit by digit, and which figure of which run it is, times `scale`."""

    experiment: str
    case: str
    system: str
    metric: str
    # OOM: the run ran out of memory.
    printed: str = Field(pattern=r"^(\d+(\.\d+)?|OOM)$")
    scale: float = 1.0
    # What was fitted to this cell, so that its error is no prediction's.
    fitted: str = ""

    @property
    def out_of_memory(self) -> bool:
        return self.printed == "OOM"

    @property
    def value(self) -> float | None:
        """The printed figure; None where the run ran out of memory."""
        return None if self.out_of_memory else float(self.printed)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of values that round to the printed one. ValueError where none is printed."""
        _, _, decimals = self.printed.partition(".")
        half = 0.5 * 10.0 ** -len(decimals)
        return float(self.printed) - half, float(self.printed) + half

    def error(self, ours: float) -> float:
        """The distance to that interval, relative to its nearer end."""
        low, high = self.interval
        return ours / low - 1 if ours < low else ours / high - 1 if ours > high else 0.0


class _Experiments(Spec):
    settings: Mapping[str, Any] = Field(default_factory=dict)
    # Every experiment is run with each of these; none: with the seed of its base scenario.
    seeds: tuple[NonNegativeInt, ...] = ()
    systems: Mapping[str, SystemSpec]
    experiments: Mapping[str, ExperimentSpec]
    evidence: Mapping[str, EvidenceSpec]
    # What the cells of simulated runs show.
    cell_metrics: tuple[str, ...] = ("ttft_s", "energy_j")


class _Exhibits(Spec):
    exhibits: tuple[ExhibitSpec, ...]
    pictures: tuple[PictureSpec, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper's data, checked for unknown names. `settings` and `seeds` apply to every experiment."""

    name: str
    claims: tuple[Claim, ...]
    settings: Mapping[str, Any]
    systems: Mapping[str, SystemSpec]
    experiments: Mapping[str, ExperimentSpec]
    evidence: Mapping[str, EvidenceSpec]
    exhibits: tuple[ExhibitSpec, ...]
    pictures: tuple[PictureSpec, ...]
    cells: tuple[PrintedCell, ...] = ()
    cell_metrics: tuple[str, ...] = ("ttft_s", "energy_j")
    seeds: tuple[int, ...] = ()

    def seeds_of(self, experiment: str) -> tuple[int | None, ...]:
        """The seeds with which an experiment's claims are judged; (None,): each scenario's own."""
        spec = self.experiments[experiment]
        if any("seed" in settings for settings in (spec.settings, *spec.cases.values())):
            return (None,)
        return spec.seeds or self.seeds or (None,)

    def seeds_of_run(self, key: Key) -> tuple[int | None, ...]:
        """Returns the experiment's seeds; the first of them for a run on which no claim, printed cell or order of
        systems rests."""
        seeds = self.seeds_of(key.experiment)
        return seeds if key in self._judged else seeds[:1]

    def cases_of(self, evidence: EvidenceSpec) -> tuple[str, ...]:
        """The cases over which a claim is made."""
        return evidence.cases or tuple(self.experiments[evidence.experiment].cases)

    def runs_of(self, evidence: EvidenceSpec) -> list[Key]:
        """The runs behind a claim, case by case."""
        cases = dict.fromkeys((*self.cases_of(evidence), *([evidence.less_case] if evidence.less_case else [])))
        systems = (evidence.system, *evidence.against)
        return [Key(evidence.experiment, case, system) for case in cases for system in systems]

    @cached_property
    def _judged(self) -> frozenset[Key]:
        claimed = (key for evidence in self.evidence.values() for key in self.runs_of(evidence))
        ordered = (
            Key(order.experiment, case, system)
            for order in (exhibit.order for exhibit in self.exhibits)
            if order is not None
            for case in self.experiments[order.experiment].cases
            for system in order.systems
        )
        return frozenset((*claimed, *ordered, *(Key(cell.experiment, cell.case, cell.system) for cell in self.cells)))

    def with_seeds(self, most: int) -> "Paper":
        """The same paper with no more than the first `most` seeds of each experiment."""
        experiments = {
            name: spec.model_copy(update={"seeds": spec.seeds[:most]}) for name, spec in self.experiments.items()
        }
        return replace(self, experiments=experiments, seeds=self.seeds[:most])


def paper_names(papers: Path = PAPERS) -> list[str]:
    """The papers whose figures come along, sorted."""
    return sorted(path.parent.name for path in papers.glob("*/claims.csv"))


def load_paper(name: str, papers: Path = PAPERS) -> Paper:
    """The paper of that name. Raises InputError for another name, and for faults in its files."""
    folder = pick("paper", {each: papers / each for each in paper_names(papers)}, name)
    content = _read(folder / "experiments.yaml", _Experiments)
    experiments, of_rates = _with_rates(content.experiments, folder / "rates.csv")
    shown = _read(folder / "exhibits.yaml", _Exhibits)
    paper = Paper(
        name=name,
        claims=_read_rows(folder / "claims.csv", Claim),
        settings=content.settings,
        systems=content.systems,
        experiments=experiments,
        evidence=content.evidence,
        exhibits=shown.exhibits,
        pictures=shown.pictures,
        cells=of_rates + (_read_rows(folder / "cells.csv", PrintedCell) if (folder / "cells.csv").is_file() else ()),
        cell_metrics=content.cell_metrics,
        seeds=content.seeds,
    )
    _check(paper)
    return paper


def _with_rates(
    experiments: Mapping[str, ExperimentSpec], file: Path
) -> tuple[dict[str, ExperimentSpec], tuple[PrintedCell, ...]]:
    """The experiments with the cases of measured rates, and these rates as cells."""
    found, cells = dict(experiments), []
    for name, experiment in experiments.items():
        if experiment.rates is None:
            continue
        rates = named_by_case(rate for rate in measured_rates(file) if rate.metric == experiment.rates)
        cases = {case: rate.settings() for case, rate in rates.items()}
        found[name] = experiment.model_copy(update={"cases": cases})
        for system in experiment.systems:
            cells += [PrintedCell.model_validate(rate.cell(name, case, system)) for case, rate in rates.items()]
    return found, tuple(cells)


def _read_rows(path: Path, spec: type[AnySpec]) -> tuple[AnySpec, ...]:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return tuple(spec.model_validate(row) for row in rows)
    except ValidationError as error:
        raise InputError(f"{path.name}: {error}") from None


def _read(path: Path, spec: type[Any]) -> Any:
    tree = read_document(path)
    try:
        return spec.model_validate(tree.plain())
    except ValidationError as error:
        raise input_error(complaints_of(error, spec), tree) from None


def _check(paper: Paper) -> None:
    for experiment in paper.experiments.values():
        for system in experiment.systems:
            pick("system", paper.systems, system)
    ids = {claim.id: claim for claim in paper.claims}
    for id in ids:
        pick("claim with evidence", paper.evidence, id)
        for system, cases in experiment.own.items():
            pick("system of the experiment", dict.fromkeys(experiment.systems), system)
            for case in cases:
                pick("case", experiment.cases, case)
    for id, evidence in paper.evidence.items():
        pick("claim", ids, id)
        experiment = pick("experiment", paper.experiments, evidence.experiment)
        for case in (*evidence.cases, *([evidence.less_case] if evidence.less_case else [])):
            pick("case", experiment.cases, case)
        for system in (evidence.system, *evidence.against):
            pick("system of the experiment", dict.fromkeys(experiment.systems), system)
    for cell in paper.cells:
        experiment = pick("experiment", paper.experiments, cell.experiment)
        pick("case", experiment.cases, cell.case)
        pick("system of the experiment", dict.fromkeys(experiment.systems), cell.system)
    for exhibit in paper.exhibits:
        for name in exhibit.experiments:
            pick("experiment", paper.experiments, name)
        for id in exhibit.claims:
            pick("claim", ids, id)
        if exhibit.order:
            experiment = pick("experiment", paper.experiments, exhibit.order.experiment)
            for system in exhibit.order.systems:
                pick("system of the experiment", dict.fromkeys(experiment.systems), system)
