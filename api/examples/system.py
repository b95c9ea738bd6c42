"""A system of one's own: policies put together under a name.

    kvferry compare kvswap/throughput --plugin example_policy.py --systems kvswap,example-policy

A DecodeSystem composes roles of decoding; a LoadingSystem a loader, its settings and the encoding of stored contexts
(kvferry.pipelines.loading.systems); an AssistSystem what a device asks of a cloud (kvferry.pipelines.assist.systems).
"""

from kvferry.pipelines.decoding.systems import DecodeSystem
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.page_bounds import PageBounds
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.roles import Roles

EXAMPLE_POLICY = DecodeSystem(
    about="Quest's selection of pages with KVSwap's reuse buffer",
    roles=Roles(
        selector=PageBounds(selected_tokens=256),
        residency=Reuse(),
        layout=TokenGroups(group_tokens=16),
    ),
)

# What this file has, by kind and name.
KVFERRY = {"system": {"example-policy": EXAMPLE_POLICY}}
