"""How sure a run's figures are: what it is carried out with besides, and what says how far that may be off."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvferry.analysis.interval_columns import IntervalsOf
from kvferry.analysis.intervals import effect_of_choices, effect_of_errors
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.repeats import Range
from kvferry.analysis.reproduction.left_out import By, Spread, known_spread
from kvferry.analysis.reproduction.storage_errors import storage_spread
from kvferry.analysis.run_errors import STUDY, run_errors
from kvferry.analysis.sureness import ON_CPU, PRECISION, RUNTIME, STORAGE, Sureness
from kvferry.api.known_errors import ENERGY, OF_RATE, BothEnds, KnownErrors
from kvferry.api.repeats import Watch, unwatched
from kvferry.api.reruns import Reruns
from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.decoding.runtimes import others, runtime_of
from kvferry.pipelines.record import Run
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.prototypes import by_data_sheet
from kvferry.sim.costs.bound_by import bound_by
from kvferry.sim.slowed import in_fp16, slowed, with_slowed_storage
from kvferry.specs.offload import CPU
from kvferry.specs.scenario import Scenario

# The share of a token's time that may lie in what nothing is known of.
MOST_UNKNOWN = 0.5


def sureness_of(scenario: Scenario, run: Run, watch: Watch) -> Sureness | None:
    """Carries a finished run of the modelled world out again where something is a little different, and says what its
    figures come to. None for a real run, and one that did not finish. Raises KeyboardInterrupt."""
    if scenario.backend != "sim" or run.outcome != "done":
        return None
    return _Causes(scenario, run, watch).sureness()


def intervals_at(scenario: Scenario, run: Run) -> Mapping[str, Range]:
    """The intervals of a finished run's figures."""
    found = sureness_of(scenario, run, unwatched)
    return {} if found is None else found.intervals


def intervals_where_assumed(scenario: Scenario, run: Run) -> Mapping[str, Range]:
    """The same of a run whose runtime is only assumed, and makes a difference."""
    return intervals_at(scenario, run) if others(scenario) else {}


# What says how sure a point of a sweep is, by what a user asks for.
INTERVALS: Mapping[bool | None, IntervalsOf | None] = {
    True: intervals_at,
    None: intervals_where_assumed,
    False: None,
}


