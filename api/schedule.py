"""Schedulers on one loading problem: what each plan promises, and what becomes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvferry.analysis.envelope import provenance_of, versions
from kvferry.analysis.remarks import how_known
from kvferry.api.scenario import Settings, Source, check_workload, load
from kvferry.pipelines.plugins import naming_plugins
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Schedules:
    """Schedulers compared. As the last value of a notebook's cell it shows its table.

    ``rows``: by schedule ``solve_s``, ``makespan_s``, ``completion_s``, ``bound_s``, ``load_s`` in seconds, and
    ``bound_gap`` and ``regret`` as shares; None where there is no figure, and then ``why`` says why.
    """

    scenario: Scenario
    rows: tuple[Mapping[str, Any], ...]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per schedule, by its name."""
        import pandas as pd

        return pd.DataFrame([dict(row) for row in self.rows]).set_index("schedule")

    @property
    def remarks(self) -> list[str]:
        """What a reader should know, above all that the device's profile was not measured."""
        note = how_known(self.scenario.device)
        return [note] if note else []

    @property
    def envelope(self) -> dict[str, Any]:
        """What ``kvferry schedule --json`` prints."""
        return {
            "scenario": self.scenario.name,
            "seed": self.scenario.seed,
            "versions": versions(),
            "schedules": [dict(row) for row in self.rows],
            "provenance": provenance_of(self.scenario.device, self.scenario.model),
        }

    def __repr__(self) -> str:
        return f"{self.scenario.name}: {len(self.rows)} schedules"

    def _repr_html_(self) -> str:
        return str(self.table.to_html())


@naming_plugins()
def schedule(
    source: Source, settings: Settings = (), *, seed: int | None = None, solver: str | None = None
) -> Schedules:
    """Compares all schedulers on a scenario's first request, also those of plugins.

    `source`, `settings` and `seed` as in ``load``. `solver`: "highs", "cbc" or "gurobi" solves the MILP, too. What is
    planned is at the link's mean rate and by estimated costs; each plan is then carried out to the letter over the link
    as it varies.

    Raises InputError as ``load`` does, for a scenario that loads no context, and for a solver that there is not.
    """
    from kvferry.analysis.schedules import compare_schedules

    loaded = load(source, settings, seed=seed)
    check_workload(loaded, "context-reuse", "kvferry schedule", "quickstart")
    return Schedules(loaded, tuple(compare_schedules(loaded, solver)))
