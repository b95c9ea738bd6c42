"""Reads of layers' blocks: of those that a step wants, and of those that the next one is likely to want."""

from collections.abc import Iterator

import numpy as np

from kvferry.layouts.layout import Layout
from kvferry.layouts.pieces import Reads
from kvferry.pipelines.decoding.layer_state import LayerState
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.policies.decode.rows import BlockRows


def to_read(now: DecodeState, layer: int) -> Reads:
    """Returns how a layer's blocks are read: the blocks missing from their slots, or all wanted ones where nothing
    is kept."""
    found = now.layers[layer].found
    assert found is not None
    if now.read_last is not None and now.read_last[0] is found and isinstance(now.blocks, Layout):
        # One choice for all layers, at the same places in each.
        _, like, of = now.read_last
        now.layers[layer].reads = reads = now.blocks.reads_like(of, like, layer)
        return reads
    if now.alike(layer) and (layers := now.alike.decided_with(layer)):
        lookups = [each for n in layers if (each := now.layers[n].found) is not None]
        places = [each.wanted.places if each.slots is None else each.to_move for each in lookups]
        wanted = [(np.array(now.alike(n)), *at) for n, at in zip(layers, places, strict=True)]
        for (alike, *_), of_layers in zip(wanted, now.blocks.reads_together(wanted), strict=True):
            for n, one in zip(alike.tolist(), of_layers, strict=True):
                now.layers[n].reads = one
    own = now.layers[layer].reads
    assert own is not None
    now.read_last = found, layer, own
    return own


def reads_alike(now: DecodeState, layer: int, rows: np.ndarray, ids: np.ndarray) -> Iterator[tuple[LayerState, Reads]]:
    """Yields layers that are like this one, with how the same blocks of each are read."""
    alike = now.alike(layer)
    (found,) = now.blocks.reads_together([(np.array(alike), rows, ids)])
    for other, reads in zip(alike, found, strict=True):
        yield now.layers[other], reads


def choose_ahead(now: DecodeState, layer: int, changing: BlockRows | None = None) -> None:
    """Chooses what is likely of a layer whose cache is swapped, and of the ones that are like it, without what is
    `changing`. Of layers that are decided together, the call for the first one chooses for all, and later calls do
    nothing."""
    staying, token_bytes = now.plan.staying, now.plan.token_bytes
    if not (layers := now.alike.decided_with(layer)):
        return
    places = now.alike.ahead(layers, staying.ahead, token_bytes, changing)
    wanted = [(np.array(now.alike(n)), *at) for n, at in zip(layers, places, strict=True)]
    for (alike, *_), reads in zip(wanted, now.blocks.reads_together(wanted), strict=True):
        for n, found in zip(alike.tolist(), reads, strict=True):
            now.layers[n].swapped = found if len(found.offsets) else None
