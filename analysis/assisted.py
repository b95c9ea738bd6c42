"""What helping devices came to: figures of requests, of the devices' own prefill, and of the cloud."""

from collections.abc import Mapping

import numpy as np

from kvferry.pipelines.record import Assisted, Run
from kvferry.specs.machine import DEVICES
from kvferry.specs.workload import SloSpec

# A gap counts as longer than promised by more than a frame of a display that shows sixty in a second.
_FRAME_S = 1 / 60
# Parts of the wait for a first token, and of the device's own first token behind it (Fig. 9).
_PARTS = ("prepared_s", "answered_s", "waited_s", "cloud_prefill_s", "refined_s", "unpacked_s", "own_prefill_s")


def fleet_metrics(run: Run, assisted: Assisted, main_processor: str) -> dict[str, float]:
    """Returns figures of all devices: bytes are sums over them, shares of time means over them, whether or not they had
    a request; ``cloud_utilisation`` and the like: of the cloud's machines of a kind. ``cloud_energy_j``: of all of
    these over the run, per request; ``total_energy_j``: with that of devices, while they had one."""
    columns, tally = assisted.columns, run.tally
    if not len(columns["arrival_s"]):
        return {}
    took_s = assisted.devices * float(np.nanmax(columns["last_s"]) - columns["arrival_s"].min())
    found: dict[str, float] = {}
    for name, resource in (("link", "link"), ("uplink", "uplink"), ("compute", main_processor), ("storage", "storage")):
        resources = resource, f"{DEVICES}/{resource}"
        if took_s and any(one in tally.occupied for one in resources):
            busy_s = sum(s for (of, _), s in tally.busy_s.items() if of in resources)
            found[f"{name}_utilisation"] = min(1.0, busy_s / took_s)
    for key, resource, label in (
        ("link_bytes", "link", None), ("uplink_bytes", "uplink", None),
        ("read_bytes", "storage", "Read"), ("write_bytes", "storage", "Write"),
    ):  # fmt: skip
        if f"{DEVICES}/{resource}" in tally.occupied:
            found[key] = tally.bytes_of(resource, label) + tally.bytes_of(f"{DEVICES}/{resource}", label)
    found |= {f"{kind}_utilisation": busy for kind, (_, busy) in machines_of(run).items()}
    return found | energy_with_cloud(run, assisted.energy_j, len(columns["arrival_s"]))


def energy_with_cloud(run: Run, of_devices_j: Mapping[str, float], requests: int) -> dict[str, float]:
    """Returns the energy of the machines of the cloud over the run, if there are any, and that with devices' own, by
    component, per request. Empty where no meter counts these."""
    if not of_devices_j:
        return {}
    of_cloud_j = sum(sum(machine.energy_j.values()) for machine in run.machines.values())
    found = {"total_energy_j": (sum(of_devices_j.values()) + of_cloud_j) / requests}
    return found | ({"cloud_energy_j": of_cloud_j / requests} if run.machines else {})


