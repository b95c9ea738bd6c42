"""A batching of one's own: which requests decode together, where all KV is in memory.

    kvferry run kvswap/throughput --plugin example_policy.py --system vllm --set policies.batching=example-policy

kvferry.policies.decode.batcher says what a batching is asked.
"""

from dataclasses import dataclass


# Fields are parameters of a scenario: policies: {batching: {name: example-policy, prefill_tokens: 8Ki}}.
@dataclass(frozen=True, kw_only=True)
class ExamplePolicy:
    """A request joins as soon as there is room, as in vLLM; few prompts are prefilled at a time, so that those who
    decode wait less."""

    # Tokens of prompts that are prefilled together at most; a single prompt may be longer.
    prefill_tokens: int | None = 2048

    def joins(self, decoding: bool) -> bool:
        """Returns whether a waiting request may join the requests that hold a slot; `decoding`: these decode
        already."""
        return True


# What this file has, by kind and name.
KVFERRY = {"batching": {"example-policy": ExamplePolicy}}
