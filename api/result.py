"""One scenario carried out under one system, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.envelope import Envelope, envelope_of, provenance_of
from kvferry.analysis.folder import (
    requests_columns,
    run_pictures,
    spans_columns,
    tokens_columns,
    units_columns,
    write_run,
)
from kvferry.analysis.intervals import intervals_of
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.ran_on import ran_on
from kvferry.analysis.remarks import remarks_on, why_no_energy
from kvferry.analysis.repeats import Range, Repeats
from kvferry.analysis.sureness import Sureness
from kvferry.analysis.tables import run_table
from kvferry.analysis.variants import VARIANT
from kvferry.api.html import Picture, table_html, table_text
from kvferry.api.intervals import sureness_of
from kvferry.api.repeats import Watch, carry_out, check_runs, unwatched
from kvferry.api.scenario import Settings, Source, load, remarks_under
from kvferry.api.written import written
from kvferry.backends.world import Say
from kvferry.pipelines.decoding.runtimes import runtime_of
from kvferry.pipelines.record import Run
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.specs.errors import InputError
from kvferry.specs.link import NoLink
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import with_unit

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


def envelope_for(scenario: Scenario, run: Run) -> Envelope:
    """The JSON object of one run: outcome, metrics, scenario, system, seed, versions, provenance."""
    link = scenario.link
    runtime = runtime_of(scenario)
    software = {} if runtime is None else {"runtime": runtime.provenance(scenario.device)}
    here = ran_on(scenario)
    live = {"live": here} if here else {}
    source = link.trace if link.rate_bytes_per_s is None else with_unit(link.rate_bytes_per_s, "rate")
    source = "none" if isinstance(link, NoLink) else source
    return envelope_of(
        run,
        metrics_for(scenario, run),
        scenario=scenario.name,
        system=scenario.system,
        seed=scenario.seed,
        provenance=provenance_of(scenario.device, scenario.model, link=str(source), **software, **live),
        not_counted=why_no_energy(scenario, run),
    )


@dataclass(frozen=True, eq=False)
class Result:
    """What a scenario came to. As the last value of a notebook's cell it shows the table that the command prints.

    ``runs``: several where it was run for real so often; figures are their medians, and requests, spans and pictures
    are of the run with the median of the metric that the workload is about. ``interrupted``: what was kept, where
    Ctrl-C ended it. ``sureness``: what is known of how far figures may be off; None where it was not asked for, and of
    real runs. ``left_out``: which policies of the scenario's file are another system's. ``label``: of a variant.
    ``scenarios``: of each run, where they differ in their seed.
    """

    scenario: Scenario
    runs: Sequence[Run]
    interrupted: str | None = None
    sureness: Sureness | None = None
    left_out: tuple[str, ...] = ()
    label: str | None = None
    scenarios: tuple[Scenario, ...] = ()

    @cached_property
    def repeats(self) -> Repeats:
        """All runs, each with its figures."""
        scenarios = self.scenarios or [self.scenario] * len(self.runs)
        figures = [metrics_for(*one) for one in zip(scenarios, self.runs, strict=True)]
        return Repeats(self.runs, figures, scenarios)

    @cached_property
    def _typical(self) -> int:
        return self.repeats.typical(WORKLOADS[self.scenario.workload.kind].headline)

    @property
    def run(self) -> Run:
        """All that the run left behind; of several, the one that stands for them."""
        return self.runs[self._typical]

    @property
    def described(self) -> Scenario:
        """Returns the scenario of that run."""
        return self.repeats.scenarios[self._typical]

    @cached_property
    def envelope(self) -> Envelope:
        """The object that ``--json`` prints: outcome, metrics, scenario, system, seed, versions, provenance; of several
        runs also "runs" and "ranges"; of a modelled run "intervals" and the "evidence" that they are made from."""
        envelope = envelope_for(self.described, self.run) | ({} if self.label is None else {VARIANT: self.label})
        if self.ranges is not None:
            envelope |= {"metrics": self.repeats.medians, "runs": len(self.runs), "ranges": _as_lists(self.ranges)}
            envelope |= {"seeds": [one.seed for one in self.scenarios]} if self.scenarios else {}
        if self.sureness is not None:
            envelope |= {"intervals": _as_lists(self.intervals), "evidence": dict(self.sureness.evidence)}
        return envelope

    @property
    def metrics(self) -> dict[str, float]:
        """Figures by name, with their units in it, as in ``ttft_s``; docs/metrics.md explains them. One that does not
        apply is not there."""
        metrics: dict[str, float] = self.envelope["metrics"]
        return metrics

    @property
    def ranges(self) -> dict[str, Range] | None:
        """Of several runs the least and the most of each metric; None of one."""
        return self.repeats.ranges if len(self.runs) > 1 else None

    @property
    def intervals(self) -> dict[str, Range]:
        """By metric the 80 % interval of the latencies and rates of which it is known how far they may be off;
        docs/intervals.md says from what."""
        return {} if self.sureness is None else intervals_of(self.repeats.medians, self.sureness.effects)

    @property
    def outcome(self) -> str:
        """ "done", "out_of_memory", "infeasible" or "interrupted"."""
        return self.run.outcome

    @property
    def why(self) -> str:
        """Why the outcome is not "done"; else empty."""
        return self.run.why

    @cached_property
    def remarks(self) -> list[str]:
        """What a reader of the figures should know: the outcome if it is no result, faults that were made good, what
        was done otherwise than described, figures that rest on a profile which was not measured."""
        said = [] if self.outcome in ("done", "interrupted") else [f"{self.outcome.replace('_', ' ')}: {self.why}"]
        of_profile = remarks_on({self.scenario.system: (self.scenario, self.run)})
        sure = [] if self.sureness is None else self.sureness.remarks
        return [*self.left_out, *said, *self.run.faults, *self.run.notes, *of_profile, *sure]

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row per request: request, arrival_s, loaded_s, first_token_s, last_token_s, tokens, ttft_s, tpot_s, load_s,
        bound_s, units_computed, units_streamed, streamed_bytes, wasted_bytes, streamed_bits_per_value. Missing: not
        reached, or not applicable."""
        return _frame(requests_columns(self.run, bounded="bound_s" in self.metrics))

    @cached_property
    def spans(self) -> pd.DataFrame:
        """A row per piece of work of a resource: resource, label, start_s, end_s, n_bytes, request, step, layer; the
        first 100,000."""
        return _frame(spans_columns(self.run))

    @cached_property
    def units(self) -> pd.DataFrame:
        """Of a loaded context a row per unit of its KV: request, token_chunk, layer, head (missing: all), path
        ("streamed" or "computed"), asked_s, ready_s."""
        return _frame(units_columns(self.run.requests))

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """Returns a row per token that was answered: request, token, from 0 in each, and at_s, when it was there."""
        return _frame(tokens_columns(self.run))

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        """By name: "gantt" what each resource did over time; "decode" of a batch that decodes in lock step; "assist" of
        devices with a cloud."""
        draws = run_pictures(Path(), self.run, self.envelope)
        return {path.name: Picture(path.name, draw) for path, draw in draws.items()}

    def picture(self, name: str | None = None) -> Picture:
        """The picture of that name; None: the one that says most of this workload. Raises InputError for a name that
        this result does not have."""
        name = next(reversed(self.pictures), None) if name is None else name
        if name is None or name not in self.pictures:
            known = ", ".join(self.pictures)
            raise InputError(f"picture: {name!r} is none of this result's: {known or 'it has no spans'}")
        return self.pictures[name]

    def table(self) -> Table:
        """The metrics as the command prints them, a rich.table.Table."""
        several = f", {len(self.runs)} {'seeds' if self.scenarios else 'runs'}" if len(self.runs) > 1 else ""
        return run_table(
            self.metrics,
            title=f"{self.scenario.name}: {self.scenario.system}{several}",
            ranges=self.ranges or self.intervals or None,
            median=bool(several),
            memory=self.envelope.get("memory_at_peak"),
        )

    def write(self, folder: str | Path, *, plots: bool = True, tokens: bool = False) -> list[Path]:
        """Writes the folder that ``kvferry run`` writes, and returns its files: scenario.yaml, metrics.json,
        spans.parquet, requests.parquet, units.parquet, trace.json and, with `plots`, plots/, with
        `tokens`, tokens.parquet. Equal runs give equal bytes. Raises KvferryError when a file cannot be written."""
        return write_run(Path(folder), written(self.described), self.run, self.envelope, plots=plots, tokens=tokens)

    def __repr__(self) -> str:
        return table_text(self.table())

    def _repr_html_(self) -> str:
        return table_html(self.table(), self.remarks)


