"""The figures of a run, under the project's metric keys."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from kvferry.analysis.assisted import assisted_metrics, fleet_metrics
from kvferry.analysis.decoding import decoding_metrics
from kvferry.analysis.remarks import BOUNDS, has_bounds, unpowered, why_no_cloud_energy, why_no_energy
from kvferry.analysis.sessions import session_metrics
from kvferry.codecs.sizes import FULL_KV_BITS, mixed_error, of_mixture
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import SloSpec


def metrics_for(scenario: Scenario, run: Run) -> dict[str, float]:
    """``metrics_of`` a run of this scenario, without figures that its profile cannot support: the bound of a real run
    on a device that was not measured, and the sum of an energy whose parts are not all known. With a battery in the
    profile, ``battery_percent_per_request`` and, of conversations, ``battery_percent_per_day``."""
    found = metrics_of(run, main_processor=scenario.device.main, measure=scenario.measure, slo=scenario.slo)
    found |= session_metrics(run, scenario.device.storage)
    if scenario.model.kv_value_bytes < FULL_KV_BITS / 8:
        found["kv_bits_per_value"] = 8 * scenario.model.kv_value_bytes
    dropped = set() if has_bounds(scenario) else set(BOUNDS)
    if why_no_energy(scenario, run):
        dropped |= {"energy_j", "day_energy_j", *(f"energy_{name}_j" for name in unpowered(scenario.device, run))}
    if why_no_cloud_energy(scenario, run):
        dropped |= {"cloud_energy_j", "total_energy_j"}
    if "energy_j" in dropped:
        dropped.add("total_energy_j")
    kept = {key: value for key, value in found.items() if key not in dropped}
    if scenario.device.battery is not None:
        for energy, share in (("energy_j", "request"), ("day_energy_j", "day")):
            if energy in kept:
                kept[f"battery_percent_per_{share}"] = 100 * kept[energy] / scenario.device.battery.capacity_j
    return kept


def metrics_of(
    run: Run,
    *,
    main_processor: str,
    measure: Literal["end_to_end", "decode"] = "end_to_end",
    slo: SloSpec | None = None,
) -> dict[str, float]:
    """Every metric that applies to the run, SI units, finite; a key that does not apply is absent.

    Requests:
      ``requests``, ``requests_finished`` (reached their first token); ``ttft_s`` (mean), ``ttft_p50_s``,
      ``ttft_p95_s``, ``ttft_p99_s``: arrival to first token, queueing included; ``ttft_first_turn_s`` and
      ``ttft_later_turns_s``: of conversations' first and of their other turns, where there are any; ``load_s``: arrival
      to the context's KV complete (mean); ``tpot_s``: a request's time per token after its first, mean over requests
      with two tokens or more, with ``tpot_p50_s``, ``tpot_p95_s``, ``tpot_p99_s``;
      ``largest_gap_s``: the longest wait between two tokens of one request, absent where layers leave memory between
      tokens that were not decoded; ``throughput_tokens_per_s``: whole
      batch, from the first arrival to the last token, or with measure "decode" the tokens after each first one,
      from the earliest first token to the last token. With `slo`: ``slo_attainment``, the share of the requests
      that kept it (one without a first token did not; one of a single token has no time per token to keep), and
      ``goodput_requests_per_s`` and ``goodput_tokens_per_s``: those requests and their tokens over the time from the
      first arrival to the last token.
    Loading:
      ``bound_s``: a proven lower bound on the load time, clairvoyant (it sees the whole trace), mean over the
      requests that have one; ``bound_gap``: over the same requests, mean load time / mean bound - 1; ``regret``:
      mean over them of each one's load time / bound - 1, ``regret_p95`` its 95th percentile. The clairvoyant
      optimum lies between the bound and the load time, so these are upper estimates of the true regret; the
      bound gives each request the device and link for itself, so under concurrency they hold queueing too.
      ``streamed_share``: units fetched of all units; ``streamed_bits_per_value``: over what was fetched;
      ``kv_relative_error`` and ``kv_kl_nats``: what the encodings cost in quality, mean over the requests, by the table
      that was measured on a bundled model (codecs/sizes.py): an indicator; absent for a codec that has none. Of a real
      run the error alone, as measured on the model that ran.
      ``wasted_bytes``: fetched for nothing over the run: the processor was first, not all came, or it was unusable.
    Energy:
      ``energy_j``: the run's energy, idle time between requests included, over its requests; and the parts
      that it sums, ``energy_<component>_j``: of the device alone, or of devices with a cloud while they had a request.
      ``cloud_energy_j``: of the cloud's machines over the whole run, over its requests; ``total_energy_j``: of both.
      So are those of a session with a cloud that helps.
    Machine:
      ``memory_peak_bytes``, ``kv_memory_peak_bytes`` (and its parts ``kv_metadata_bytes`` and ``kv_buffer_bytes`` of a
      batch whose KV is on storage: reserved where it is simulated, measured where not); ``link_bytes``,
      ``read_bytes``, ``write_bytes``, ``copied_bytes``: moved over the run, ``uplink_bytes`` by devices;
      ``link_utilisation``, ``uplink_utilisation``, ``compute_utilisation`` (`main_processor`),
      ``storage_utilisation``: share of the time from the first arrival to the last token (or
      load) in which the resource was busy. Of several devices: the most memory that one of them held, the bytes of all,
      and the mean share.
    Heat, of a device whose heat is modelled:
      ``temperature_max_c``; ``least_clock``, a share of the full one; ``throttled_s``: how long it was below that, and
      ``first_throttled_s``, when it first was.
    """
    found = _request_metrics(run.requests, measure) | _loading_metrics(run.requests, run.measured)
    if slo is not None:
        found |= _slo_metrics(run.requests, slo)
    if run.requests:
        found |= {f"energy_{part}_j": total_j / len(run.requests) for part, total_j in sorted(run.energy_j.items())}
        if run.energy_j:
            found["energy_j"] = sum(run.energy_j.values()) / len(run.requests)
    found |= _machine_metrics(run, main_processor)
    if run.warmth is not None:
        found["temperature_max_c"] = max(run.warmth.temperatures_c)
        found["least_clock"] = run.warmth.least_clock
        found["throttled_s"], found["first_throttled_s"] = run.warmth.throttled_s, run.warmth.first_throttled_s
    if run.decoded is not None:
        found |= decoding_metrics(run, run.decoded, main_processor=main_processor, measure=measure)
    if run.assisted is not None:
        found |= assisted_metrics(run.assisted, slo) | fleet_metrics(run, run.assisted, main_processor)
    if run.decoded is not None and not run.decoded.steps:
        # All sequences of a lock-step batch are alike, and what was not decoded follows at the mean pace.
        found = {key: value for key, value in found.items() if not key.startswith(("tpot_p", "goodput_"))}
        if run.decoded.moves_s:
            # Layers move between tokens that were not decoded: the longest wait is among those.
            found.pop("largest_gap_s", None)
    return {key: float(value) for key, value in found.items() if value is not None and np.isfinite(value)}


def token_times_s(request: RequestRecord) -> list[float]:
    """When each token was there, the first included whether or not the record lists it again."""
    times = list(request.token_times_s)
    if request.first_token_s is not None and (not times or times[0] > request.first_token_s):
        times.insert(0, request.first_token_s)
    return times


def finish_s(request: RequestRecord) -> float | None:
    """The last thing known of a request: its last token, else its first, else its load."""
    times = token_times_s(request)
    return times[-1] if times else request.loaded_s


def _request_metrics(requests: Sequence[RequestRecord], measure: str) -> dict[str, float | None]:
    if not requests:
        return {}
    ttft_s = [r.first_token_s - r.arrival_s for r in requests if r.first_token_s is not None]
    tokens = [times for times in map(token_times_s, requests) if times]
    spoken = [times for times in tokens if len(times) > 1]
    tpot_s = [_tpot_s(times) for times in spoken]
    found: dict[str, float | None] = {
        "requests": len(requests),
        "requests_finished": len(ttft_s),
        "ttft_s": _mean(ttft_s),
        "ttft_p50_s": _percentile(ttft_s, 50),
        "ttft_p95_s": _percentile(ttft_s, 95),
        "ttft_p99_s": _percentile(ttft_s, 99),
        **_by_turn(requests),
        "tpot_s": _mean(tpot_s),
        **{f"tpot_p{q}_s": _percentile(tpot_s, q) for q in (50, 95, 99)},
        "largest_gap_s": max((b - a for times in spoken for a, b in pairwise(times)), default=None),
    }
    if tokens:
        last_s = max(times[-1] for times in tokens)
        if measure == "decode":
            n_tokens = sum(len(times) - 1 for times in tokens)
            first_s = min(times[0] for times in tokens)
        else:
            n_tokens = sum(map(len, tokens))
            first_s = min(r.arrival_s for r in requests)
        if n_tokens and last_s > first_s:
            found["throughput_tokens_per_s"] = n_tokens / (last_s - first_s)
    return found


def _by_turn(requests: Sequence[RequestRecord]) -> dict[str, float | None]:
    """Returns the time to first token of first and of later turns apart, where there are both."""
    if not any(request.turn for request in requests):
        return {}
    ttft_s: dict[bool, list[float]] = {False: [], True: []}
    for request in requests:
        if request.first_token_s is not None:
            ttft_s[request.turn > 0].append(request.first_token_s - request.arrival_s)
    return {"ttft_first_turn_s": _mean(ttft_s[False]), "ttft_later_turns_s": _mean(ttft_s[True])}


def _tpot_s(times_s: Sequence[float]) -> float:
    """Seconds per token after the first."""
    return (times_s[-1] - times_s[0]) / (len(times_s) - 1)


def _slo_metrics(requests: Sequence[RequestRecord], slo: SloSpec) -> dict[str, float | None]:
    if not requests:
        return {}

    def kept(request: RequestRecord, times_s: Sequence[float]) -> bool:
        if not times_s or (slo.ttft_s is not None and times_s[0] - request.arrival_s > slo.ttft_s):
            return False
        return slo.tpot_s is None or len(times_s) < 2 or _tpot_s(times_s) <= slo.tpot_s

    tokens = [token_times_s(request) for request in requests]
    good = [times for request, times in zip(requests, tokens, strict=True) if kept(request, times)]
    found: dict[str, float | None] = {"slo_attainment": len(good) / len(requests)}
    last_s = max((times[-1] for times in tokens if times), default=0.0)
    took_s = last_s - min(request.arrival_s for request in requests)
    if took_s > 0:
        found["goodput_requests_per_s"] = len(good) / took_s
        found["goodput_tokens_per_s"] = sum(map(len, good)) / took_s
    return found


def _loading_metrics(requests: Sequence[RequestRecord], measured: Mapping[str, Any]) -> dict[str, float | None]:
    loaded = [(r.loaded_s - r.arrival_s, r) for r in requests if r.loaded_s is not None]
    bounded = [(load_s, r.bound_s) for load_s, r in loaded if r.bound_s]
    computed, streamed = sum(r.units_computed for r in requests), sum(r.units_streamed for r in requests)
    found: dict[str, float | None] = {"load_s": _mean([load_s for load_s, _ in loaded])}
    if bounded:
        load_s, bound_s = np.array(bounded).T
        regrets = load_s / bound_s - 1
        found |= {
            "bound_s": bound_s.mean(),
            "bound_gap": load_s.mean() / bound_s.mean() - 1,
            "regret": regrets.mean(),
            "regret_p95": _percentile(regrets, 95),
        }
    coded_requests = [r for _, r in loaded if r.codec is not None]
    lost = [of_mixture(str(r.codec), r.shares_by_level) for r in coded_requests]
    if coded_requests and measured.get("kv_relative_errors"):
        # Prefer the error measured on the model that ran to the table of another model.
        by_level = measured["kv_relative_errors"]
        found["kv_relative_error"] = _mean([mixed_error(by_level, r.shares_by_level) for r in coded_requests])
    elif lost and None not in lost:
        errors, divergences = zip(*filter(None, lost), strict=True)
        found |= {"kv_relative_error": _mean(errors), "kv_kl_nats": _mean(divergences)}
    if computed + streamed:
        found["streamed_share"] = streamed / (computed + streamed)
        found["wasted_bytes"] = sum(r.wasted_bytes for r in requests)
    coded = [(r.streamed_bytes, r.streamed_bits_per_value) for r in requests if r.streamed_bits_per_value]
    values = sum(n_bytes / bits for n_bytes, bits in coded)
    if values:
        found["streamed_bits_per_value"] = sum(n_bytes for n_bytes, _ in coded) / values
    return found


def _machine_metrics(run: Run, main_processor: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    if run.memory_peak_bytes:
        found["memory_peak_bytes"] = run.memory_peak_bytes
        # A run that ended before its KV was there does not say how much that takes.
        if run.kv_memory_peak_bytes or run.outcome == "done":
            found["kv_memory_peak_bytes"] = run.kv_memory_peak_bytes
    ends_s = [end_s for end_s in map(finish_s, run.requests) if end_s is not None]
    if not ends_s:
        return found
    first_s, last_s = min(r.arrival_s for r in run.requests), max(ends_s)
    tally = run.tally

    def tell(name: str, resource: str, moved: dict[str, str | None]) -> None:
        if resource in tally.occupied:
            found[f"{name}_utilisation"] = tally.occupied[resource].share(first_s, last_s)
            for key, label in moved.items():
                found[key] = tally.bytes_of(resource, label)

    tell("link", "link", {"link_bytes": None})
    tell("uplink", "uplink", {"uplink_bytes": None})
    tell("compute", main_processor, {})
    tell("storage", "storage", {"read_bytes": "Read", "write_bytes": "Write"})
    if "copy" in tally.occupied:
        found["copied_bytes"] = tally.bytes_of("copy")
    if run.link_times_s:
        # A replayed link that was not used was idle: zero is its figure.
        found.setdefault("link_bytes", 0.0)
        found.setdefault("link_utilisation", 0.0)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _percentile(values: Sequence[float] | np.ndarray, q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None
