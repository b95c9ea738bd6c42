"""What prefill and decoding take on either side, as planned with, and what help that makes of a prompt."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from pathlib import Path

import simpy

from kvferry.cloud.messages import mask_bytes, response_bytes
from kvferry.cloud.story import NOTHING, Behind
from kvferry.machine.ops import DecodeStep, Extents, Op, Prefill
from kvferry.policies.assist.assistance import Assistance
from kvferry.policies.assist.fallback import Alone, Fallback, fallback, too_late
from kvferry.policies.assist.help import Help, Patience, patience_of
from kvferry.policies.assist.optimiser import NoSetting, Setting, setting_of
from kvferry.policies.assist.serving import Serving
from kvferry.policies.engine_memory import engine_holdings
from kvferry.policies.ledger import Ledger
from kvferry.sim.costs.cost_model import main_costs
from kvferry.sim.storage_models import storage_of
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError
from kvferry.specs.link import LinkSpec, WaySpec
from kvferry.specs.model import ModelSpec
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import link_trace
from kvferry.traces.round_trips import round_trips_of

# A step's mean context is rounded to this many tokens, by which its price changes by some ten-thousandths.
CONTEXT_STEP = 16
# The longest step's is rounded up to this many, so that few need be priced.
_MOST_STEP = 256
# Prices that are kept: thousands of devices ask for those of the same ops again and again.
_KEPT = 65_536


@lru_cache(_KEPT)
def piece_of(tokens: int, before: int) -> Prefill:
    """Returns the prefill of this many tokens behind those `before`: equal ones are one, whose price is found at
    once."""
    return Prefill(tokens, before)


def pieces(tokens: int, before: int, window: int | None) -> Iterator[Prefill]:
    """Prefill of this many tokens behind those `before`, where attention sees so far back; None: all the way. What fits
    the window is one piece; what comes behind it goes in quarters of a window, each seeing a window before."""
    window = before + tokens if window is None else window
    while tokens:
        now = min(tokens, window - before if before < window else max(1, window // 4))
        yield piece_of(now, min(before, window))
        tokens, before = tokens - now, before + now


def window_of(device: DeviceSpec) -> int | None:
    return device.processors[device.main].window_tokens


def start_bytes(scenario: Scenario) -> int:
    """What a device reads before it can prefill; 0 where its model is in memory, or lies on no storage."""
    workload = scenario.assist.workload
    if workload.resident or scenario.device.storage is None:
        return 0
    return int(scenario.model.weight_bytes + workload.lora_bytes)


class Prices:
    """Seconds of an instance's work on its idle machine, by the scenario's estimate of costs."""

    def __init__(self, scenario: Scenario) -> None:
        """`scenario`: as the instance sees it."""
        self._scenario = scenario
        self.op_s = _priced(scenario.costs.estimate, scenario.device, scenario.model)

    def prefill_s(self, tokens: int, serving: Serving, before: int = 0) -> float:
        """Returns the time of a prompt while no answer is decoded, behind this many tokens whose KV is known."""
        took_s, end = 0.0, before + tokens
        while before < end:
            piece = serving.piece_tokens(end - before, beside=False)
            took_s, before = took_s + self.op_s(Prefill(piece, before)), before + piece
        return took_s

    def most_step_s(self, requests: int, tokens: int) -> float:
        """With any of `requests` requests, whose contexts end at this many tokens together, however the mean is
        rounded."""
        requests = max(1, requests)
        context = _MOST_STEP * math.ceil((tokens / requests + CONTEXT_STEP) / _MOST_STEP)
        return self.op_s(DecodeStep(requests, context))

    def kept_s(self, kept_tpot_s: float, tokens: int) -> float:
        """The time per token that a request of this many, prompt and answer, is promised at least."""
        return max(kept_tpot_s, self.most_step_s(1, tokens))

    def kept_tpot_s(self, serving: Serving) -> float:
        """The time per token that an instance keeps: as `serving` says, or of a step with all slots held that fit its
        memory, at the workload's lengths, but no more than users tolerate, where one request alone allows that."""
        if serving.tpot_s is not None:
            return serving.tpot_s
        model, workload = self._scenario.model, self._scenario.assist.workload
        tokens = workload.prompt + workload.output
        granted_bytes = self._scenario.budget.memory_bytes or self._scenario.device.memory.free_bytes
        room_bytes = granted_bytes - Ledger(engine_holdings(self._scenario)).n_bytes(0)
        slots = int(max(1, min(serving.slots, room_bytes / (tokens * model.kv_bytes_per_token))))
        tolerable_s = max(workload.tolerable_tpot_s, self.most_step_s(1, tokens))
        return min(self.most_step_s(slots, slots * tokens), tolerable_s)


