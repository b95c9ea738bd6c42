"""Changes by new tokens: in the tiers where KV lies, and in copies of it that are kept in memory."""

import numpy as np

from kvferry.layouts.pieces import Change
from kvferry.machine.ops import Extents
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.policies.decode.cuts import Cut
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


def _carry_out(now: DecodeState, change: Change, layers: np.ndarray, tier: Tier, after: Ticket) -> None:
    """First what moves, then what is new."""
    moves, written = change.moves.of(layers), change.written.of(layers)
    if len(moves):
        away = now.machine.move(Extents(moves.sources, moves.lengths), tier, "device", after=(after,))
        now.machine.move(Extents(moves.targets, moves.lengths), "device", tier, after=(away,))
    if len(written):
        extents = Extents(*written.ranges, layers.tolist(), written)
        now.machine.move(extents, "device", tier, after=(after,))


def renew(now: DecodeState, update: Update) -> None:
    """Brings copies that are kept in memory up to date."""
    for layer in range(len(update.changed)):
        if now.layers[layer].first_alike != layer:
            break
        changed, made = changes_of(update, layer)
        tokens = now.kept.tokens_of(layer, changed) if changed.ids.size else None
        now.layers[layer].resident.renew(changed, tokens, made)


def changes_of(update: Update, layer: int) -> tuple[BlockRows, list[tuple[int, int]]]:
    """Returns a layer's blocks that have changed, and those of them that have been made as a whole, (row, block)."""
    changed = update.changed[layer]
    cuts = [one for one in update.joined[layer] if isinstance(one, Cut)] if update.joined else []
    made = [(one.row, block) for one in cuts for block in (one.block, one.new) if block is not None]
    if made:
        places = zip(*(of.tolist() for of in changed.places), strict=True)
        changed = BlockRows.of({*places, *made}, changed.rows)
    return changed, made


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
