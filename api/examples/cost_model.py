"""A cost model of one's own: how long an op takes on an idle processor, and how much memory traffic it makes.

    kvferry run quickstart --plugin example_policy.py --set costs=example-policy

`costs: {truth: example-policy, estimate: roofline}` lets the modelled world obey it while planners estimate by
another. kvferry.machine.ops has the ops, kvferry.sim.costs those models that come with KVFerry.
"""

import numpy as np

from kvferry.machine.ops import Advance, Number, Op, Prefill, PrefillHead
from kvferry.sim.cost import Cost
from kvferry.sim.costs.roofline import Roofline


class ExamplePolicy(Roofline):
    """The roofline, with prefill at two thirds of its speed: a device that throttles under long work. It is made with
    a processor's profile and a model's."""

    def cost(self, op: Op) -> Cost:
        """Returns the cost of one op with plain numbers."""
        found = super().cost(op)
        return Cost(found.duration_s * self._slower(op), found.n_bytes)

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of many ops at once, whose fields are arrays; the same as ``cost`` says one by one."""
        return super().durations_s(op, load=load) * self._slower(op)

    @staticmethod
    def _slower(op: Op) -> float:
        return 1.5 if isinstance(op, Prefill | PrefillHead | Advance) else 1.0


# What this file has, by kind and name.
KVFERRY = {"cost-model": {"example-policy": ExamplePolicy}}
