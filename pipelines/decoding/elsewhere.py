"""A finished run as it would have been on another device: its times, stretched by what its work takes there."""

from dataclasses import replace
from functools import cached_property

from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.queue_work import QueueWork
from kvferry.pipelines.decoding.replay import Replay
from kvferry.pipelines.decoding.runtimes import on_runtime
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.record import Decoded, RequestRecord, Run
from kvferry.pipelines.tally import Totals
from kvferry.specs.scenario import Scenario

# Measured on four devices: with 1.34 times the slots, steps priced and run differ by 0.2 %, with 1.44 times by 6 %.
_MUCH_LARGER = 1.4


class Elsewhere:
    """A finished run of a scenario, and devices that it was not run on."""

    def __init__(self, scenario: Scenario, run: Run) -> None:
        self._scenario, self._run = scenario, run

    def run(self, other: Scenario) -> Run | None:
        """Returns the run with its times as they would have been in the other scenario, which differs in its device or
        runtime alone; what else it came to stays. None where that has to be run: nothing was noted, something changes
        speeds while it runs, or the plan there has far more slots or far fewer."""
        if not self._may or self._planned_otherwise(other):
            return None
        there = self._replay.seconds(_queues(other))
        prefill, decoding = (one / own if own else 1.0 for one, own in zip(there, self._own, strict=True))
        return _Stretched(self._run, prefill, decoding).run

    def _planned_otherwise(self, other: Scenario) -> bool:
        """Returns whether buffers are of another size. About the one that pays most, a few slots more or fewer make
        little difference."""
        own, there = self._plan.staying.slots, _plan(other).staying.slots
        return max(own, there) > _MUCH_LARGER * min(own, there)

    @cached_property
    def _may(self) -> bool:
        decoded, device = self._run.decoded, self._scenario.device
        noted = decoded is not None and decoded.noted is not None and decoded.noted.steps.entries
        return bool(noted) and device.heat is None and self._scenario.load is None

    @cached_property
    def _plan(self) -> DecodePlan:
        return _plan(self._scenario)

    @cached_property
    def _replay(self) -> Replay:
        decoded, storage = self._run.decoded, self._scenario.device.storage
        assert decoded is not None
        assert decoded.noted is not None
        return Replay(decoded.noted, self._plan, storage)

    @cached_property
    def _own(self) -> tuple[float, float]:
        return self._replay.seconds(_queues(self._scenario))


def together(run: Run) -> bool:
    """Returns whether all requests had all tokens at the same time: a few of their steps stand for all."""
    return len({one.token_times_s for one in run.requests}) == 1 and len(run.requests[0].token_times_s) > 1


def as_first_tokens(before: Run, first: Run) -> Run:
    """Returns a run of requests that decode together from memory with its times as they would have been where its first
    tokens were decoded: prefill, and the steps of these tokens, say how many times as long all take there."""
    own_s, there_s = before.requests[0].token_times_s, first.requests[0].token_times_s
    last = len(there_s) - 1
    decoding = (there_s[last] - there_s[0]) / (own_s[last] - own_s[0])
    return _Stretched(before, there_s[0] / own_s[0], decoding).run


def _plan(scenario: Scenario) -> DecodePlan:
    return plan_for(scenario, DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values))


def _queues(scenario: Scenario) -> QueueWork:
    return QueueWork(on_runtime(scenario).device, scenario.model, scenario.costs.truth)


class _Stretched:
    """A run whose prefill and whose steps take these factors as long."""

    def __init__(self, run: Run, prefill: float, decoding: float) -> None:
        self._before, self._prefill, self._decoding = run, prefill, decoding
        self._prefill_s = run.requests[0].loaded_s or 0.0

    @property
    def run(self) -> Run:
        before, decoded = self._before, self._before.decoded
        assert decoded is not None
        return replace(
            before,
            duration_s=self._at(before.duration_s),
            requests=tuple(map(self._request, before.requests)),
            decoded=self._decoded(decoded),
        )

    def _at(self, then_s: float) -> float:
        own_s = self._prefill_s
        return self._prefill * min(then_s, own_s) + self._decoding * max(0.0, then_s - own_s)

    def _times(self, times_s: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(map(self._at, times_s))

    def _request(self, one: RequestRecord) -> RequestRecord:
        return replace(
            one,
            loaded_s=None if one.loaded_s is None else self._at(one.loaded_s),
            first_token_s=None if one.first_token_s is None else self._at(one.first_token_s),
            token_times_s=self._times(one.token_times_s),
        )

    def _decoded(self, one: Decoded) -> Decoded:
        return replace(
            one,
            token_times_s=self._times(one.token_times_s),
            carried_out_s=None if one.carried_out_s is None else self._times(one.carried_out_s),
            steps=tuple((sequences, self._decoding * seconds) for sequences, seconds in one.steps),
            moves_s=self._decoding * one.moves_s,
            half=None if one.half is None else self._totals(one.half),
            end=self._totals(one.end),
        )

    def _totals(self, one: Totals) -> Totals:
        return replace(one, now_s=self._at(one.now_s))
