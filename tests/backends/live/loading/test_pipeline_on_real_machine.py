"""The pipeline of the modelled world, unchanged, in the real one: threads, a paced cloud, and a model that sleeps."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvferry.backends.live.engine.link import Fetched
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.engine.thread_work import Moving
from kvferry.machine.ops import Advance, Chunks, Decompress, KvRef, Op, Project
from kvferry.machine.span import Span
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.reuse import Admission, ContextRequest, context_reuse
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.scenarios.loader import load_model

MODEL = load_model("tiny")
T, L, H = 6, MODEL.layers, MODEL.kv_heads
CHUNK_BYTES, OP_S, BYTES_PER_S = 1000, 5e-4, 2e6


class Model:
    """Takes a while for everything, and keeps what KV it has."""

    def __init__(self) -> None:
        self.kv: set[tuple[int, int, int]] = set()
        self.computed: list[tuple[int, int]] = []
        self.complete_when_read: list[bool] = []
        self._lock = threading.Lock()

    def run(self, op: Op, request: int | None, inputs: Any = ()) -> None:
        time.sleep(OP_S)
        if isinstance(op, Project):
            assert op.kv is not None
            self.computed.append((op.kv.token_chunk, op.kv.layer))
            self._put(op.kv.token_chunk, op.kv.layer, range(H))
        elif isinstance(op, Advance):
            # Attention reads the KV of all that came before, whichever way that came.
            assert op.kv is not None
            assert all((t, op.kv.layer, h) in self.kv for t in range(op.kv.token_chunk) for h in range(H))
        else:
            self.complete_when_read.append(len(self.kv) == T * L * H)

    def place(self, kv: KvRef, to: str, request: int | None, inputs: Sequence[Any]) -> None:
        for chunk in inputs[0]:
            t, l, h = np.unravel_index(chunk, (T, L, H))
            self._put(int(t), int(l), [int(h)])

    def _put(self, t: int, l: int, heads: Sequence[int]) -> None:
        with self._lock:
            self.kv.update((t, l, h) for h in heads)


class Cloud:
    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes:
        for _ in chunks.ids:
            if moving.wait(CHUNK_BYTES / BYTES_PER_S):
                return b""
            moving.moved(CHUNK_BYTES)
        return bytes(CHUNK_BYTES * len(chunks.ids))


def decode(op: Decompress, request: int | None, inputs: Sequence[Any]) -> tuple[int, ...]:
    fetched = inputs[0]
    assert isinstance(fetched, Fetched)
    assert len(fetched.payload) == CHUNK_BYTES * len(fetched.chunks.ids)
    return fetched.chunks.ids


@pytest.mark.parametrize("system", ["ferry", "sparkv", "strong-hybrid", "cachegen", "stream-only", "local-prefill"])
def test_a_request_over_a_stored_context(system: str) -> None:
    context = Context(
        sequence=0,
        model=MODEL,
        coupling="all_heads",
        tokens=np.full(T, 8),
        active_blocks=np.ones((T, L, H), dtype=int),
        encoded_bytes=np.full((T, L, H), float(CHUNK_BYTES)),
    )
    request = ContextRequest(
        request=0,
        context=context,
        problem=context.problem(lambda op: np.full(np.shape(op.tokens), OP_S)),
        question_tokens=1,
        output_tokens=3,
        outlook=Outlook(bytes_per_s=BYTES_PER_S, rtt_s=0.0),
    )
    model, spans = Model(), list[Span]()
    with LiveMachine(
        "device", model, capacity_bytes=1e9, fetcher=Cloud(), decode=decode, place=model.place, tell=spans.append
    ) as machine:
        loader = SYSTEMS[system].new_loader()
        story = context_reuse(machine, request, loader, Admission(machine), Pace())
        (record,) = machine.env.run(until=machine.env.process(story))
        assert machine.memory.used_bytes == 0
    assert record.units_computed + record.units_streamed == T * L
    assert (record.units_computed > 0) == (system not in ("cachegen", "stream-only"))
    assert (record.units_streamed > 0) == (system != "local-prefill")
    # Both paths may bring a unit in a race; no unit is missing when the question is read.
    assert len(set(model.computed)) == len(model.computed) >= record.units_computed
    assert model.complete_when_read == [True] * 3
    assert record.arrival_s < record.loaded_s < record.first_token_s < record.token_times_s[-1]
    link_bytes = sum(span.n_bytes for span in spans if span.resource == "link")
    assert record.streamed_bytes <= link_bytes <= record.streamed_bytes + record.wasted_bytes
