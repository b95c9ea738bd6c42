"""The clairvoyant lower bound on a request's load time, which knows the whole trace and the true costs."""

from dataclasses import replace

import numpy as np

from kvferry.policies.loading.bound import clairvoyant_bound_s, frontier
from kvferry.policies.loading.problem import LoadProblem
from kvferry.traces.rate import RateTrace


def load_bound_s(
    true_problem: LoadProblem,
    intake_s: np.ndarray,
    link: RateTrace,
    rtt_s: float,
    processor: RateTrace,
    arrival_s: float,
    processor_from_s: float = 0.0,
) -> float:
    """A lower bound, in seconds after arrival, on when any schedule has the KV complete.

    The request has the device and the link for itself, knows the future, and uses the system's smallest encoding. The
    processor computes nothing before it has started, at `processor_from_s`. What is streamed comes over the link and is
    decoded and copied (`intake_s` of each unit [T, L, C]): there is a bound for either, and the larger one is returned.
    Left out, so that it stays a lower bound: other requests, contention, token dependencies.
    """

    def delivered_bytes(elapsed_s: float) -> float:
        # A request takes half the round trip to the bottleneck, its bytes the other half from there.
        if elapsed_s <= rtt_s:
            return 0.0
        return link.amount(arrival_s + rtt_s / 2, arrival_s + elapsed_s - rtt_s / 2)

    def computed_s(elapsed_s: float) -> float:
        from_s = max(arrival_s, processor_from_s)
        return processor.amount(from_s, max(from_s, arrival_s + elapsed_s))

    smallest_scale = min(true_problem.level_scale)
    over_the_link_s = clairvoyant_bound_s(frontier(true_problem, smallest_scale), delivered_bytes, computed_s)
    if intake_s.sum() * link.mean() < smallest_scale * true_problem.stream_bytes.sum():
        return over_the_link_s  # the link is the slower one
    taken_in = replace(true_problem, stream_bytes=intake_s, level_scale=(1.0,))
    return max(over_the_link_s, clairvoyant_bound_s(frontier(taken_in), lambda s: max(s - rtt_s, 0.0), computed_s))
