"""Changes by new tokens: in the tiers where KV lies, and in copies of it that are kept in memory."""

import numpy as np

from kvferry.layouts.pieces import Pieces
from kvferry.machine.ops import Extents
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.upkeep import Update
from kvferry.specs.tier import Tier


def write(now: DecodeState, update: Update, after: Ticket) -> None:
    """Writes what new tokens changed to where each layer's KV lies."""
    for tier in dict.fromkeys(now.tiers):
        if tier == "device":
            continue
        layers = np.flatnonzero([tier == each for each in now.tiers])
        if update.written is not None:
            now.machine.move(Extents(*update.written(layers), layers.tolist()), "device", tier, after=(after,))
        for change in update.changes:
            _carry_out(now, change, layers, tier, after)


def _carry_out(now: DecodeState, change: Pieces, layers: np.ndarray, tier: Tier, after: Ticket) -> None:
    """First what moves, then what is new."""
    moves, written = change.moves.of(layers), change.of(layers)
    if len(moves):
        away = now.machine.move(Extents(moves.sources, moves.lengths), tier, "device", after=(after,))
        now.machine.move(Extents(moves.targets, moves.lengths), "device", tier, after=(away,))
    if len(written):
        extents = Extents(*written.ranges, layers.tolist(), written)
        now.machine.move(extents, "device", tier, after=(after,))


def renew(now: DecodeState, update: Update) -> None:
    """Brings copies that are kept in memory up to date."""
    for layer in range(len(update.changed)):
        if not now.alike(layer):
            break
        changed, made = changed_blocks(update, layer), update.made[layer] if update.made else ()
        tokens = now.kept.tokens_of(layer, changed) if changed.ids.size else None
        now.layers[layer].resident.renew(changed, tokens, made)


def changed_blocks(update: Update, layer: int) -> BlockRows:
    """Returns a layer's blocks that have changed, or have been made as a whole."""
    changed, made = update.changed[layer], update.made[layer] if update.made else ()
    if not made:
        return changed
    places = zip(*(of.tolist() for of in changed.places), strict=True)
    return BlockRows.of({*places, *made}, changed.rows)


def staying(now: DecodeState, update: Update) -> Extents | None:
    """Returns the part of the change that stays in the processor's own memory; None: nothing."""
    layers = np.flatnonzero([tier == "device" for tier in now.tiers])
    if not len(layers):
        return None
    if update.written is not None:
        return Extents(*update.written(layers), layers.tolist())
    if update.pieces is None:
        return None
    written = update.pieces.of(layers)
    return Extents(*written.ranges, layers.tolist(), written)
