"""How long the ops of decoding with KV on storage take: the pipeline decodes a real model, its KV in a real file.

Prompts are not computed. Noise stands for their KV, as the time of an op does not depend on it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kvferry.backends.live.decoding.build import format_of
from kvferry.backends.live.decoding.indexes.low_rank_keys import LowRankKeys
from kvferry.backends.live.decoding.layers import KnownPrefill, Layers
from kvferry.backends.live.decoding.written import source
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.task import Task
from kvferry.disk.direct_storage import Storage
from kvferry.machine.op import Op
from kvferry.machine.ops import Bookkeep, DecodeAttention, FeedForward, OutputHead, Select
from kvferry.machine.span import Span
from kvferry.model.whole_prefill import PrefilledLayer
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.policies.decode import scored_keys
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.sim.costs.op_rules import rule_of
from kvferry.specs.model import ModelSpec

# Groups, compression of the keys, and slots per selected group: those of `scenarios/kvswap/live.yaml`, whose models are
# small.
_GROUP_TOKENS, _COMPRESSION, _SLOTS = 8, 8, 2
# The first steps fill the reuse buffers, whose memory is new, and take up to twice as long; then whole cycles of the
# rolling buffer are measured.
_WARM_STEPS, _CYCLES = 8, 2
# Tokens that prefill and the steps leave.
_OUTPUT = 1 + _WARM_STEPS + _CYCLES * _GROUP_TOKENS


class Point(NamedTuple):
    batch: int
    context: int
    selected_tokens: int


def tasks(rig: Rig, folder: Path) -> Iterator[Task]:
    for point in grid(rig):
        name = "decode: {} sequences after {}, {} tokens selected".format(*point)
        yield Task(name, lambda p=point: decoding(rig, folder, p))  # type: ignore[misc]


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


def decoding(rig: Rig, folder: Path, point: Point) -> list[Measurement]:
    """Seconds of each op: its mean over the layers, and over the steps of a group, the last of them longer."""
    plan = plan_at(rig.spec, point)
    spans: list[Span] = []
    path = folder / "decode-probe.bin"
    with ExitStack() as stack:
        storage = stack.enter_context(Storage.create(path, plan.file_bytes, depth=32))
        stack.callback(path.unlink)
        machine = LiveMachine(
            "device",
            layers_of(rig, plan, point),
            capacity_bytes=1e15,
            storage=storage,
            source=source,
            main="main",
            stream=rig.streams,
            tell=spans.append,
        )
        with machine:
            machine.env.run(until=machine.env.process(LockStepDecode(machine, plan).run(_OUTPUT)))
    at = {
        "batch": float(point.batch),
        "keys": float(point.context),
        "context": point.selected_tokens + (_GROUP_TOKENS + 1) / 2,
        "blocks": float(point.batch * plan.choice.heads * (plan.choice.selected or 0)),
    }
    taken = step_seconds(spans)[_WARM_STEPS:]
    cycles = {label: np.reshape([step[label] for step in taken], (_CYCLES, -1)).mean(1) for label in OPS.values()}
    return [
        Measurement(what=what, unit="s", values=tuple(cycles[label].tolist()), at=at) for what, label in OPS.items()
    ]


def measured_ops(*choosing: type[Op]) -> dict[str, str]:
    """Returns the ops whose seconds a decoding step gives, the ones that choose KV and those of every step: the label
    in spans by the name of the measured table."""
    ops: tuple[type[Op], ...] = (*choosing, DecodeAttention, FeedForward, OutputHead)
    return {rule_of(op).table: op.label for op in ops}


OPS = measured_ops(Select, Bookkeep)


def plan_at(model: ModelSpec, point: Point) -> DecodePlan:
    """How KVSwap decodes at this point."""
    roles = Roles(
        selector=scored_keys.LowRankKeys(selected_tokens=point.selected_tokens, compression=_COMPRESSION),
        residency=Reuse(slots=_SLOTS * -(-point.selected_tokens // _GROUP_TOKENS)),
        layout=TokenGroups(group_tokens=_GROUP_TOKENS),
    )
    return plan_of(roles, model, sequences=point.batch, context=point.context, output=_OUTPUT, budget_bytes=inf)


def layers_of(rig: Rig, plan: DecodePlan, point: Point) -> Layers:
    """The model's layers, with noise for prompts and for the adapters of the compressed keys."""
    model, spec = rig.model, rig.spec
    assert plan.keys.index is not None
    format = format_of(plan, model.dtype)
    adapters = torch.randn(spec.layers, spec.kv_heads, spec.head_dim, plan.keys.rank, device=model.device)
    index = LowRankKeys(
        adapters.to(model.dtype), plan.keys.index, sequences=point.batch, room_tokens=plan.layout.blocks * _GROUP_TOKENS
    )
    return Layers(
        model,
        [rig.context(point.context, n) for n in range(point.batch)],
        format,
        output=_OUTPUT,
        slots=plan.staying.slots,
        index=index,
        known=noise(rig, point),
        # The same token at every step: steps select much the same, as they do in texts.
        follow=[[n] * _OUTPUT for n in range(point.batch)],
    )


def noise(rig: Rig, point: Point) -> KnownPrefill:
    """Stands for the KV that prompts leave in a layer."""
    model, spec = rig.model, rig.spec

    def of_layer(layer: int) -> PrefilledLayer:
        # All sequences share one sequence's.
        sides = torch.randn(2, 1, spec.kv_heads, point.context, spec.head_dim, device=model.device)
        keys, values = sides.to(model.dtype).expand(-1, point.batch, -1, -1, -1)
        hidden = torch.zeros(point.batch, 1, spec.hidden, dtype=model.dtype, device=model.device)
        return PrefilledLayer(hidden, keys.repeat_interleave(spec.query_heads // spec.kv_heads, 1), keys, values)

    return of_layer


def step_seconds(spans: Sequence[Span]) -> list[dict[str, float]]:
    """By step of decoding, mean seconds of each op, from when it could have begun until its end: with the waiting for
    reads they add up to the step.

    What lies between ops, handing over and looking up in reuse buffers, is in the op that comes after; handing over a
    read, or a copy from the host, is in Bookkeep, which it follows.
    """
    reads = sorted((span for span in spans if span.label in ("Read", "Copy")), key=lambda span: span.start_s)
    begun_s, arrived_s = (np.sort([getattr(read, side) for read in reads]) for side in ("start_s", "end_s"))
    computed = sorted(
        (span for span in spans if span.resource not in ("storage", "copy")), key=lambda span: span.start_s
    )
    first = next(n for n, span in enumerate(computed) if span.label == OutputHead.label)
    steps: list[dict[str, list[float]]] = [defaultdict(list)]
    # The first step waits for what prefill wrote.
    written = [span.end_s for span in spans if span.label == "Write" and span.end_s <= computed[first + 1].start_s]
    could_s = max([computed[first].end_s, *written])
    for span in computed[first + 1 :]:
        end_s = span.end_s
        if span.label in (Select.label, DecodeAttention.label):
            # The last read that had arrived when it began.
            arrived = np.searchsorted(arrived_s, span.start_s, side="right") - 1
            could_s = max(could_s, arrived_s[arrived] if arrived >= 0 else 0.0)
        if span.label == Bookkeep.label:
            handed = np.searchsorted(begun_s, end_s)
            end_s = begun_s[handed] if handed < len(begun_s) else end_s
        steps[-1][span.label].append(end_s - could_s)
        could_s = end_s
        if span.label == OutputHead.label:
            steps.append(defaultdict(list))
    return [{label: float(np.mean(seconds)) for label, seconds in step.items()} for step in steps[:-1]]
