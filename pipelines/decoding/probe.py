"""Decoding with KV on storage for calibrations: the pipeline itself, on sizes that they ask for."""

from collections.abc import Callable
from math import inf

from kvferry.machine.machine import Machine
from kvferry.pipelines.decoding.decode import OffloadedDecode, Process
from kvferry.pipelines.decoding.plan import DecodePlan, plan_of
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.specs.model import ModelSpec

# Groups, compression of the keys, and slots per selected group: those of `scenarios/kvswap/live.yaml`, whose models are
# small.
_GROUP_TOKENS, _COMPRESSION, _SLOTS = 8, 8, 2
# There is room in the file for so many tokens of decoding.
_MOST_OUTPUT = 64


def decode_probe(
    model: ModelSpec, *, batch: int, context: int, selected_tokens: int
) -> tuple[DecodePlan, Callable[[Machine, int], Process]]:
    """A plan, and what decodes so many tokens by it on a machine."""
    roles = Roles(
        selector=LowRankKeys(selected_tokens=selected_tokens, compression=_COMPRESSION),
        residency=Reuse(slots=_SLOTS * -(-selected_tokens // _GROUP_TOKENS)),
        layout=TokenGroups(group_tokens=_GROUP_TOKENS),
    )
    plan = plan_of(roles, model, sequences=batch, context=context, output=_MOST_OUTPUT, budget_bytes=inf)
    return plan, lambda machine, tokens: OffloadedDecode(machine, plan).run(tokens)