def assisted_metrics(assisted: Assisted, slo: SloSpec | None) -> dict[str, float]:
    """``ttft_s`` and the like: as users perceive it; ``ttft_device_s``: until a device has a first token of its own.
    ``assisted_tokens``: the ones that came from the cloud in time to be used, mean and largest over the requests to
    which any came; ``planned_tokens``: L, which those requests asked for. ``assisted_share`` of all were helped.
    ``promised_tpot_s``: the pace of Eq. 4. Figures of a part of the wait are means over the requests that have it.
    ``lost_share``: of requests with which something went wrong in the cloud, ``uneven_share``: of those that were
    promised a pace, with a gap beyond it; none is not said. ``right_share``: of answers that begin as they should, of
    those where that is known. ``energy_j`` and its parts are per request, of
    devices while they had one."""
    columns = assisted.columns
    n = len(columns["arrival_s"])
    if not n:
        return {}
    ttft_s = columns["first_s"] - columns["arrival_s"]
    shown = columns["shown"]
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot_s = (columns["last_s"] - columns["first_s"]) / (shown - 1)
    # What was asked for and never came is no help.
    helped = (columns["tokens"] > 0) & ~((columns["lost"] > 0) & (columns["came"] == 0))
    # A cloud that looks at drafts sends verdicts.
    sent = helped & (columns["came"] > 0)
    took_s = float(np.nanmax(columns["last_s"]) - columns["arrival_s"].min())
    found = {
        "requests": float(n),
        "requests_finished": float(np.isfinite(columns["last_s"]).sum()),
        "ttft_s": _mean(ttft_s),
        **_percentiles("ttft", ttft_s),
        "ttft_device_s": _mean(columns["own_first_s"] - columns["arrival_s"]),
        "answer_s": _mean(columns["last_s"] - columns["arrival_s"]),
        "tpot_s": _mean(tpot_s),
        **_percentiles("tpot", tpot_s),
        "largest_gap_s": _most(columns["largest_gap_s"]),
        "throughput_tokens_per_s": float(shown.sum()) / took_s if took_s else np.nan,
        "assisted_share": float(helped.mean()),
        "assisted_tokens": _mean(columns["came"][sent]),
        "assisted_tokens_max": _most(columns["came"][sent]),
        "planned_tokens": _mean(columns["tokens"][sent]),
        "planned_tokens_max": _most(columns["tokens"][sent]),
        "assisted_ratio": _mean(columns["ratio"][helped]),
        "lost_share": float((columns["lost"] > 0).mean()) if columns["lost"].any() else np.nan,
        "uneven_share": _uneven_share(columns["largest_gap_s"], columns["pace_s"]),
        "corrected_tokens": _mean(columns["corrected"]),
        "right_share": _mean(columns["right"]),
        "promised_tpot_s": _mean(columns["pace_s"]),
        "promised_tpot_max_s": _most(columns["pace_s"]),
        "first_response_bytes": _mean(columns["response_bytes"]),
        "first_response_bytes_max": _most(columns["response_bytes"]),
        **{f"{part.removesuffix('_s')}_mean_s": _mean(columns[part]) for part in _PARTS},
        **assisted.cloud,
    }
    if slo is not None:
        kept = np.isfinite(ttft_s)
        if slo.ttft_s is not None:
            kept &= ttft_s <= slo.ttft_s
        if slo.tpot_s is not None:
            kept &= ~(tpot_s > slo.tpot_s)
        found["slo_attainment"] = float(kept.mean())
        if took_s:
            found["goodput_requests_per_s"] = float(kept.sum()) / took_s
            found["goodput_tokens_per_s"] = float(shown[kept].sum()) / took_s
    if assisted.energy_j:
        found |= {f"energy_{part}_j": total_j / n for part, total_j in sorted(assisted.energy_j.items())}
        found["energy_j"] = sum(assisted.energy_j.values()) / n
    return {key: value for key, value in found.items() if np.isfinite(value)}


def _uneven_share(gaps_s: np.ndarray, paces_s: np.ndarray) -> float:
    uneven = gaps_s > paces_s + _FRAME_S
    return float(uneven.sum() / np.isfinite(paces_s).sum()) if uneven.any() else np.nan


def _percentiles(name: str, values: np.ndarray) -> dict[str, float]:
    known = values[np.isfinite(values)]
    return {f"{name}_p{q}_s": float(np.percentile(known, q)) if len(known) else np.nan for q in (50, 95, 99)}


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


def _most(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else np.nan


def machines_of(run: Run) -> dict[str, tuple[int, float]]:
    """Returns how many machines of each kind there are beside the device, and the share of the run in which the busiest
    processor of each worked, on average."""
    busy_s: dict[str, float] = {}
    for (resource, _), seconds in run.tally.busy_s.items():
        busy_s[resource] = busy_s.get(resource, 0.0) + seconds
    most_s: dict[str, float] = {}
    for resource, seconds in busy_s.items():
        name = resource.rpartition("/")[0]
        most_s[name] = max(most_s.get(name, 0.0), seconds)
    kinds: dict[str, list[float]] = {}
    for name in run.machines:
        share = most_s.get(name, 0.0) / run.duration_s if run.duration_s else 0.0
        kinds.setdefault(name.partition(".")[0], []).append(share)
    return {kind: (len(shares), float(np.mean(shares))) for kind, shares in kinds.items()}