class _Causes:
    """What is not known exactly of a run, thing by thing, each by one or two runs besides it."""

    def __init__(self, scenario: Scenario, run: Run, watch: Watch) -> None:
        self._scenario, self._reruns = scenario, Reruns(scenario, run, watch)
        self._known = KnownErrors(metrics_for(scenario, run), scenario.measure)

    def sureness(self) -> Sureness:
        kind, known = self._scenario.workload.kind, self._known
        whole_runs = self._runs()
        if kind == "assist" and not whole_runs:
            known.not_known["devices and cloud"] = "nothing says how far their figures are off together"
        elif not whole_runs:
            if known.own.get("energy_j"):
                self._power()
            self._prefill()
            if kind in ("decode", "session"):
                self._decoding()
        if kind in ("decode", "session"):
            self._runtime()
        if not whole_runs and (kind == "decode" or (kind == "session" and _reads(self._scenario))):
            if known.own.get("read_bytes"):
                self._storage()
            if self._reruns.offload is not None and self._reruns.offload.spec.to == "host":
                self._copies()
        return known.sureness()

    def _runs(self) -> bool:
        """Whether it is known how far whole runs on the profile are off."""
        errors = run_errors(self._scenario.device, WORKLOADS[self._scenario.workload.kind].headline)
        here = {key: spread for key, spread in (errors or {}).items() if key in self._known.own}
        if "decode_tokens_per_s" in here and self._scenario.measure != "decode":
            # Cells are of decoding alone.
            here = {key: spread for key, spread in here.items() if key not in OF_RATE}
        if not here:
            return False
        told = {**next(iter(here.values())).told, "factors": {key: spread.factor for key, spread in here.items()}}
        # Errors of one system say nothing of another's: each has its own sample.
        half_widths = {key: spread.half_width for key, spread in here.items()}
        self._known.add("runs", told, effect_of_errors(f"runs of {self._scenario.system}", half_widths))
        return True

    def _power(self) -> None:
        """How far the power of decoding may be off, as far as it was measured: from memory, on one processor."""
        spread, known = self._spread("energy", "power"), self._known
        if spread is None:
            return
        if self._scenario.workload.kind != "decode" or known.own.get("read_bytes") or self._reruns.offload is not None:
            known.not_known["energy"] = "power was measured of decoding from memory alone"
        else:
            known.add("power", spread.told, effect_of_errors("power", dict.fromkeys(ENERGY, spread.half_width)))

    def _prefill(self) -> None:
        spread = self._spread("prefill", "prefill")
        ends = self._both_ends("prefill", spread, lambda by: slowed(self._scenario, prefill=by))
        if ends is None:
            return
        share = ends.share("ttft_s")
        if self._reruns.offload is not None and share is not None and share < 1 - MOST_UNKNOWN:
            why = "weights on their way take more than half of it, and errors of that are not known"
            self._known.not_known["prefill"] = why
        else:
            self._known.add_number("prefill", ends, self._known.of_prefill)
            self._precision()

    def _precision(self) -> None:
        """Where prompts are priced in INT8 at an assumed share, that they are multiplied as slowly as in FP16 is as
        likely."""
        other, known = in_fp16(self._scenario), self._known
        there = None if other is None else self._reruns.figures(other, PRECISION)
        if there is not None:
            choices = {"INT8": known.own, "FP16": there}
            effect = effect_of_choices(PRECISION, known.own, choices, known.of_prefill)
            known.add(PRECISION, {"over": [*choices]}, effect)

    def _decoding(self) -> None:
        scenario = self._scenario
        device = scenario.device
        bound = bound_by(device.processors[device.main], scenario.model, _first_step(scenario))
        self._decoding_on(None, "decoding", bound)
        if self._reruns.offload is not None and self._reruns.offload.spec.to == "cpu":
            self._decoding_on(CPU, ON_CPU, "reading")

    def _decoding_on(self, processor: str | None, what: str, bound: By) -> None:
        spread = self._spread(what, bound, processor)
        ends = self._both_ends(what, spread, lambda by: slowed(self._scenario, decoding=by, processor=processor))
        if ends is not None:
            self._known.add_number(what, ends, self._known.of_decoding)

    def _spread(self, what: str, bound: By, processor: str | None = None) -> Spread | None:
        device = self._scenario.device
        if device.engine is None:
            other = by_data_sheet(device.name)
            named = "--set engine=llama.cpp names one" if other is None else f"--set device={other} names one"
            why = f"{device.name} names no engine, and no {STUDY} is beside its profile: {named}"
            self._known.not_known[what] = why
            return None
        spread = known_spread(device.engine.name, device.processors[processor or device.main].kind, bound)
        if spread is None:
            self._known.not_known[what] = "measured on no device beside those of a fit"
        return spread

    def _storage(self) -> None:
        """How far reading from storage may be off, by cells of papers that it bounds."""
        known = self._known
        ends = self._both_ends(STORAGE, storage_spread(), lambda by: with_slowed_storage(self._scenario, by))
        if "decoding" not in known.evidence and known.shares.get(STORAGE, 0.0) < 1 - MOST_UNKNOWN:
            known.not_known[STORAGE] = "what computes beside it is not known, and takes more than half of the time"
        elif ends is not None:
            known.add_number(STORAGE, ends, known.of_decoding)

    def _both_ends(self, what: str, spread: Spread | None, slower: Callable[[float], Scenario]) -> BothEnds | None:
        """Carries the run out at both ends of what is known of something, which `slower` makes take so many times as
        long."""
        if spread is None:
            return None
        less, more = (self._reruns.figures(slower(by), what) for by in (1 / spread.factor, spread.factor))
        if less is None or more is None:
            return None
        ends = BothEnds(self._known.own, less, more, spread)
        share = ends.share("tpot_s")
        if share is not None:
            self._known.shares[what] = share
        return ends

    def _runtime(self) -> None:
        """Where it is only assumed what software takes, the other known runtimes that bound it are as likely."""
        found, known = {}, self._known
        for other in others(self._scenario):
            assert other.runtime is not None
            there = self._reruns.figures(other, f"runtime {other.runtime.name}")
            if there is not None:
                found[other.runtime.name] = there
        runtime = runtime_of(self._scenario)
        if found and runtime is not None:
            found[runtime.spec.name] = known.own
            name = f"{RUNTIME}: {', '.join(sorted(found))}"
            effect = effect_of_choices(name, known.own, found, known.of_decoding)
            known.add(RUNTIME, {"over": sorted(found)}, effect)
            if tpot_s := known.own.get("tpot_s"):
                known.shares[RUNTIME] = 1 - min(one["tpot_s"] for one in found.values()) / tpot_s

    def _copies(self) -> None:
        """Says that of copies of weights no errors are known. Where they take most of a token's time, no interval is
        honest."""
        why, known = "errors of the copy path's rate are not known", self._known
        if "decoding" in known.evidence and sum(known.shares.values()) < 1 - MOST_UNKNOWN:
            why += ", and it takes more than half of the time"
            known.forget()
        known.not_known["copies of weights"] = why


def _reads(scenario: Scenario) -> bool:
    """Whether a session decodes from KV on storage."""
    # Imported for a session: other runs start without decoding.
    from kvferry.sessions.systems import SESSION_SYSTEMS

    system = SESSION_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
    return system.decoding.roles.placement.away == "storage"


def _first_step(scenario: Scenario) -> DecodeStep:
    """A decode step as it comes first: of a session behind its context and question."""
    if scenario.workload.kind == "session":
        turns = scenario.session.workload
        return DecodeStep(1, turns.beginning + turns.context + turns.question)
    workload = scenario.decode.workload
    return DecodeStep(1 if workload.batch == "max" else workload.batch, workload.context)
