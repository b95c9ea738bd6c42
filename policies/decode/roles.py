"""A way of decoding with KV blocks: one object for each of seven roles."""

from dataclasses import dataclass
from functools import lru_cache

from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.policies.decode.batcher import Batching, LockStep
from kvferry.policies.decode.blocking import LayoutRole, TokenGroups
from kvferry.policies.decode.placement import KvSize, OneTier, Placement
from kvferry.policies.decode.residency import DoubleBuffer, Residency
from kvferry.policies.decode.selector import Selector
from kvferry.policies.decode.stages import Key, Stage, Stages, with_write_back
from kvferry.policies.decode.upkeep import RollingGroups, Upkeep
from kvferry.specs.tier import Tier


@dataclass(frozen=True, kw_only=True)
class Roles:
    """``selector``: which blocks attention wants, from which query, and when. ``residency``: what stays in memory.
    ``layout``: what a block is, and where it lies. ``upkeep``: what a new token does. ``placement``: the tier of each
    layer's KV. ``batching``: who decodes together where all of it is in memory. ``attention``: how it is computed over
    what is there."""

    selector: Selector
    residency: Residency = DoubleBuffer()
    layout: LayoutRole = TokenGroups()
    upkeep: Upkeep = RollingGroups()
    placement: Placement = OneTier("storage")
    batching: Batching = LockStep()
    attention: AttentionKernel = AttentionKernel()

    @property
    def fixed(self) -> bool:
        """Takes the memory that it takes, whatever the budget."""
        return self.selector.fixed and self.residency.fixed and self.layout.fixed

    @property
    def selective(self) -> bool:
        """Reads a part of the KV, chosen at every step."""
        return self.selector.selected(1, 1) is not None

    @property
    def all_in_memory(self) -> bool:
        """KV of any size lies in the processor's memory, and nothing of it is selected."""
        return self.placement.away is None and not self.selective

    def stays_in_memory(self, size: KvSize) -> bool:
        """KV of this size lies in the processor's memory from beginning to end, and nothing of it is selected."""
        return not self.selective and set(self.placement.tiers(size)) == {"device"}

    @property
    def writes_back(self) -> bool:
        """Returns whether all KV of a layer that lies elsewhere is written back in every step, because attention has
        made another tensor of it."""
        return self.attention.grown and not self.selective

    def captured(self, tier: Tier) -> bool:
        """Returns whether a layer whose KV lies in this tier is launched with its whole step, or kernel by kernel: also
        where the host reads its KV, or waits for the layer's own choice to have it copied."""
        if tier == "storage" or (tier == "host" and self.selective and not self.selector.for_all_layers):
            return False
        return bool(self.attention.captured)

    def step(self, layers: int) -> Stages:
        """Returns the stages of one decoding step through `layers`, to the next token."""
        return _step(self, layers)

    def prefill(self, layers: int, *, known: bool = False) -> Stages:
        """Returns the stages of prefill: layer by layer, a layer's KV is written out while the next is computed.
        `known`: a part of the KV is there, and what of it lies elsewhere comes while the layer before is computed."""
        return _prefill(self, layers, known)


@lru_cache(maxsize=64)
def _step(roles: Roles, layers: int) -> Stages:
    upkeep = roles.upkeep
    beside = (*roles.layout.beside_moves, *upkeep.beside_moves)
    stages = roles.selector.stages(layers, beside, upkeep.after_attention)
    stages = roles.residency.arranged(stages, layers)
    if roles.writes_back:
        stages = with_write_back(stages)
    ends = next(stage.key for stage in reversed(stages) if stage.kind != "write_back")
    return (*stages, Stage("next_token", 0, (ends,)))


@lru_cache(maxsize=64)
def _prefill(roles: Roles, layers: int, known: bool) -> Stages:
    stages: list[Stage] = []
    before: tuple[Key, ...] = ()
    for layer in range(layers):
        brought: tuple[Key, ...] = ()
        if known:
            # Moves of KV keep the order of the list: the next layer's come before this one's is written. There is
            # room for the KV of two layers.
            coming = range(layer + 1, min(layer + 2, layers)) if layer else range(min(2, layers))
            stages += (Stage("bring_known", n, (("prefill", n - 2),) if n > 1 else ()) for n in coming)
            brought = (("bring_known", layer),)
        computed = Stage("prefill", layer, (*before, *brought))
        stages.append(computed)
        first = [Stage(kind, layer, (computed.key,), awaited=True) for kind in roles.layout.before_write]
        rest = (Stage(kind, layer, (computed.key,)) for kind in roles.layout.after_prefill)
        written = Stage("write_out", layer, ((first or [computed])[-1].key,))
        stages += [*first, written, *rest]
        before = (next(stage.key for stage in reversed(stages) if stage.kind != "write_out"),)
    return (*stages, Stage("first_token", 0, before))
