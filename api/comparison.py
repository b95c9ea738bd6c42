"""One scenario under several systems, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry.analysis.equal_memory import unequal_memory
from kvferry.analysis.folder import comparison_pictures, write_comparison
from kvferry.analysis.paired import Paired, paired
from kvferry.analysis.quality import lower_quality
from kvferry.analysis.remarks import remarks_on
from kvferry.analysis.study_plots import chance_of
from kvferry.analysis.sureness import how_sure
from kvferry.analysis.tables import UNCLEAR, Ranges, compare_table, unclear_of
from kvferry.api.comparable import Comparable, VariantsSource, comparable, with_seeds
from kvferry.api.html import Picture, table_html, table_text
from kvferry.api.intervals import sureness_of
from kvferry.api.order import Order
from kvferry.api.repeats import Watch, carry_out, check_runs, unwatched
from kvferry.api.result import Result
from kvferry.api.scenario import Settings, Source
from kvferry.api.written import written
from kvferry.backends.world import Say
from kvferry.pipelines.workload import Progress
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

_NOTEBOOK_WIDTH = 240


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results by system, in the order in which they were asked for. As the last value of a notebook's cell it shows the
    table that the command prints, the best system first.

    ``failed``: why systems failed, by name. ``left_out``: why systems cannot run this scenario, where all of a paper
    were asked for. ``interrupted``: Ctrl-C ended it. ``without_effect``: which settings and policies some of the
    systems do not have.
    """

    scenario: Scenario
    results: Mapping[str, Result]
    failed: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    without_effect: tuple[str, ...] = ()

    def __getitem__(self, system: str) -> Result:
        """Raises KeyError for a system that has no result."""
        return self.results[system]

    @property
    def headline(self) -> str:
        """The metric that the workload is about, by which systems are ranked."""
        return WORKLOADS[self.scenario.workload.kind].headline

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row per system, a column per metric, named as in ``Result.metrics``; missing where it does not apply."""
        import pandas as pd

        return pd.DataFrame.from_dict({name: one.metrics for name, one in self.results.items()}, orient="index")

    @property
    def marks(self) -> dict[str, str]:
        """By system why its figures are not those of equal quality: tokens that it leaves out, KV that is coarser."""
        return lower_quality({name: one.metrics for name, one in self.results.items()})

    @property
    def unclear(self) -> set[str]:
        """The systems that cannot be told from a better one, marked ``~``."""
        metrics = {name: one.metrics for name, one in self.results.items()}
        return self._order.unsure | (unclear_of(metrics, self._ranges, self.headline) if self._several else set())

    @cached_property
    def remarks(self) -> list[str]:
        """What a reader of all the figures should know."""
        runs = {name: (one.scenario, one.run) for name, one in self.results.items()}
        ended = [f"{name}: {run.outcome.replace('_', ' ')}: {run.why}" for name, (_, run) in runs.items() if run.why]
        failed = [f"{name}: failed: {why}" for name, why in self.failed.items()]
        same = [name for name, one in self.results.items() if one.outcome != "done"]
        sure = {name: one.sureness for name, one in self.results.items() if one.sureness is not None}
        same += [name for name, one in sure.items() if one.same_on_all_runtimes]
        known = how_sure((one.evidence for one in sure.values()), sure)
        return [*self.without_effect, *ended, *failed, *remarks_on(runs, same), *known]

    @cached_property
    def _order(self) -> Order:
        return Order(self.results, self.headline)

    @property
    def beats(self) -> dict[str, dict[str, float]]:
        """By system and other system the share of samples in which it has the better figure of the metric that the
        workload is about, where one of the two has an interval there. What both rest on is the same for both in each
        sample."""
        return self._order.beats

    @cached_property
    def pairs(self) -> list[Paired]:
        """Each two systems by the runs with the same seed, the better one first; none of one seed, or of real runs."""
        import pandas as pd

        rows = [
            {"outcome": outcome, "system": name, "seed": seed, **metrics}
            for name, one in self.results.items()
            if one.scenarios
            for seed, (outcome, metrics) in one.repeats.by_seed.items()
        ]
        link = chance_of(scenario for one in self.results.values() for scenario in one.scenarios)
        found = paired(pd.DataFrame(rows), self.headline, ("system", "seed"), link) if rows else []
        return [replace(one, share=self.beats.get(one.better, {}).get(one.worse)) for one in found]

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        """By name: "paths" what each system did over time, "bars" their figures."""
        runs = {name: one.run for name, one in self.results.items()}
        draws = comparison_pictures(Path(), runs, self._envelopes, self.headline, self.unclear)
        return {path.name: Picture(path.name, draw) for path, draw in draws.items()}

    def picture(self, name: str = "bars") -> Picture:
        """The picture of that name. Raises InputError for one that this comparison does not have."""
        if name not in self.pictures:
            raise InputError(f"picture: {name!r} is none of {', '.join(self.pictures) or 'none: nothing finished'}")
        return self.pictures[name]

    def table(self, width: int = _NOTEBOOK_WIDTH) -> Table:
        """What the command prints, in this many characters, a rich.table.Table."""
        return compare_table(
            {name: {} for name in self.failed} | {name: one.metrics for name, one in self.results.items()},
            title=self.scenario.name,
            outcomes=dict.fromkeys(self.failed, "failed") | {name: one.outcome for name, one in self.results.items()},
            ranked_by=self.headline,
            notes=_notes(self.results, self._order, self.scenario.workload.kind, several=self._several),
            width=width,
            ranges=self._ranges if self._several else None,
            intervals={name: one.intervals for name, one in self.results.items()},
            unsure=self._order.unsure,
        )

    def write(
        self,
        folder: str | Path,
        *,
        plots: bool = True,
        tokens: bool = False,
        progress: Progress = lambda done, of: None,
    ) -> list[Path]:
        """Writes the folder that ``kvferry compare`` writes, and returns its files: one of each system, as
        ``Result.write`` does, comparison.json and, with `plots`, plots/. Raises KvferryError when a file cannot be
        written."""
        return write_comparison(
            Path(folder),
            {name: written(one.described) for name, one in self.results.items()},
            {name: one.run for name, one in self.results.items()},
            self._envelopes,
            self.headline,
            failed=self.failed,
            unclear=self.unclear,
            plots=plots,
            tokens=tokens,
            progress=progress,
        )

    def __repr__(self) -> str:
        return table_text(self.table())

    def _repr_html_(self) -> str:
        return table_html(self.table(), self.remarks)

    @property
    def _several(self) -> bool:
        return max((len(one.runs) for one in self.results.values()), default=0) > 1

    @property
    def _ranges(self) -> dict[str, Ranges]:
        return {name: ends for name, one in self.results.items() if (ends := one.ranges)}

    @property
    def _envelopes(self) -> dict[str, dict[str, object]]:
        return {name: one.envelope for name, one in self.results.items()}


def _notes(results: Mapping[str, Result], order: Order, workload: str, *, several: bool) -> list[str]:
    """What figures of systems do not say by themselves."""
    notes = _of_regret(results, workload)
    if several:
        runs = max(len(one.runs) for one in results.values())
        if any(one.scenarios for one in results.values()):
            same = "~: its range meets that of a system above it; the pairs compare them seed by seed"
            notes.append(f"medians of up to {runs} seeds; {same}")
        else:
            notes.append(f"medians of up to {runs} runs, taken in turns; {UNCLEAR}")
    notes += order.notes(several=several)
    done = {name: one for name, one in results.items() if one.outcome == "done"}
    unequal = unequal_memory(
        {name: one.metrics for name, one in done.items()}, {name: one.scenario for name, one in done.items()}
    )
    notes += [] if unequal is None else [unequal]
    for name, of in results.items():
        # Of figures that are not there, nothing is to be noted.
        own = of.run.notes if of.outcome in ("done", "interrupted") else ()
        notes += [f"{name}: {one}" for one in (*of.run.faults, *own)]
    return notes


def _of_regret(results: Mapping[str, Result], workload: str) -> list[str]:
    """Says which systems' regret is against the bound at the smallest encoding."""
    import numpy as np

    from kvferry.codecs.sizes import CODECS

    one_chunk, table = np.ones((1, 1, 1)), WORKLOADS[workload].systems
    systems = {
        name: table[one.scenario.system].with_policies(one.scenario.policy_values)
        for name, one in results.items()
        if "regret" in one.metrics
    }
    codecs = {name: system.codec for name, system in systems.items() if system.codec is not None}
    by_level = [name for name, codec in codecs.items() if len(CODECS[codec](one_chunk, 1).level_scale) > 1]
    return [f"regret of {', '.join(by_level)}: against the bound at the smallest encoding"] if by_level else []


