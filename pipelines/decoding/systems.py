"""Systems that decode with their KV on storage or in memory, by name: KVSwap and what it is compared with."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from kvferry.pipelines.decoding.stand_in import STAYING, declared, fields_of, kept, of_parameter, stand_in, taking
from kvferry.pipelines.parameters import BadParameters, arguments_of, schema_of
from kvferry.pipelines.policy_schema import Schema, setting, stand_ins, united
from kvferry.policies.decode.attention_kernel import EAGER, FLASH, IN_PLACE, PAGED
from kvferry.policies.decode.batcher import Continuous, LockStep
from kvferry.policies.decode.blocking import TokenGroups, ValueGroups
from kvferry.policies.decode.centroids import Centroids
from kvferry.policies.decode.cluster_caches import VirtualCache, WholeCache
from kvferry.policies.decode.cluster_places import ClusterByCluster, ClusterPools, DualHeads, SequenceOrdered
from kvferry.policies.decode.cluster_upkeep import AdaptiveClusters, StaticClusters
from kvferry.policies.decode.elastic_slots import Elastic
from kvferry.policies.decode.global_clusters import GlobalClusters
from kvferry.policies.decode.local_clusters import LocalClusters
from kvferry.policies.decode.page_bounds import PageBounds
from kvferry.policies.decode.placement import AllOrNothing, OneTier, Progressive
from kvferry.policies.decode.residency import DoubleBuffer, Reuse
from kvferry.policies.decode.retrieval_head import RetrievalHead
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.scored_keys import Landmarks, LowRankKeys, PartialKeys, PrincipalKeys
from kvferry.policies.decode.selector import Everything, Window
from kvferry.policies.decode.top_blocks import Entries
from kvferry.policies.decode.upkeep import KeepNewest, RollingGroups
from kvferry.scenarios.resolve import Complaint

# Policies of each role, by the name that a scenario gives it.
ROLES: dict[str, dict[str, Callable[..., Any]]] = {
    "selector": {
        "all": Everything,
        "low-rank-keys": LowRankKeys,
        "partial-keys": PartialKeys,
        "principal-keys": PrincipalKeys,
        "landmarks": Landmarks,
        "page-bounds": PageBounds,
        "centroids": Centroids,
        "keys": Entries,
        "retrieval-head": RetrievalHead,
        "window": Window,
    },
    "residency": {
        "none": DoubleBuffer,
        "reuse": Reuse,
        "elastic": Elastic,
        "whole-cache": WholeCache,
        "virtual-cache": VirtualCache,
    },
    "layout": {
        "groups": TokenGroups,
        "value-groups": ValueGroups,
        "sequence-order": SequenceOrdered,
        "cluster-by-cluster": ClusterByCluster,
        "cluster-pools": ClusterPools,
        "dual-head": DualHeads,
    },
    "upkeep": {
        "rolling-groups": RollingGroups,
        "none": KeepNewest,
        "adaptive-clusters": AdaptiveClusters,
        "static-clusters": StaticClusters,
        "local-clusters": LocalClusters,
        "global-clusters": GlobalClusters,
    },
    "placement": {
        "host": partial(OneTier, "host"),
        "device": partial(OneTier, "device"),
        "storage": partial(OneTier, "storage"),
        "all-or-nothing": AllOrNothing,
        "progressive": Progressive,
    },
    "batching": {"continuous": Continuous, "lock-step": LockStep},
    "attention": {"eager": lambda: EAGER, "flash": lambda: FLASH, "in-place": lambda: IN_PLACE, "paged": lambda: PAGED},
}
# Roles that matter where all KV is in the processor's memory alone, and roles that matter anywhere; the others matter
# elsewhere.
_IN_MEMORY = ("batching",)
_ANYWHERE = ("placement", "attention")


@dataclass(frozen=True, kw_only=True)
class DecodeSystem:
    """A composition. ``tuned``: a file of ``kvferry tune``, whose nearest solution replaces what it holds.
    ``tunable``: its groups, compression and slots are what ``kvferry tune`` finds."""

    about: str
    roles: Roles
    paper: str = "kvswap"
    tunable: bool = False
    tuned: str | None = None

    @property
    def codec(self) -> None:
        """No contexts of this workload lie in a cloud."""
        return None

    @property
    def policy_schemas(self) -> Mapping[str, Schema]:
        """Roles, and parameters of this system's and of all that can stand in for them."""
        roles = {role: stand_ins(makers, _maker_schema) for role, makers in ROLES.items()}
        makers = (maker for role, table in ROLES.items() if role != "attention" for maker in table.values())
        parameters = united([*map(_maker_schema, makers), schema_of(taking(_parameters_of(self.roles)))])
        return {**{key: setting(value) for key, value in parameters.items()}, **roles}

    @property
    def policy_rules(self) -> Sequence[Schema]:
        """Without another role, this system's parameters alone; where KV lies as it does, roles that have an effect."""
        idle, _ = self._idle_roles(self.roles)
        own = ["reuse", *schema_of(taking(_parameters_of(self.roles)))]
        return (
            {"if": {"not": _says(*ROLES, "reuse")}, "then": {"propertyNames": {"enum": own}}},
            {"if": {"not": _says("placement", "selector")}, "then": {"not": _says(*idle)}} if idle else {},
        )

    def with_policies(self, policies: Mapping[str, Any]) -> "DecodeSystem":
        """Returns the same system with some of its policies replaced, as ``Scenario.policy_values`` asks.

        A key is a role, whose value is a name, {"name": ..., its parameters}, or parameters alone, which replace those
        of the system's own; or a parameter of one of the system's roles. `reuse` is short for a residency: true for one
        that keeps something, a reuse buffer where the system's own does not, false for none. With a role that is
        replaced go its own parameters: they are known still, and mean nothing. Raises BadParameters, an InputError, for
        any other key, and for values that a key does not take."""
        roles = self.roles
        complaints: list[Complaint] = []
        for role in ROLES:
            if role in policies:
                try:
                    roles = replace(roles, **{role: stand_in(role, ROLES[role], policies[role], getattr(roles, role))})
                except BadParameters as error:
                    complaints += error.complaints
        if isinstance(reuse := policies.get("reuse"), bool) and reuse != roles.residency.keeps:
            roles = replace(roles, residency=Reuse() if reuse else DoubleBuffer())
        if not roles.selective and "residency" in policies:
            what = "everything is read again at every step, nothing can be kept"
            complaints.append(Complaint(("residency",), what, idle=True))
        idle, what = self._idle_roles(roles)
        if "tuned" in policies and not self.tunable:
            of = f"holds parameters of {tunable_systems()}, and this system has others"
            complaints.append(Complaint(("tuned",), of, idle=True))
        complaints += [Complaint((role,), what, idle=True) for role in idle if role in policies]
        if complaints:
            raise BadParameters(complaints)
        known = _parameters_of(self.roles) | _parameters_of(roles)
        given = arguments_of(taking(known), policies, **{role: Any for role in ROLES if role not in idle})
        for role in ROLES:
            part = getattr(roles, role)
            own = {name: value for name, value in given.items() if name in fields_of(part)}
            if own:
                try:
                    roles = replace(roles, **{role: replace(part, **own)})
                except ValueError as error:
                    raise BadParameters([of_parameter(error, own, (role,))]) from None
        return replace(self, roles=roles, **({"tuned": given["tuned"]} if "tuned" in given else {}))

    def staying(self, policies: Mapping[str, Any]) -> dict[str, Any]:
        """Returns parameters of this system's own selector that stay with the one that these policies replace it by,
        and that they do not say."""
        if any(name in policies for name in STAYING):
            return {}
        return kept(self.roles.selector, self.with_policies(policies).roles.selector, policies.get("selector"))

    def _idle_roles(self, roles: Roles) -> tuple[list[str], str]:
        """Returns the roles that have no effect once this system has `roles`, and why."""
        if self.roles.placement.away is None and roles.placement.away is None:
            what = "all KV is in memory: nothing is selected, kept or laid out, so this role has no effect"
            evicting = ("selector",) if roles.selector.evicts else ()
            return [role for role in ROLES if role not in (*_ANYWHERE, *_IN_MEMORY, *evicting)], what
        what = "KV is not always in memory: one batch decodes in lock step, so this role has no effect"
        return [] if roles.all_in_memory else list(_IN_MEMORY), what


