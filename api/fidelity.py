"""How far the simulator is off this device: scenarios in both worlds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.fidelity_quality import quality_rows
from kvferry.analysis.fidelity_study import FidelityStudy, measure
from kvferry.analysis.study import study_names
from kvferry.api.scenario import Settings, Source, chosen_systems, load, overrides_of, under_systems
from kvferry.api.sweep import study_of
from kvferry.backends.world import Say
from kvferry.pipelines.idle_settings import MODELLED
from kvferry.pipelines.workload import Progress
from kvferry.scenarios.idle import IdlePolicies
from kvferry.specs.document import read_document, regular_file
from kvferry.specs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Fidelity:
    """Simulated and measured figures beside each other. As the last value of a notebook's cell it shows them.

    ``report``: what ``kvferry fidelity --json`` prints: study, runs, rows, summary, by_system, remarks, provenance.
    """

    report: Mapping[str, Any]

    @property
    def summary(self) -> dict[str, Any]:
        """Of the metric that the workload is about: scenarios, error_median, error_largest, spread_median, beyond."""
        summary: dict[str, Any] = self.report["summary"]
        return summary

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row per scenario and metric: scenario, metric, simulated, measured (the median of the runs), error and
        spread, both as shares of the measured figure; missing where there is none."""
        import pandas as pd

        rows = [
            {"scenario": row["name"], "metric": key, **found}
            for row in self.report["rows"]
            for key, found in row["metrics"].items()
        ]
        return pd.DataFrame(rows)

    @cached_property
    def quality(self) -> pd.DataFrame:
        """The same of the quality of decoding (``live.quality``), with ``alike``, whether both figures are of one
        thing, and ``how`` the modelled one is known; no rows where it was not measured."""
        import pandas as pd

        found = quality_rows(self.report["rows"])
        return pd.DataFrame([{"scenario": name, "metric": key, **figures} for name, key, figures in found])

    def __repr__(self) -> str:
        return f"{self.report['study']}: {self.report['runs']} runs each: {self.summary}"

    def _repr_html_(self) -> str:
        return str(self.metrics.to_html(max_rows=60))


def study_in_both_worlds(
    source: Source,
    systems: Sequence[str] | None = None,
    settings: Settings = (),
    runs: int = 5,
    paired: bool = False,
) -> FidelityStudy:
    """What ``fidelity`` measures. Raises InputError."""
    found = _study(source, systems, settings, runs)
    told = [line for line in found.remarks if not line.endswith(MODELLED)]
    return replace(found, paired=paired, remarks=told)


def _study(source: Source, systems: Sequence[str] | None, settings: Settings, runs: int) -> FidelityStudy:
    named = Path(source) if isinstance(source, str | Path) else None
    is_study = named is not None and (
        str(source) in study_names() or (regular_file(named) is None and read_document(named).child("base"))
    )
    if is_study:
        assert named is not None
        loaded = study_of(str(source), settings, is_whole=systems is None)
        if systems is None:
            return FidelityStudy(
                name=loaded.name, scenarios=loaded.points, varied=loaded.axes, runs=runs, remarks=loaded.remarks
            )
        if "system" in loaded.axes:
            raise InputError("systems: system is an axis of this study; change it there")
        names, asked, idle = chosen_systems(loaded.points[0], systems), overrides_of(settings), IdlePolicies()
        by_system = [study_of(str(source), [*asked, f"system={name}"], is_whole=False) for name in names]
        for one in by_system:
            idle.include(one.idle)
        idle.check()
        remarks = [*idle.remarks(), *dict.fromkeys(line for one in by_system for line in one.remarks)]
        scenarios = [point for one in by_system for point in one.points]
        return FidelityStudy(name=loaded.name, scenarios=scenarios, varied=loaded.axes, runs=runs, remarks=remarks)
    if systems is None:
        scenario = load(source, settings)
        return FidelityStudy(name=scenario.name, scenarios=[scenario], varied=(), runs=runs)
    found = under_systems(source, systems, settings)
    under = list(found.systems.values())
    return FidelityStudy(name=found.own.name, scenarios=under, varied=(), runs=runs, remarks=found.remarks)


def fidelity(
    source: Source | FidelityStudy,
    systems: Sequence[str] | None = None,
    settings: Settings = (),
    *,
    runs: int = 5,
    paired: bool = False,
    output: str | Path | None = None,
    progress: Progress = lambda done, of: None,
    say: Say = lambda what: None,
) -> Fidelity:
    """Runs a scenario, or a study's points, in both worlds, the real one `runs` times, and tells how far the simulator
    is off, beside the hardware's own spread.

    `systems`: those to run it under; None: its own. `paired`: each run has tables of its own, measured before and
    behind it; it does not count where the machine changed its speed meanwhile. With a folder, `output`, runs are kept
    as they come, both timelines are drawn, and the same call goes on after an interruption. `settings` are those of
    ``load``.

    Raises InputError as ``load`` does, MissingExtra where the real world is not installed, KvferryError where a run
    fails.
    """
    study = (
        source if isinstance(source, FidelityStudy) else study_in_both_worlds(source, systems, settings, runs, paired)
    )
    return Fidelity(measure(study, None if output is None else Path(output), progress=progress, say=say))