class Estimates:
    """Seconds on idle machines, by the scenario's estimate of costs."""

    def __init__(
        self,
        scenario: Scenario,
        cloud: Scenario | None,
        decoding: Scenario | None = None,
        serving: Serving | None = None,
    ) -> None:
        """`cloud`, `decoding`: the scenario as instances that prefill and that decode see it; None: there are none, or
        the same do both."""
        self._scenario, self._workload = scenario, scenario.assist.workload
        self._here = _priced(scenario.costs.estimate, scenario.device, scenario.model)
        self.prefill_s, self.tpot_s = lru_cache(_KEPT)(self._prefilled_s), lru_cache(_KEPT)(self._decoded_s)
        self.help, self.patience = lru_cache(_KEPT)(self._helped), lru_cache(_KEPT)(self._waited)
        self._window = window_of(scenario.device)
        self.prefilling = None if cloud is None else Prices(cloud)
        self.decoding = self.prefilling if decoding is None else Prices(decoding)
        self._serving = serving or Serving()

    @cached_property
    def kept_tpot_s(self) -> float:
        """The time per token that instances keep."""
        assert self.decoding is not None
        return self.decoding.kept_tpot_s(self._serving)

    def kept_s(self, tokens: int) -> float:
        """The time per token that a cloud is expected to promise a request of this many, prompt and answer."""
        assert self.decoding is not None
        return self.decoding.kept_s(self.kept_tpot_s, tokens)

    def _prefilled_s(self, tokens: int, before: int = 0) -> float:
        """The device's."""
        return sum(self._here(piece) for piece in pieces(tokens, before, self._window))

    def _decoded_s(self, context: float) -> float:
        """The device's time per token."""
        return self._here(DecodeStep(1, context if self._window is None else min(context, self._window)))

    def round_s(self, drafted: int) -> float:
        """Until what a device has drafted is with the cloud, and its verdict back."""
        link, token_bytes = self._scenario.link, self._workload.handling.answer_token_bytes
        sent_s = _sent_s(drafted * token_bytes, link.up or link) + _sent_s(token_bytes, link)
        return round_trips_of(link).mean_s + sent_s

    @cached_property
    def start_s(self) -> float:
        """Until a model that lies on the device's storage is in its memory, with its LoRA."""
        storage, n_bytes = self._scenario.device.storage, start_bytes(self._scenario)
        if storage is None or not n_bytes:
            return 0.0
        env = simpy.Environment()
        env.run(until=storage_of(env, storage, lambda span: None).read(Extents([0], [n_bytes])))
        return float(env.now)

    def _waited(self, prompt: int, ratio: float, wanted: Help, behind: Behind = NOTHING) -> Patience:
        """How long a device waits for the cloud with a prompt of this length, of which such a part is prefilled."""
        if (said_s := wanted.patience_s) is None or isinstance(said_s, float | int):
            return Patience(answer_s=said_s, token_s=said_s)
        there = self.assistance(prompt, ratio, wanted, self._scenario.link, behind)
        own_prefill_s, planned = self.start_s + self.prefill_s(prompt, behind.here), said_s == "planned"
        return patience_of(own_prefill_s=own_prefill_s, cloud_ttft_s=there.cloud_ttft_s, planned=planned)

    def _helped(self, prompt: int, link: LinkSpec, wanted: Help, behind: Behind = NOTHING) -> Setting | Fallback:
        """What help a prompt of this length gets over a link: as a system wants it, and as problem P has what it leaves
        open."""
        ratio = self._workload.least_ratio if wanted.ratio == "auto" else wanted.ratio
        of = self.assistance(prompt, ratio, wanted, link, behind)
        found, alone = setting_of(of, wanted.tokens, wanted.ratio), self.alone(prompt, behind)
        if isinstance(found, Setting) and "auto" in (wanted.tokens, wanted.ratio):
            found = too_late(of, alone) or found
        if isinstance(found, NoSetting):
            return fallback(of, found, alone, self._workload.output, wanted.tokens, wanted.ratio)
        return found

    def alone(self, prompt: int, behind: Behind = NOTHING) -> Alone:
        """What the device does by itself with a prompt of this length, beside what it must do before it can ask."""
        ready_s = self.start_s + self.prefill_s(prompt, behind.here) - self._workload.handling.prepare_s
        context = behind.here + prompt + self._workload.output / 2
        return Alone(ttft_s=ready_s, tpot_s=self.tpot_s(context))

    def mask_s(self, prompt: int, ratio: float, link: LinkSpec | None = None) -> float:
        """How much later than the first token a mask in a message of its own comes."""
        sent_s = _sent_s(mask_bytes(self._workload, prompt, ratio), link or self._scenario.link)
        return self._workload.handling.refine_token_s * prompt + sent_s

    def least_ratio_note(self, prompt: int) -> str | None:
        """What a scenario's least share of prompts of this length is cut to by the device's window; None: it is not."""
        least, window = self._workload.least_ratio, self._window
        if window is None or least * prompt <= window or "least_ratio" not in self._scenario.workload.model_fields_set:
            return None
        what = f"the device's window holds {window:,} of {prompt:,} tokens, a share of {window / prompt:.3g}"
        return f"workload.least_ratio of {least:g} is not kept for every prompt: {what}"

    def assistance(
        self, prompt: int, ratio: float, wanted: Help, link: LinkSpec, behind: Behind = NOTHING
    ) -> Assistance:
        """Problem P of a prompt, with the bytes of a mask for such a part of it. Quality asks for at least so much of
        it as the workload says, but for no more than the device's window holds. Raises InputError for work that takes
        no time."""
        assert self.prefilling is not None and self.decoding is not None
        workload, handling = self._workload, self._workload.handling
        least = workload.least_ratio if self._window is None else min(workload.least_ratio, self._window / prompt)
        refined = max(1, round(least * prompt))
        sent = behind.here + prompt - behind.there
        cached = workload.beginning if self._serving.prefix_caching and not behind.there else 0
        apart = wanted.mask == "behind-token" and ratio < 1
        answer_bytes = response_bytes(workload, prompt, 1.0 if apart else ratio)
        sent_s = _sent_s(sent * handling.prompt_token_bytes, link.up or link) + _sent_s(answer_bytes, link)
        priced_s = {
            f"the cloud's prefill of {sent:,} tokens": self.prefilling.prefill_s(
                sent - cached, self._serving, behind.there + cached
            ),
            f"the device's prefill of {refined:,} tokens": self.prefill_s(refined, behind.here),
            # Of one request: how many others share a step is not known beforehand. What the cloud keeps with all of
            # them counts in what devices promise.
            "a token of the cloud's": self.decoding.op_s(DecodeStep(1, behind.here + prompt)),
            "a token of the device's": self.tpot_s(behind.here + refined + workload.output / 2),
        }
        for what, seconds in priced_s.items():
            if not seconds > 0:
                # Beyond what was measured, a noisy table may fall to 0.
                would = "kvferry calibrate without --quick measures closer, and costs: roofline would do"
                raise InputError(f"costs: {what} comes to {seconds:g} s by the profile's tables; {would}")
        cloud_s, device_s, cloud_tpot_s, device_tpot_s = priced_s.values()
        catch_up_s = None
        if wanted.catch_up == "prefill":
            # As many as cover the device's prefill at the tolerated pace; a few more take hardly longer.
            covering = max(1, math.ceil(device_s / workload.tolerable_tpot_s)) if workload.tolerable_tpot_s else 1
            catch_up_s = self.prefill_s(covering, behind.here + refined)
        return Assistance(
            prompt_tokens=prompt,
            cloud_s_per_token=cloud_s / prompt,
            device_s_per_token=device_s / refined,
            compress_s=self.mask_s(prompt, ratio, link) if apart else handling.refine_token_s * prompt,
            decompress_s=handling.unpack_token_s * prompt,
            round_trip_s=round_trips_of(link).mean_s + sent_s + handling.forward_s,
            cloud_tpot_s=cloud_tpot_s,
            device_tpot_s=device_tpot_s,
            tolerable_tpot_s=workload.tolerable_tpot_s,
            least_ratio=least,
            most_device_tokens=self._window,
            smoothing=wanted.smoothing,
            catch_up_s=catch_up_s,
            mask="behind-token" if apart else "with-token",
        )


