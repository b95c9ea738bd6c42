"""A processor that computes while KV streams in, either or both, for as long as is measured.

A load of a pipeline (``pipelines.loading``) fetches every chunk once and ends. Here layers are fetched and placed over
and over, so that the stream lasts as long as the computing beside it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simpy

from kvferry.backends.live.engine.link import FETCHES_AHEAD, Fetched
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.loading.runner import Prompt, SessionRunner
from kvferry.calibration.measured_model import Rig, fill
from kvferry.cloud.client import CloudClient
from kvferry.cloud.server_process import ServerProcess
from kvferry.cloud.store import StoredModel, StoreHeader, StoreWriter
from kvferry.codecs import codec
from kvferry.codecs.pool import CodecPool
from kvferry.machine.ops import Advance, Chunks, Decompress, KvRef, Op, Project
from kvferry.machine.span import Span
from kvferry.machine.ticket import Ticket
from kvferry.model.session import Session
from kvferry.specs.link import LinkSpec
from kvferry.traces.chunks import causal_blocks

# Seconds of streaming alone.
_WINDOW_S = 0.5
# The session that receives the streamed KV.
_STREAMED = 0


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Seconds of the computed column (0: none was), of every decoded piece and of every copy into the session, and the
    shares of the phase in which decoder and link were busy."""

    compute_s: float
    pieces_s: tuple[float, ...]
    copies_s: tuple[float, ...]
    decompress_busy: float
    link_busy: float


class Load:
    """Use ``loading``, which opens and closes what it needs."""

    def __init__(
        self, machine: LiveMachine, runner: SessionRunner, rig: Rig, spans: list[Span], tokens: int, decodes: bool
    ) -> None:
        self._machine, self._runner, self._rig, self._spans = machine, runner, rig, spans
        self._tokens, self._decodes = tokens, decodes
        # The session whose column is computed: a new one each time.
        self._request = _STREAMED + 1
        self._enough = False

    def phase(self, compute: bool = False, stream: bool = False) -> Phase:
        """Compute a column of the model, or wait a while; with `stream`, KV streams in all the time."""
        ops, request = self._column() if compute else ([], 0)
        env = self._machine.env
        began_s, ended_s = env.run(until=env.process(self._phase(ops, request, stream)))
        spans = [span for span in self._spans if span.end_s > began_s and span.start_s < ended_s]
        self._spans.clear()
        labels = {label: [span for span in spans if span.label == label] for label in ("Decompress", "Copy", "Fetch")}
        return Phase(
            compute_s=sum(s.end_s - s.start_s for s in spans if s.request == request) if compute else 0.0,
            pieces_s=tuple(span.end_s - span.start_s for span in labels["Decompress"]),
            copies_s=tuple(span.end_s - span.start_s for span in labels["Copy"]),
            decompress_busy=_covered(labels["Decompress"], began_s, ended_s),
            link_busy=_covered(labels["Fetch"], began_s, ended_s),
        )

    def _phase(self, ops: Sequence[Op], request: int, stream: bool) -> simpy.events.ProcessGenerator:
        env = self._machine.env
        self._enough = False
        streaming = env.process(self._stream()) if stream else None
        yield env.timeout(_WINDOW_S / 10)  # in full swing
        began_s = env.now
        if ops:
            # One after the other, as loads submit them: after a wait, the thread gets a core sooner than one that ran
            # on.
            for op in ops:
                yield self._machine.submit(op, request=request)
        else:
            yield env.timeout(_WINDOW_S)
        while stream and self._decodes and not self._came(began_s):
            # On a busy machine not one piece may have come by then.
            yield env.timeout(_WINDOW_S / 10)
        ended_s = env.now
        self._enough = True
        if streaming is not None:
            yield streaming
        return began_s, ended_s

    def _came(self, began_s: float) -> bool:
        """Whether a piece was decoded since then, and one put into the session."""
        return {"Decompress", "Copy"} <= {span.label for span in self._spans if span.end_s > began_s}

    def _stream(self) -> simpy.events.ProcessGenerator:
        machine, spec = self._machine, self._rig.spec
        values = 2 * self._tokens * spec.head_dim * spec.kv_heads
        under_way: deque[Ticket] = deque()
        layer = 0
        while not self._enough:
            first = layer * spec.kv_heads
            chunks = Chunks(0, tuple(range(first, first + spec.kv_heads)), 0.0)
            done = machine.fetch(chunks, request=_STREAMED)
            if self._decodes:
                done = machine.submit(Decompress(values), after=(done,), on="decompress", request=_STREAMED)
                kv = KvRef(0, 0, layer, None, values * spec.kv_value_bytes)
                done = machine.move(kv, "host", "device", after=(done,), request=_STREAMED)
            under_way.append(done)
            if len(under_way) >= FETCHES_AHEAD:
                yield under_way.popleft()
            layer = (layer + 1) % spec.layers
        yield machine.env.all_of(under_way)

    def _column(self) -> tuple[list[Op], int]:
        """The ops of a chunk after one that is present, in a session of its own."""
        rig, layers = self._rig, self._rig.spec.layers
        self._runner.close(self._request)
        self._request += 1
        session = self._runner.session(self._request)
        fill(session, 1)
        tokens = self._tokens
        blocks = causal_blocks(tokens, tokens) * rig.spec.kv_heads
        ops: list[Op] = []
        for l in range(layers):
            kv = KvRef(0, 1, l, None, 0.0)
            ops += [Project(tokens, kv), Advance(tokens, blocks, tokens, kv)]
        return ops, self._request