def run(
    scenario: Source,
    settings: Settings = (),
    *,
    system: str | None = None,
    seed: int | None = None,
    runs: int = 1,
    intervals: bool = True,
    watch: Watch = unwatched,
    say: Say = lambda what: None,
) -> Result:
    """Carries a scenario out, in its modelled or real world.

    `scenario`, `settings`, `system` and `seed` are those of ``load``. `runs`: how often, for real, where runs differ.
    `intervals`: whether to say how far figures may be off, for which a run of decoding is carried out some times more.
    `watch` is entered with what is being done and gives what is called with how much is done, of how much; `say` is
    called with what is made ready before.

    Raises InputError as ``load`` does, and for several runs of the modelled world, which are all the same; MissingExtra
    where the real world is not installed; KvferryError where a run fails. Out of memory is an outcome, no error. What
    Ctrl-C interrupts is kept as far as requests, or runs, are done; with none, KeyboardInterrupt is raised.
    """
    loaded = load(scenario, settings, system=system, seed=seed)
    left_out = tuple(remarks_under(scenario, settings, loaded))
    check_runs(loaded, runs)
    carried = carry_out([{loaded.system: loaded}] * runs, watch, say, keep_going=False)
    finished = carried.runs.get(loaded.system, [])
    if carried.interrupted is None:
        try:
            sureness = sureness_of(loaded, finished[0], watch) if intervals else None
        except KeyboardInterrupt:
            return Result(loaded, finished, "the run without its intervals", left_out=left_out)
        return Result(loaded, finished, sureness=sureness, left_out=left_out)
    kept = f"{len(finished)} of {runs} runs" if runs > 1 else carried.interrupted.why
    if finished or carried.interrupted.requests:
        return Result(loaded, finished or [carried.interrupted], kept, left_out=left_out)
    raise KeyboardInterrupt(kept)


def _as_lists(ranges: Mapping[str, Range]) -> dict[str, list[float]]:
    return {key: list(ends) for key, ends in ranges.items()}


def _frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Whole numbers stay whole where some are missing."""
    import pandas as pd
    import pyarrow as pa

    frame: pd.DataFrame = pa.table(dict(columns)).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame
