"""The order of one decoding step: which stages it has, for which layer, and which of them must have ended before.

A pipeline carries a list of stages out, a planner prices the same list. Stages of one queue (the processor, or what
moves KV) begin in the order of the list; ``after`` names what a stage waits for besides.
"""

from collections.abc import Callable
from typing import NamedTuple

# A stage's kind and layer, as others wait for it.
Key = tuple[str, int]


class Stage(NamedTuple):
    """``kind`` names what is done (kvferry.pipelines.decoding.stages). ``awaited``: the next stage depends on its
    answer, so nothing is handed over before that is there."""

    kind: str
    layer: int
    after: tuple[Key, ...] = ()
    awaited: bool = False

    @property
    def key(self) -> Key:
        return self.kind, self.layer


# Makes the stages that bring a layer's KV to the processor, once these have ended: the last is the move itself, or what
# must be done besides it.
Fetch = Callable[[int, tuple[Key, ...]], list[Stage]]
Stages = tuple[Stage, ...]


def own_layer(
    fetch: Fetch, arrival: str, layers: int, rest: str = "feed_forward", after_attention: tuple[str, ...] = ()
) -> Stages:
    """Each layer's KV is chosen when the layer below has ended, from the layer's own query. `rest` is the kind of the
    stage that ends a layer, and `after_attention` are the kinds of those before it, whose answers are awaited."""
    stages: list[Stage] = []
    for layer in range(layers):
        stages += fetch(layer, ((rest, layer - 1),) if layer else ())
        attend, last = compute(layer, arrival, rest)
        stages += [attend, *(Stage(kind, layer, (attend.key,), awaited=True) for kind in after_attention), last]
    return tuple(stages)


def layer_ahead(fetch: Fetch, arrival: str, layers: int) -> Stages:
    """The next layer's KV is chosen when this layer's has arrived, and moves while this layer computes.

    FlexGen's loop, on which these systems are built, begins a layer when what it reads has arrived. The first layer's
    query is known.
    """
    stages = fetch(0, ())
    for layer in range(layers):
        if layer + 1 < layers:
            stages += fetch(layer + 1, ((arrival, layer),))
        stages += compute(layer, arrival)
    return tuple(stages)


def before_pass(choose: Stages, fetch: Fetch, arrival: str, layers: int) -> Stages:
    """Returns one choice for all layers, before the first computes: their KV moves one after the other from then on."""
    stages = [*choose]
    for layer in range(layers):
        stages += fetch(layer, ())
    for layer in range(layers):
        stages += compute(layer, arrival)
    return tuple(stages)


def with_write_back(stages: Stages) -> Stages:
    """Returns stages among which all of a layer's KV goes back to where it lies once the layer has ended: before the
    next one attends, and before KV comes for the layer behind that.

    So Hugging Face transformers offloads its cache (OffloadedCache: the previous layer is evicted on the stream that
    computes, and handed over before the next is prefetched). Left out: both ways may be on a bus at once; the last
    layer goes back, and the first comes, before the next step's first layer attends.
    """
    ends = {stage.layer: stage.key for stage in stages if stage.kind != "next_token"}
    found = list[Stage]()
    back = set[Key]()
    for stage in stages:
        # Fetches that a selector has begin before any layer wait for none.
        before = ("write_back", {"attend": stage.layer - 1, "bring_all": stage.layer - 2}.get(stage.kind, -1))
        if before in back:
            stage = stage._replace(after=(*stage.after, before))
        found.append(stage)
        if stage.key == ends.get(stage.layer):
            found.append(Stage("write_back", stage.layer, (stage.key,)))
            back.add(found[-1].key)
    return tuple(found)


def compute(layer: int, arrival: str, rest: str = "feed_forward") -> list[Stage]:
    """Returns a layer over what has arrived."""
    return [Stage("attend", layer, ((arrival, layer),)), Stage(rest, layer, (("attend", layer),))]
