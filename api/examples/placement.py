"""A placement of one's own: the tier in which each layer's KV lies, and when it moves to another.

    kvferry run kvswap/throughput --plugin example_policy.py --system flexgen --set policies.placement=example-policy

kvferry.policies.decode.placement says what a placement is asked.
"""

from dataclasses import dataclass

from kvferry.policies.decode.placement import KvSize, Placement
from kvferry.specs.tier import Tier


# Fields are parameters of a scenario: policies: {placement: {name: example-policy, every: 3}}.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy(Placement):
    """Every second layer's KV lies on storage from the beginning, that of the others in the processor's memory."""

    every: int = 2

    @property
    def away(self) -> Tier:
        """Returns where KV lies that is not in the processor's memory; None would say that all of it always is."""
        return "storage"

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        """Returns where each layer's KV lies, for a batch of this size; asked again as it grows."""
        return tuple(self.away if layer % self.every == self.every - 1 else "device" for layer in range(size.layers))


# What this file has, by kind and name.
KVFERRY = {"placement": {"example-policy": ExamplePolicy}}
