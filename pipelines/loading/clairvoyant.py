"""The clairvoyant lower bound on a request's load time, which knows the whole trace and the true costs."""

from kvferry.policies.loading.bound import clairvoyant_bound_s, frontier
from kvferry.policies.loading.problem import LoadProblem
from kvferry.traces.rate import RateTrace


def load_bound_s(
    true_problem: LoadProblem, link: RateTrace, rtt_s: float, processor: RateTrace, arrival_s: float
) -> float:
    """A lower bound, in seconds after arrival, on when any schedule has the KV complete.

    The request has link and processor for itself, knows the future, and uses the system's smallest encoding. Left out,
    so that it stays a lower bound: other requests, decompression, copies, token dependencies.
    """

    def delivered_bytes(elapsed_s: float) -> float:
        # A request takes half the round trip to the bottleneck, its bytes the other half from there.
        if elapsed_s <= rtt_s:
            return 0.0
        return link.amount(arrival_s + rtt_s / 2, arrival_s + elapsed_s - rtt_s / 2)

    def computed_s(elapsed_s: float) -> float:
        return processor.amount(arrival_s, arrival_s + elapsed_s)

    least = frontier(true_problem, smallest_scale=min(true_problem.level_scale))
    return clairvoyant_bound_s(least, delivered_bytes, computed_s)
