"""Promises beyond the pace that users tolerate: how many, the worst of them, and what would lessen it."""

import math
from collections.abc import Iterator, Mapping

import numpy as np

from kvferry.pipelines.assist.estimates import Estimates
from kvferry.policies.assist.help import Help
from kvferry.specs import human
from kvferry.specs.assist import AssistSpec

# A promise is a float that was made from the tolerated pace.
_ROUNDING = 1e-6


def beyond_tolerated(
    columns: Mapping[str, np.ndarray], workload: AssistSpec, estimates: Estimates, wanted: Help
) -> Iterator[str]:
    """Says so where devices were promised fewer tokens per second than users tolerate (tau), which problem P does not
    see: it counts a device's prefill, and neither the loading of its model nor what comes late."""
    paces_s, tau_s = np.array(columns["pace_s"]), workload.tolerable_tpot_s
    beyond = int((paces_s > tau_s * (1 + _ROUNDING)).sum())
    if not beyond:
        return
    worst = int(np.nanargmax(paces_s))
    of_worst = {name: float(columns[name][worst]) for name in ("pace_s", "tokens", "prompt", "ratio", "shown")}
    would = [] if workload.resident else ["workload.resident=true, as P does not count the loading of the model"]
    # One L for prompts of many lengths covers the worst and is far too many, or too few, for the others.
    alike = len(set(columns["prompt"])) == 1
    tokens = _covering(of_worst, tau_s, estimates, wanted) if alike else None
    would += [f"policies.assist.tokens={tokens}"] if tokens is not None else []
    what = f"{beyond:,} of {len(paces_s):,} requests are promised a pace beyond tau = {human.seconds(tau_s)}"
    instead = f"; what would lessen it: {', or '.join(would)}" if would else ""
    yield f"{what}, of {human.seconds(of_worst['pace_s'])} at most (prompt of {of_worst['prompt']:,.0f}){instead}"


def _covering(of: Mapping[str, float], tau_s: float, estimates: Estimates, wanted: Help) -> int | None:
    """Returns the least L with which the wait behind a promise is covered at the tolerated pace (Eq. 4); None where the
    answer has no more tokens, or the device's own pace is not tolerated."""
    own_s = estimates.tpot_s(of["ratio"] * of["prompt"] + of["shown"] / 2)
    if own_s >= tau_s:
        return None
    if wanted.catch_up == "prefill":
        tokens = math.ceil(of["pace_s"] * of["tokens"] / tau_s)
    else:
        tokens = 1 + math.ceil((of["pace_s"] - own_s) * (of["tokens"] - 1) / (tau_s - own_s))
    return tokens if tokens < of["shown"] else None
