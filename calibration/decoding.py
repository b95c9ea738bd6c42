"""What ops of decoding with KV on storage take, in place: the pipeline decodes a real model, its KV in a real file.

Prompts are not computed: noise lies where their KV belongs, as what an op takes does not depend on it.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.backends.live.decoding.blocks import source
from kvferry.backends.live.decoding.indexes.low_rank_keys import LowRankKeys
from kvferry.backends.live.decoding.layers import KnownPrefill, Layers
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.model.whole_prefill import PrefilledLayer
from kvferry.backends.live.storage.direct_storage import Storage
from kvferry.backends.world import DecodeSizes
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.task import Task
from kvferry.machine.machine import Machine
from kvferry.machine.span import Span
from kvferry.specs.model import ModelSpec

# Steps that fill the reuse buffers and warm up; then whole cycles of the rolling buffer are measured.
_WARM_STEPS, _CYCLES = 2, 2


class Point(NamedTuple):
    batch: int
    context: int
    selected_tokens: int


class DecodeFlow(Protocol):
    """The pipelines' way of decoding, handed in as backends do not know it."""

    def __call__(
        self, model: ModelSpec, *, batch: int, context: int, selected_tokens: int
    ) -> tuple[DecodeSizes, Callable[[Machine, int], Generator[Any, Any, None]]]:
        """Sizes, and what decodes so many steps on a machine."""
        ...


def tasks(rig: Rig, folder: Path, flow: DecodeFlow) -> Iterator[Task]:
    for point in grid(rig):
        name = "decode: {} sequences after {}, {} tokens selected".format(*point)
        yield Task(name, lambda p=point: decoding(rig, folder, flow, p))  # type: ignore[misc]


def grid(rig: Rig) -> list[Point]:
    """For every batch, every context with one selection and every selection after one context; batches that take too
    large a file are left out."""
    settings = rig.settings
    contexts, selected = settings.decode_contexts, settings.decode_selected
    room = settings.decode_file_bytes // (contexts[-1] * rig.spec.kv_bytes_per_token)
    batches = [batch for batch in settings.decode_batches if batch <= room] or [1]
    after, chosen = contexts[len(contexts) // 2], selected[1]
    pairs = sorted({(context, chosen) for context in contexts} | {(after, s) for s in selected})
    return [Point(batch, *pair) for batch in batches for pair in pairs]


def decoding(rig: Rig, folder: Path, flow: DecodeFlow, point: Point) -> list[Measurement]:
    """Seconds of each op: its mean over the layers, and over the steps of a group, of which the last does more."""
    sizes, decode = flow(rig.spec, **point._asdict())
    steps = _WARM_STEPS + _CYCLES * sizes.group_tokens
    spans: list[Span] = []
    path = folder / "decode-probe.bin"
    with ExitStack() as stack:
        storage = stack.enter_context(Storage.create(path, sizes.layout.file_bytes, depth=32))
        stack.callback(path.unlink)
        machine = LiveMachine(
            "device",
            filled(rig, sizes, point, 1 + steps),
            capacity_bytes=1e15,
            storage=storage,
            source=source,
            main="main",
            tell=spans.append,
        )
        with machine:
            machine.env.run(until=machine.env.process(decode(machine, 1 + steps)))
    units = point.batch * sizes.heads * (sizes.selected or 0)
    at = {
        "batch": float(point.batch),
        "keys": float(point.context),
        "context": point.selected_tokens + (sizes.group_tokens + 1) / 2,
        "units": float(units),
    }
    taken = step_seconds(spans)[_WARM_STEPS:]
    cycles = {label: np.reshape([step[label] for step in taken], (_CYCLES, -1)).mean(1) for label in OPS.values()}
    return [
        Measurement(what=what, unit="s", values=tuple(cycles[label].tolist()), at=at) for what, label in OPS.items()
    ]


# Measurements by the op's label in spans.
OPS = {
    "select": "Select",
    "bookkeep": "Bookkeep",
    "decode_attention": "DecodeAttention",
    "feed_forward": "FeedForward",
    "output_head": "OutputHead",
}


def filled(rig: Rig, sizes: DecodeSizes, point: Point, output: int) -> Layers:
    model, spec, group = rig.model, rig.spec, sizes.group_tokens
    assert sizes.index is not None
    format = BlockFormat(
        sizes.layout, group_tokens=group, kv_heads=spec.kv_heads, head_dim=spec.head_dim, dtype=model.dtype
    )
    adapters = torch.randn(spec.layers, spec.kv_heads, spec.head_dim, sizes.rank, device=model.device)
    index = LowRankKeys(
        adapters.to(model.dtype), sizes.index, sequences=point.batch, room_tokens=sizes.layout.units * group
    )
    return Layers(
        model,
        [rig.context(point.context, n) for n in range(point.batch)],
        format,
        output=output,
        slots=sizes.slots,
        index=index,
        known=noise(rig, point),
        # One token over and over: steps select much the same, as they do in texts.
        follow=[[n] * output for n in range(point.batch)],
    )


def noise(rig: Rig, point: Point) -> KnownPrefill:
    """Stands in for what prompts leave in a layer: nothing is computed."""
    model, spec = rig.model, rig.spec

    def of_layer(layer: int) -> PrefilledLayer:
        # One sequence's do for all.
        sides = torch.randn(2, 1, spec.kv_heads, point.context, spec.head_dim, device=model.device)
        keys, values = sides.to(model.dtype).expand(-1, point.batch, -1, -1, -1)
        hidden = torch.zeros(point.batch, 1, spec.hidden, dtype=model.dtype, device=model.device)
        return PrefilledLayer(hidden, keys.repeat_interleave(spec.query_heads // spec.kv_heads, 1), keys, values)

    return of_layer


def step_seconds(spans: Sequence[Span]) -> list[dict[str, float]]:
    """By step of decoding, mean seconds of each op, from when it could have begun until its end: with the waiting for
    reads they add up to the step.

    What lies between ops, handing over and looking up in reuse buffers, is in the op that comes after; handing over a
    read is in Bookkeep, which it follows.
    """
    reads = sorted((span for span in spans if span.label == "Read"), key=lambda span: span.start_s)
    begun_s, arrived_s = (np.sort([getattr(read, side) for read in reads]) for side in ("start_s", "end_s"))
    computed = sorted((span for span in spans if span.resource != "storage"), key=lambda span: span.start_s)
    first = next(n for n, span in enumerate(computed) if span.label == "OutputHead")
    steps: list[dict[str, list[float]]] = [defaultdict(list)]
    # The first step waits for what prefill wrote.
    written = [span.end_s for span in spans if span.label == "Write" and span.end_s <= computed[first + 1].start_s]
    could_s = max([computed[first].end_s, *written])
    for span in computed[first + 1 :]:
        end_s = span.end_s
        if span.label in ("Select", "DecodeAttention"):
            # The last read that had arrived when it began.
            arrived = np.searchsorted(arrived_s, span.start_s, side="right") - 1
            could_s = max(could_s, arrived_s[arrived] if arrived >= 0 else 0.0)
        if span.label == "Bookkeep":
            handed = np.searchsorted(begun_s, end_s)
            end_s = begun_s[handed] if handed < len(begun_s) else end_s
        steps[-1][span.label].append(end_s - could_s)
        could_s = end_s
        if span.label == "OutputHead":
            steps.append(defaultdict(list))
    return [{label: float(np.mean(seconds)) for label, seconds in step.items()} for step in steps[:-1]]
