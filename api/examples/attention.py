"""An attention kernel of one's own: what it copies, reads and keeps besides the KV itself.

    kvferry run kvswap/throughput --plugin example_policy.py --system vllm --set policies.attention=example-policy

kvferry.policies.decode.attention_kernel explains the fields.
"""

from kvferry.policies.decode.attention_kernel import AttentionKernel

# KV in pages, but the heads of a group are not shared: keys and values are copied once for every query head.
EXAMPLE_POLICY = AttentionKernel(paged=True, repeated=True)

# What this file has, by kind and name.
KVFERRY = {"attention": {"example-policy": EXAMPLE_POLICY}}