def _sent_s(n_bytes: float, way: WaySpec) -> float:
    """At the mean rate, without outages, which nothing foresees; for ever where the replay begins behind the end of its
    trace."""
    bytes_per_s = _mean_bytes_per_s(way, _written_ns(way))
    return n_bytes / bytes_per_s if bytes_per_s else math.inf


def names_file(way: WaySpec) -> bool:
    """Returns whether its trace is a file, which may be written anew."""
    # Asked for every request, where making a path would take as long as all else here.
    return way.trace is not None and way.trace.startswith(os.sep)


def _written_ns(way: WaySpec) -> int:
    """Returns when the file of its trace was written; 0: it has none, or none that is there."""
    with suppress(OSError):
        if names_file(way):
            return Path(str(way.trace)).stat().st_mtime_ns
    return 0


@cache
def _mean_bytes_per_s(way: WaySpec, _: int) -> float:
    return link_trace(way.model_copy(update={"outages": ()})).mean()


def _priced(costs: str, device: DeviceSpec, model: ModelSpec) -> Callable[[Op], float]:
    """Seconds of an op on the idle main processor, dispatch included."""
    model_costs, dispatch_s = main_costs(costs, device, model), device.processors[device.main].dispatch_s

    @lru_cache(_KEPT)
    def price(op: Op) -> float:
        return model_costs.cost(op).duration_s + dispatch_s

    return price