# The same for all systems; a schema asks for it system by system.
_maker_schema = lru_cache(maxsize=256)(schema_of)


def _says(*keys: str) -> Schema:
    """Returns a schema of mappings that have a value under one of these keys."""
    return {"anyOf": [{"required": [key], "properties": {key: {"not": {"type": "null"}}}} for key in keys]}


def _parameters_of(roles: Roles) -> dict[str, inspect.Parameter]:
    """Returns what a system's scenario can say besides whole roles."""
    known = {"tuned": inspect.Parameter("tuned", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=str | None)}
    if roles.selective:
        known["reuse"] = inspect.Parameter("reuse", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool)
    for role in ROLES:
        part = getattr(roles, role)
        if role == "attention":
            # A kernel is named, it has no parameters.
            continue
        evicting = role == "selector" and roles.selector.evicts
        if (role in _IN_MEMORY) != roles.all_in_memory and not evicting:
            continue
        own = fields_of(part)
        known |= {name: one for name, one in declared(part).items() if name in own}
    return known


_PER_TOKEN = TokenGroups(group_tokens=1)
# All KV in the processor's memory, whichever kernel attends to it.
_IN_DEVICE = OneTier("device")
# DynaKV leaves this open; all its systems share it (docs/dynakv.md): the share of the entries that is retrieved and the
# tokens of a cluster after prefill. The others have no flash management: entries lie in the order of tokens, in two
# buffers as large as a selection, which is what the virtual cache's two layers take.
_SELECTED_SHARE = 0.15
_CLUSTER_TOKENS = 16
_BY_CENTROIDS = Centroids(per_head=True, selected_share=_SELECTED_SHARE)
_IN_ORDER = SequenceOrdered(group_tokens=_CLUSTER_TOKENS)

