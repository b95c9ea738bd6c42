"""Selections and answers of a real run, for a modelled one to be answered the same."""

import numpy as np

from kvferry.backends.live.decoding.build import DecodeRunner
from kvferry.backends.needs import DecodeSizes
from kvferry.backends.world import Inputs
from kvferry.traces.cluster_answers import RecordedClusters
from kvferry.traces.selections import SelectionStream


def chosen_in(runner: DecodeRunner, sizes: DecodeSizes) -> Inputs:
    """Returns the selections, where every step selected equally many KV blocks, and the answers about clusters."""
    said = RecordedClusters(runner.said) if runner.said else None
    return Inputs(selections=selections_of(runner, sizes), clusters=said)


def selections_of(runner: DecodeRunner, sizes: DecodeSizes) -> SelectionStream | None:
    """Returns the selections, step by step, sequence after sequence: a replay with equally many sequences gives each
    its own. None where selections differ in length."""
    chosen, layers = runner.chosen, runner.choosing
    steps = len(chosen) // layers if layers else 0
    if not steps or len({one.ids.shape for one in chosen[: steps * layers]}) != 1:
        return None

    def by_sequence(parts: list[np.ndarray | None]) -> np.ndarray:
        shaped = np.stack([one for one in parts[: steps * layers] if one is not None])
        return np.concatenate(np.moveaxis(shaped.reshape(steps, layers, *shaped.shape[1:]), 2, 0))

    ids, scores = by_sequence([one.ids for one in chosen]), by_sequence([one.scores for one in chosen])
    return SelectionStream(ids, sizes.layout.blocks, scores=scores)