@contextmanager
def loading(rig: Rig, folder: Path, codec_name: str | None, tokens: int, bytes_per_s: float) -> Iterator[Load]:
    """A stream from a chunk server, and a column to compute, in token chunks of `tokens`. Without a codec nothing is
    decoded."""
    prompt = Prompt(rig.context(2 * tokens), rig.context(1, 1), 1)
    runner = SessionRunner(rig.model, lambda request: prompt, chunk_tokens=tokens)
    spans: list[Span] = []
    link = LinkSpec(rate_bytes_per_s=bytes_per_s)
    path = _store(rig, folder, codec_name or "fp16", tokens)
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(path, link))
        client = stack.enter_context(CloudClient(server.url, names=lambda sequence: path.stem))
        client.index(path.stem)
        pool = stack.enter_context(CodecPool(rig.settings.workers))

        def decode(op: Decompress, request: int | None, inputs: Sequence[Any]) -> Any:
            fetched: Fetched = inputs[0]
            return fetched, pool.decode(codec.split(fetched.payload)).result()

        def place(kv: KvRef, to: str, request: int | None, inputs: Sequence[Any]) -> None:
            fetched, decoded = inputs[0]
            session = runner.session(_STREAMED)
            session.drop(kv.token_chunk, kv.layer)
            for chunk, (keys, values) in zip(fetched.chunks.ids, decoded, strict=True):
                runner.load(_STREAMED, chunk, keys, values)

        machine = stack.enter_context(
            LiveMachine(
                "device",
                runner,
                capacity_bytes=1.0,
                fetcher=client,
                decode=decode,
                decompress_workers=rig.settings.workers,
                place=place,
                stream=rig.streams,
                tell=spans.append,
            )
        )
        load = Load(machine, runner, rig, spans, tokens, codec_name is not None)
        load.phase(compute=True, stream=True)  # warm
        yield load


def _store(rig: Rig, folder: Path, codec_name: str, tokens: int) -> Path:
    """A store of one token chunk, whose layers all hold the KV of the model's first."""
    spec = rig.spec
    path = folder / f"load-{codec_name}-{tokens}.kvs"
    model = StoredModel(
        name="probe",
        fingerprint="none",
        tokenizer="none",
        layers=spec.layers,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
    )
    header = StoreHeader.at_all_levels(model, [tokens], codec_name)
    chunks = piece(rig, codec_name, tokens)
    with StoreWriter(path, header, [0] * tokens) as writer:
        for l in range(spec.layers):
            for h, data in enumerate(chunks):
                for level in range(header.levels):
                    writer.put(0, l, h, data, level)
    return path


def piece(rig: Rig, name: str, tokens: int) -> list[bytes]:
    """Encoded chunks of all heads of the model's first layer, of one token chunk."""
    session = Session(rig.model, rig.context(tokens), chunk_tokens=tokens)
    session.project(0, 0)
    sides = (session.kv.chunk(0, 0, h) for h in range(session.kv.heads))
    return [codec.encode(name, keys.float().cpu().numpy(), values.float().cpu().numpy()) for keys, values in sides]


def _covered(spans: Sequence[Span], began_s: float, ended_s: float) -> float:
    """The share of the time between in which at least one span ran."""
    covered_s, reach_s = 0.0, began_s
    for span in sorted(spans, key=lambda span: span.start_s):
        covered_s += max(0.0, min(span.end_s, ended_s) - max(span.start_s, reach_s))
        reach_s = max(reach_s, span.end_s)
    return covered_s / (ended_s - began_s)
