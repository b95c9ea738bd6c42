"""How sure a run's figures are: what it is carried out with besides, and what says how far that may be off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log
from typing import Any

from kvferry.analysis.interval_columns import IntervalsOf
from kvferry.analysis.intervals import Effect, effect_of_choices, effect_of_errors, effect_of_number
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.repeats import Range
from kvferry.analysis.reproduction.left_out import LEVEL, By, Spread, known_spread
from kvferry.analysis.reproduction.storage_errors import storage_spread
from kvferry.analysis.run_errors import STUDY, run_errors
from kvferry.analysis.sureness import ON_CPU, PRECISION, RUNTIME, STORAGE, Sureness
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

_OF_DECODING = {"tpot_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s", "decode_tokens_per_s", "block_s"}
# The share of a token's time that may lie in what nothing is known of.
MOST_UNKNOWN = 0.5
# The rate that the scenario measures.
_OF_RATE = {"throughput_tokens_per_s", "seconds_per_token"}
_ENERGY = {"energy_j", "battery_percent_per_request"}


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
        self._own = metrics_for(scenario, run)
        self._effects: list[Effect] = []
        self._evidence: dict[str, Any] = {"level": LEVEL}
        self._not_known: dict[str, str] = {}
        # Of the time per token, by what takes it.
        self._shares: dict[str, float] = {}
        # Of the time to the first token, what computing takes.
        self._first_share = 1.0

    def sureness(self) -> Sureness:
        kind = self._scenario.workload.kind
        if self._runs():
            pass
        elif kind == "assist":
            self._not_known["devices and cloud"] = "nothing says how far their figures are off together"
        else:
            if self._own.get("energy_j"):
                self._power()
            self._prefill()
            if kind in ("decode", "session"):
                self._decoding()
        if kind in ("decode", "session"):
            self._runtime()
        if kind == "decode" or (kind == "session" and self._reads):
            if "runs" not in self._evidence and self._own.get("read_bytes"):
                self._storage()
            if (
                "runs" not in self._evidence
                and self._reruns.offload is not None
                and self._reruns.offload.spec.to == "host"
            ):
                self._path("copies of weights", "errors of the copy path's rate are not known")
        return Sureness(self._own, tuple(self._effects), {**self._evidence, "not_known": self._not_known})

    def _runs(self) -> bool:
        """Whether it is known how far whole runs on the profile are off."""
        errors = run_errors(self._scenario.device, WORKLOADS[self._scenario.workload.kind].headline)
        here = {key: spread for key, spread in (errors or {}).items() if key in self._own}
        if "decode_tokens_per_s" in here and self._scenario.measure != "decode":
            # Cells are of decoding alone.
            here = {key: spread for key, spread in here.items() if key not in _OF_RATE}
        if not here:
            return False
        factors = {key: spread.factor for key, spread in here.items()}
        # Errors of one system say nothing of another's: each has its own sample.
        half_widths = {key: spread.half_width for key, spread in here.items()}
        self._effects.append(effect_of_errors(f"runs of {self._scenario.system}", half_widths))
        one = next(iter(here.values()))
        self._evidence["runs"] = {**one.told, "factors": factors}
        return True

    def _power(self) -> None:
        """How far the power of decoding may be off, as far as it was measured: from memory, on one processor."""
        spread = self._spread("energy", "power")
        if spread is None:
            return
        if self._scenario.workload.kind != "decode" or self._own.get("read_bytes") or self._reruns.offload is not None:
            self._not_known["energy"] = "power was measured of decoding from memory alone"
        else:
            self._effects.append(effect_of_errors("power", dict.fromkeys(_ENERGY, spread.half_width)))
            self._evidence["power"] = spread.told

    def _prefill(self) -> None:
        spread = self._spread("prefill", "prefill")
        if spread is None:
            return
        self._add("prefill", spread, self._speaks_of_prefill)
        if self._reruns.offload is not None and self._first_share < 1 - MOST_UNKNOWN:
            self._not_known["prefill"] = (
                "weights on their way take more than half of it, and errors of that are not known"
            )
            self._evidence.pop("prefill", None)
            self._effects = [effect for effect in self._effects if effect.name != "prefill"]
        elif "prefill" in self._evidence:
            self._precision()

    def _precision(self) -> None:
        """Where prompts are priced in INT8 at an assumed share, that they are multiplied as slowly as in FP16 is as
        likely."""
        other = in_fp16(self._scenario)
        there = None if other is None else self._reruns.figures(other, PRECISION)
        if there is not None:
            self._evidence[PRECISION] = {"over": ["INT8", "FP16"]}
            choices = {"INT8": self._own, "FP16": there}
            self._effects.append(effect_of_choices(PRECISION, self._own, choices, self._speaks_of_prefill))

    @property
    def _reads(self) -> bool:
        """Whether a session decodes from KV on storage."""
        scenario = self._scenario
        # Imported for a session: other runs start without decoding.
        from kvferry.sessions.systems import SESSION_SYSTEMS

        system = SESSION_SYSTEMS[scenario.system].with_policies(scenario.policy_values)
        return system.decoding.roles.placement.away == "storage"

    @property
    def _step(self) -> DecodeStep:
        """A decode step as it comes first: of a session behind its context and question."""
        if self._scenario.workload.kind == "session":
            turns = self._scenario.session.workload
            return DecodeStep(1, turns.beginning + turns.context + turns.question)
        workload = self._scenario.decode.workload
        return DecodeStep(1 if workload.batch == "max" else workload.batch, workload.context)

    def _decoding(self) -> None:
        scenario, step = self._scenario, self._step
        device = scenario.device
        bound = bound_by(device.processors[device.main], scenario.model, step)
        spread = self._spread("decoding", bound)
        if spread is not None:
            self._add("decoding", spread, self._speaks_of)
        if self._reruns.offload is not None and self._reruns.offload.spec.to == "cpu":
            spread = self._spread(ON_CPU, "reading", CPU)
            if spread is not None:
                self._add(ON_CPU, spread, self._speaks_of, CPU)

    def _spread(self, what: str, bound: By, processor: str | None = None) -> Spread | None:
        device = self._scenario.device
        if device.engine is None:
            other = by_data_sheet(device.name)
            named = "--set engine=llama.cpp names one" if other is None else f"--set device={other} names one"
            self._not_known[what] = f"{device.name} names no engine, and no {STUDY} is beside its profile: {named}"
            return None
        spread = known_spread(device.engine.name, device.processors[processor or device.main].kind, bound)
        if spread is None:
            self._not_known[what] = "measured on no device beside those of a fit"
        return spread

    def _add(self, what: str, spread: Spread, speaks_of: Callable[[str], bool], processor: str | None = None) -> None:
        part = "prefill" if what == "prefill" else "decoding"
        self._both_ends(what, spread, speaks_of, lambda by: slowed(self._scenario, **{part: by}, processor=processor))

    def _storage(self) -> None:
        """How far reading from storage may be off, by cells of papers that it bounds."""
        self._both_ends(STORAGE, storage_spread(), self._speaks_of, lambda by: with_slowed_storage(self._scenario, by))
        if "decoding" not in self._evidence and self._shares.get(STORAGE, 0.0) < 1 - MOST_UNKNOWN:
            self._not_known[STORAGE] = "what computes beside it is not known, and takes more than half of the time"
            self._evidence.pop(STORAGE, None)
            self._effects = [effect for effect in self._effects if effect.name != STORAGE]

    def _both_ends(
        self, what: str, spread: Spread, speaks_of: Callable[[str], bool], slower: Callable[[float], Scenario]
    ) -> None:
        """Carries the run out at both ends of what is known of something, which `slower` makes take so many times as
        long."""
        factor = spread.factor
        less, more = (self._reruns.figures(slower(by), what) for by in (1 / factor, factor))
        if less is not None and more is not None:
            effect = effect_of_number(what, self._own, less, more, spread.half_width, speaks_of)
            self._effects.append(effect)
            self._evidence[what] = spread.told
            # All parts of a time as many times as long make it as many times as long: this is the part's share.
            if self._own.get("tpot_s") and more.get("tpot_s"):
                self._shares[what] = log(more["tpot_s"] / self._own["tpot_s"]) / log(factor)
            if what == "prefill" and self._own.get("ttft_s") and more.get("ttft_s"):
                self._first_share = log(more["ttft_s"] / self._own["ttft_s"]) / log(factor)

    def _runtime(self) -> None:
        """Where it is only assumed what software takes, the other known runtimes that bound it are as likely."""
        found = {}
        for other in others(self._scenario):
            assert other.runtime is not None
            there = self._reruns.figures(other, f"runtime {other.runtime.name}")
            if there is not None:
                found[other.runtime.name] = there
        runtime = runtime_of(self._scenario)
        if found and runtime is not None:
            found[runtime.spec.name] = self._own
            self._evidence["runtime"] = {"over": sorted(found)}
            name = f"{RUNTIME}: {', '.join(sorted(found))}"
            self._effects.append(effect_of_choices(name, self._own, found, self._speaks_of))
            if tpot_s := self._own.get("tpot_s"):
                self._shares[RUNTIME] = 1 - min(one["tpot_s"] for one in found.values()) / tpot_s

    def _path(self, path: str, why: str) -> None:
        """Says that of a path no errors are known. Where it takes most of a token's time, no interval is honest."""
        self._not_known[path] = why
        known = sum(self._shares.values())
        if "decoding" in self._evidence and known < 1 - MOST_UNKNOWN:
            self._not_known[path] += ", and it takes more than half of the time"
            self._effects.clear()
            for part in ("power", "prefill", PRECISION, "decoding", ON_CPU, STORAGE, RUNTIME):
                self._evidence.pop(part, None)

    def _of_decoding(self, key: str) -> bool:
        return key in _OF_DECODING or (key in _OF_RATE and self._scenario.measure == "decode")

    def _speaks_of_prefill(self, key: str) -> bool:
        return self._of_whole(key) and not self._of_decoding(key)

    def _of_whole(self, key: str) -> bool:
        """Whether prefill has a part in a figure, or may have one, as decoding does."""
        return _is_time_or_rate(key) or key in _OF_RATE or (key in _ENERGY and "power" in self._evidence)

    def _speaks_of(self, key: str) -> bool:
        """Whether all is known that a figure which decoding has a part in rests on."""
        return self._of_decoding(key) or ("prefill" in self._evidence and self._of_whole(key))


def _is_time_or_rate(key: str) -> bool:
    return key.endswith("_s") and not key.endswith("bytes_per_s")
