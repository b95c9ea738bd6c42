"""A schedule of one's own: a plan for a whole load, made before it begins for the rates that are expected.

    kvferry run quickstart --plugin example_policy.py --system sparkv --set policies.schedule=example-policy
    kvferry schedule quickstart --plugin example_policy.py

Parameters with a default can be said in a scenario: policies: {schedule: {name: example-policy, share: 0.3}}.
"""

from kvferry.policies.loading.chain import chain_order
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import LoadProblem


def example_policy(problem: LoadProblem, bytes_per_s: float, *, share: float = 0.5) -> Plan:
    """Computes this share of all units, the ones that save most of the link first, and streams the rest, whatever the
    rate. `bytes_per_s` arrive while the processor does a second of work."""
    # The chain: every beginning of this order can be computed by itself, as nothing in it needs what comes later.
    order = chain_order(problem)
    cut = round(share * len(order))
    # Units are numbers, problem.unit(token chunk, layer, head). Each is loaded once, by one of the two paths.
    return Plan((Stage(compute=tuple(order[:cut].tolist()), stream=tuple(order[cut:][::-1].tolist())),))


# What this file has, by kind and name.
KVFERRY = {"schedule": {"example-policy": example_policy}}
