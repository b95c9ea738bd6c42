"""Choices of an index while a batch decodes."""

from collections.abc import Sequence
from typing import Any

import torch

from kvferry.backends.live.decoding.hidden_state import HiddenState
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.indexes.retrieval_head import RetrievalHeadKeys
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.machine.answers import Answer, Selection
from kvferry.machine.ops import Retrieve, Select, Selecting
from kvferry.specs.errors import KvferryError
from kvferry.traces.cluster_answers import Place, place_of


class Choices(RegisteredOps):
    """Keeps selections of KV blocks in the order in which they were made: step after step, layer after layer, or one
    for all layers. Answers about clusters are kept by place."""

    def __init__(self, index: Index | None, state: HiddenState) -> None:
        self._index, self._state = index, state
        self.selections: list[Selection] = []
        self.layers: set[int] = set()
        self.of_clusters: dict[Place, Answer] = {}

    @runs(Select)
    def _select(self, op: Select, inputs: Sequence[Any]) -> Selection:
        """Chooses with the hidden state below some layer in place of the one below `op.layer`."""
        index = self._index_for(op)
        return self._best(op, index, index.scores(op.layer, self._state.queries(op.layer), op.heads))

    @runs(Retrieve)
    def _retrieve(self, op: Retrieve, inputs: Sequence[Any]) -> Selection:
        """Chooses by the token's id, before the first layer computes."""
        self._state.check(op, op.layer)
        head = self._index_for(op)
        if not isinstance(head, RetrievalHeadKeys):
            raise KvferryError("one choice for all layers takes a retrieval head")
        return self._best(op, head, head.shares(op.heads))

    def _index_for(self, op: Selecting) -> Index:
        """Returns the index, which has enough to choose from."""
        if self._index is None:
            raise KvferryError("nothing can be selected without an index")
        blocks = self._index.blocks(op.layer)
        if op.k > blocks:
            raise KvferryError(f"{op.k} groups are to be selected, {blocks} are on storage")
        return self._index

    def _best(self, op: Selecting, index: Index, scores: torch.Tensor) -> Selection:
        best, ids = scores.topk(op.k, dim=-1)
        if not index.spec.clusters:
            # In the order of the file, which is the order of reading and of entering the reuse buffer.
            ids, order = ids.sort(-1)
            best = best.gather(-1, order)
        selection = Selection(ids.to(torch.int32).cpu().numpy(), scores=best.float().cpu().numpy())
        if isinstance(op, Select) and index.spec.clusters:
            self.of_clusters[place_of(op)] = selection
        else:
            self.selections.append(selection)
            self.layers.add(op.layer)
        return selection