def compare(
    scenario: Source | Comparable,
    systems: Sequence[str] | None = None,
    settings: Settings = (),
    *,
    seed: int | None = None,
    equal_tokens: int | None = None,
    variants: VariantsSource | None = None,
    seeds: int | None = None,
    runs: int = 1,
    intervals: bool = True,
    watch: Watch = unwatched,
    say: Say = lambda what: None,
) -> Comparison:
    """Carries a scenario out under several systems; None: those of its system's paper that can run it.

    Policies in `settings` hold for every system that has them; the scenario's own policies are its own system's, and
    others run with theirs. `variants`: in place of systems, by label the keys that each sets, ``{"Ours": {"system":
    "ferry"}}``, or a file that says so. `equal_tokens`: where decoding, every system that selects KV selects this many
    tokens; whole blocks and the newest tokens may come on top. `seeds`: each once with so many seeds, 0, 1, ...:
    figures are medians with their ranges, and ``pairs`` says at how many seeds one beats another. `runs`: how often
    each, for real, taken in turns. `scenario`, `settings` and `seed` are those of ``load``, `intervals`, `watch` and
    `say` those of ``run``.

    Raises InputError as ``load`` does, and where no system can run the scenario; MissingExtra where the real world is
    not installed. A system that fails, or cannot run it or select `equal_tokens`, is named in ``failed``, and the
    others go on; what is done when Ctrl-C comes is kept.
    """
    if not isinstance(scenario, Comparable) and seeds is not None:
        scenario = with_seeds(scenario, seeds, systems, settings, equal_tokens=equal_tokens, variants=variants)
    if not isinstance(scenario, Comparable):
        scenario = comparable(scenario, systems, settings, seed=seed, equal_tokens=equal_tokens, variants=variants)
    check_runs(scenario.scenario, runs)
    turns = [scenario.under] * runs
    if scenario.seeds:
        turns = list(scenario.seeds)
    carried = carry_out(turns, watch, say)
    results, interrupted = dict[str, Result](), carried.interrupted is not None
    for name, of_system in carried.runs.items():
        under, sureness = scenario.under[name], None
        try:
            asked = intervals and not interrupted
            sureness = sureness_of(under, of_system[0], watch) if asked else None
        except KeyboardInterrupt:
            interrupted = True
        results[name] = Result(
            under,
            of_system,
            sureness=sureness,
            label=name if scenario.are_variants else None,
            scenarios=tuple(turn[name] for turn in scenario.seeds)[: len(of_system)],
        )
    return Comparison(
        scenario.scenario,
        results,
        {**scenario.unable, **carried.failed},
        scenario.left_out,
        interrupted,
        scenario.without_effect,
    )
