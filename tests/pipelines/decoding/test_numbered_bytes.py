"""Every stored entry with its own number, in the modelled world: what a step reads of a layer is what it wants of it.

The modelled file is as large as the real one, and holds at every byte the number of its layer, row and block, as the
layout placed them. Attention over such numbers in the real world: ``tests/backends/live/decoding``.
"""

from typing import Any

import numpy as np
import pytest
from tiny import DECODING, tiny

from kvferry.layouts.layout import Layout
from kvferry.layouts.pieces import Reads
from kvferry.pipelines.decoding import fetching
from kvferry.pipelines.decoding.state import DecodeState
from kvferry.pipelines.run import run_scenario

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "groups": ("kvswap", {"policies.selected_tokens": 16}),
    "groups, reused in part": ("kvswap", {"policies.selected_tokens": 16, "policies.slots": 3}),
    "groups, of the host": ("kvswap", {"policies.selected_tokens": 16, "policies.placement": "host"}),
    "entries": ("infinigen", {}),
    "values alone": ("shadowkv", {}),
    "pages": ("quest", {"policies.placement": "storage"}),
    "one choice for all layers": ("specontext", {"policies.placement": "storage"}),
    "pairs": ("dynakv", {}),
    "pools": ("dynakv", {"policies.layout": "cluster-pools"}),
    "one behind the other": ("pqcache", {"policies.layout": "cluster-by-cluster"}),
    "as they came": ("dynakv", {"policies.layout": "sequence-order"}),
    "made anew": ("clusterkv", {"policies.layout": "cluster-pools", "policies.placement": "storage"}),
}


class Numbered:
    """Follows a run: ``wrong`` says what was read of other places than were wanted, ``read`` how many blocks were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wrong: list[str] = []
        self.read, self.layers, self.rows = 0, set[int](), set[int]()
        really = fetching.to_read

        def to_read(state: DecodeState, layer: int) -> Reads:
            found = really(state, layer)
            self._compare(state, layer, found)
            return found

        monkeypatch.setattr(fetching, "to_read", to_read)
        for how in ("foreseeable", "foreseeable_by_stages"):
            monkeypatch.setattr(f"kvferry.pipelines.decoding.decode.{how}", lambda plan, foresight: False)

    def _compare(self, state: DecodeState, layer: int, reads: Reads) -> None:
        found = state.layers[layer].found
        assert found is not None
        rows, blocks = (np.asarray(part) for part in (found.wanted.places if found.slots is None else found.to_move))
        file = np.full(state.plan.file_bytes, -1)
        of_layer = state.plan.layout.rows
        for row, block, at, n_bytes in entries(state, layer):
            file[at : at + n_bytes] = (layer * of_layer + row) * state.plan.layout.blocks + block
        wanted = ((layer * of_layer + rows) * state.plan.layout.blocks + blocks).tolist()
        read = [file[at : at + n] for at, n in zip(*reads.ranges, strict=True)]
        if reads.pieces is None:
            # One range for each, in order, and nothing else in it.
            same = [np.unique(one).tolist() for one in read] == [[number] for number in wanted]
        else:
            # Ranges are of whole storage blocks, and neighbours lie in them; the pieces say what is taken of them.
            data = np.concatenate([*read, []])
            taken = [data[at : at + n] for at, n in zip(reads.ats, reads.pieces.lengths, strict=True)]
            there = file[np.isin(file, wanted)]
            same = np.array_equal(np.sort(np.concatenate([*taken, []])), np.sort(there))
        if not same:
            self.wrong.append(f"layer {layer}: not what is wanted, {wanted}")
        self.read += len(wanted)
        self.layers.add(layer)
        self.rows |= set(rows.tolist())


def entries(state: DecodeState, layer: int) -> list[tuple[int, int, int, int]]:
    """Row, block, offset and bytes of everything that a layer has in the file."""
    pieces = state.blocks.whole(layer)
    if pieces is not None:
        return list(
            zip(*(of.tolist() for of in (pieces.rows, pieces.blocks, pieces.offsets, pieces.lengths)), strict=True)
        )
    layout = state.plan.layout
    assert isinstance(layout, Layout)
    rows, blocks = (of.ravel() for of in np.indices((layout.rows, layout.blocks)))
    offsets, lengths = layout.ranges(layer, rows, blocks)
    return list(zip(rows.tolist(), blocks.tolist(), offsets.tolist(), lengths.tolist(), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_is_what_was_wanted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, settings = WAYS[way]
    run = Numbered(monkeypatch)
    changes = {"workload.context": 72, "workload.output": 8, **settings}
    scenario = tiny(DECODING, *(f"{key}={value}" for key, value in changes.items()), system=system, budget=None)
    run_scenario(scenario)
    assert run.wrong == []
    assert run.read > 0
    assert run.layers == set(range(scenario.model.layers))