DECODE_SYSTEMS: dict[str, DecodeSystem] = {
    "kvswap": DecodeSystem(
        about="groups predicted from a low-rank key cache, read ahead, kept in a reuse buffer",
        roles=Roles(selector=LowRankKeys(), residency=Reuse()),
        tunable=True,
    ),
    "flexgen": DecodeSystem(
        about="all KV of a layer read back while the layer before computes",
        roles=Roles(selector=Everything(), layout=_PER_TOKEN),
    ),
    "infinigen": DecodeSystem(
        about="tokens predicted and read head by head, from partial keys",
        roles=Roles(selector=PartialKeys(per_head=True), layout=_PER_TOKEN),
    ),
    "infinigen-star": DecodeSystem(
        about="the same, one choice of tokens for all heads",
        roles=Roles(selector=PartialKeys(), layout=_PER_TOKEN),
    ),
    "infinigen-star-ru": DecodeSystem(
        about="the same, with a reuse buffer",
        roles=Roles(selector=PartialKeys(metadata_share=0.5), residency=Reuse(), layout=_PER_TOKEN),
    ),
    "shadowkv": DecodeSystem(
        about="chunks chosen by their mean key; values read, keys rebuilt from a low-rank cache made at prefill",
        roles=Roles(selector=Landmarks(per_head=True), layout=ValueGroups(group_tokens=32)),
    ),
    "loki": DecodeSystem(
        about="as infinigen, from keys in their principal components",
        roles=Roles(selector=PrincipalKeys(per_head=True), layout=_PER_TOKEN),
    ),
    "quest": DecodeSystem(
        about="pages chosen head by head by the bounds of their keys, with the layer's own query",
        roles=Roles(selector=PageBounds(per_head=True), layout=TokenGroups(group_tokens=16), attention=PAGED),
    ),
    "dynakv": DecodeSystem(
        about="clusters of like keys, cut as keys drift away, once they are in memory anyway",
        paper="dynakv",
        roles=Roles(
            selector=_BY_CENTROIDS,
            residency=VirtualCache(cache_share=_SELECTED_SHARE),
            layout=DualHeads(group_tokens=_CLUSTER_TOKENS),
            upkeep=AdaptiveClusters(threshold=1.5),
        ),
    ),
    "pqcache": DecodeSystem(
        about="clusters of like keys, made at prefill; new keys join the nearest",
        paper="dynakv",
        roles=Roles(selector=_BY_CENTROIDS, layout=_IN_ORDER, upkeep=StaticClusters()),
    ),
    "clusterkv": DecodeSystem(
        about="clusters of like keys; new tokens are clustered among themselves, window by window",
        paper="dynakv",
        roles=Roles(selector=_BY_CENTROIDS, layout=_IN_ORDER, upkeep=LocalClusters()),
    ),
    "no-cluster": DecodeSystem(
        about="every entry is scored by its own key and read by itself",
        paper="dynakv",
        roles=Roles(
            selector=Entries(per_head=True, selected_share=_SELECTED_SHARE),
            layout=TokenGroups(group_tokens=1, packed=True),
        ),
    ),
    "vllm": DecodeSystem(
        about="all KV in memory, in pages; requests join and leave the batch at any time",
        roles=Roles(
            selector=Everything(),
            layout=TokenGroups(group_tokens=16),
            placement=OneTier("device"),
            batching=Continuous(),
            attention=PAGED,
        ),
    ),
    "specontext": DecodeSystem(
        about="a distilled head chooses tokens for all layers before the pass; layers leave memory one by one",
        paper="specontext",
        roles=Roles(
            selector=RetrievalHead(),
            residency=Elastic(),
            layout=TokenGroups(group_tokens=1, packed=True),
            placement=Progressive(runtime_share=0.3),
            attention=PAGED,
        ),
    ),
    "full-eager": DecodeSystem(
        about="all KV attended to, kernel by kernel: joined, repeated and scored in memory (Hugging Face)",
        paper="specontext",
        roles=Roles(selector=Everything(), layout=_PER_TOKEN, placement=_IN_DEVICE, attention=EAGER),
    ),
    "full-flash": DecodeSystem(
        about="all KV attended to by FlashAttention over one tensor per layer (Hugging Face)",
        paper="specontext",
        roles=Roles(selector=Everything(), layout=_PER_TOKEN, placement=_IN_DEVICE, attention=FLASH),
    ),
    "full-flashinfer": DecodeSystem(
        about="all KV attended to in pages, steps captured; requests join and leave at any time (FlashInfer)",
        paper="specontext",
        roles=Roles(
            selector=Everything(),
            layout=TokenGroups(group_tokens=16),
            placement=_IN_DEVICE,
            batching=Continuous(),
            attention=PAGED,
        ),
    ),
    "sliding-window": DecodeSystem(
        about="the newest KV alone is kept and attended to",
        paper="specontext",
        roles=Roles(selector=Window(), placement=_IN_DEVICE, batching=Continuous(), attention=PAGED),
    ),
    "streaming-llm": DecodeSystem(
        about="the newest KV is kept and attended to, with that of the first tokens (attention sinks)",
        paper="specontext",
        roles=Roles(
            selector=Window(window_tokens=2044, sink_tokens=4),
            placement=_IN_DEVICE,
            batching=Continuous(),
            attention=PAGED,
        ),
    ),
    "os-paging": DecodeSystem(
        about="all KV in memory, swapped by the operating system when it does not fit",
        roles=Roles(selector=Everything(ahead=False), layout=TokenGroups(group_tokens=8), placement=AllOrNothing()),
    ),
}


def tunable_systems() -> str:
    """Names of the systems that ``kvferry tune`` finds parameters for, for users."""
    return ", ".join(name for name, system in DECODE_SYSTEMS.items() if system.tunable)
