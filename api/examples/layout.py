"""A layout of one's own: what a KV block is, and where it lies in the file on storage.

    kvferry run kvswap/throughput --plugin example_policy.py --set policies.layout=example-policy

kvferry.policies.decode.blocking says what a layout is asked; kvferry.layouts has those of byte ranges.
"""

from dataclasses import dataclass

from kvferry.policies.decode.blocking import TokenGroups


# Fields are parameters of a scenario: policies: {layout: {name: example-policy, times: 4}}.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy(TokenGroups):
    """Groups of consecutive tokens, twice as many as make a good read of the storage: fewer and longer reads."""

    times: int = 2

    def block_tokens(self, context: int, entry_bytes: int, good_read_bytes: float) -> int:
        """Tokens of a block, when a token's KV in one layer takes `entry_bytes`."""
        return min(context, self.times * super().block_tokens(context, entry_bytes, good_read_bytes))


# What this file has, by kind and name.
KVFERRY = {"layout": {"example-policy": ExamplePolicy}}
