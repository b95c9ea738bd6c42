"""What nobody could beat: the lower bound on a request's load, with the whole trace and all true costs known."""

from kvferry.policies.loading.bound import clairvoyant_bound_s, frontier
from kvferry.policies.loading.problem import LoadProblem
from kvferry.traces.rate import RateTrace


def load_bound_s(
    true_problem: LoadProblem, link: RateTrace, rtt_s: float, processor: RateTrace, arrival_s: float
) -> float:
    """Seconds after arrival before which no schedule can have the KV complete.

    The link alone, the processor alone, seeing the future; at the smallest encoding that the system has.
    Left out, so that it stays a lower bound: other requests, decompression, copies, token dependencies.
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
