"""How long the ops of decoding take where a retrieval head chooses for all layers: in place, as `decoding` has it.

KV lies in the host's memory, beside the processor's; what moves is what the head's choice over a real text makes move.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from math import inf
from pathlib import Path

import numpy as np
import torch

from kvferry.backends.live.decoding.build import format_of
from kvferry.backends.live.decoding.indexes.table import index_maker
from kvferry.backends.live.decoding.layers import Layers
from kvferry.backends.live.decoding.tiers import KvTiers
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.calibration.decoding import Point, grid, measured_ops, noise, step_seconds
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.task import Task
from kvferry.machine.ops import Bookkeep, Retrieve
from kvferry.machine.span import Span
from kvferry.model.decoder import Decoder
from kvferry.model.prompts import Prompts
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.specs.model import ModelSpec

# The first steps fill the slots and warm up.
_WARM_STEPS, _STEPS = 3, 12
_OUTPUT = 1 + _WARM_STEPS + _STEPS
OPS = measured_ops(Retrieve, Bookkeep)


def tasks(rig: Rig, folder: Path) -> Iterator[Task]:
    for point in grid(rig):
        name = "retrieval: {} sequences after {}, {} tokens selected".format(*point)
        yield Task(name, lambda p=point: retrieving(rig, p))  # type: ignore[misc]


def retrieving(rig: Rig, point: Point) -> list[Measurement]:
    """Seconds of each op: its mean over the layers, step by step. Raises InputError for a model without a head."""
    plan = plan_at(rig.spec, point)
    spans: list[Span] = []
    tiers = KvTiers(plan.layout.file_bytes, rig.copies, plan.model.layers, layers=True)
    with ExitStack() as stack:
        machine = stack.enter_context(
            LiveMachine(
                "device",
                layers_of(rig, plan, point, tiers),
                capacity_bytes=1e15,
                host_bytes=inf,
                source=tiers.source,
                place=tiers.place,
                main="main",
                stream=rig.streams,
                tell=spans.append,
            )
        )
        machine.env.run(until=machine.env.process(LockStepDecode(machine, plan).run(_OUTPUT)))
    at = {
        "batch": float(point.batch),
        "keys": point.context + (_OUTPUT + _WARM_STEPS) / 2,
        "context": point.selected_tokens + 1.0,
        "blocks": float(point.batch * plan.choice.heads * (plan.choice.selected or 0)),
    }
    taken = step_seconds(spans)[_WARM_STEPS:]
    # In pairs, as repetitions of a point are means themselves.
    pairs = {label: np.reshape([step[label] for step in taken], (-1, 2)).mean(1) for label in OPS.values()}
    return [Measurement(what=what, unit="s", values=tuple(pairs[label].tolist()), at=at) for what, label in OPS.items()]


def plan_at(model: ModelSpec, point: Point) -> DecodePlan:
    """How SpeContext decodes at this point, all layers being away."""
    policies = {"selected_tokens": point.selected_tokens, "placement": "host"}
    roles = DECODE_SYSTEMS["specontext"].with_policies(policies).roles
    return plan_of(roles, model, sequences=point.batch, context=point.context, output=_OUTPUT, budget_bytes=inf)


def layers_of(rig: Rig, plan: DecodePlan, point: Point, tiers: KvTiers) -> Layers:
    """The model's layers, with noise for the KV of prompts. The head reads what they say."""
    model = rig.model
    assert plan.keys.index is not None
    named = model.config.name_or_path
    prompts = Prompts(Path(named) if named else None, rig.spec.vocabulary, None, 0)
    texts = [prompts.tokens(n, point.context, _OUTPUT) for n in range(point.batch)]
    index = index_maker(plan.keys.index.kind)(
        Decoder(model),
        torch.zeros((1, 1), dtype=torch.long, device=model.device),
        plan.keys.index,
        sequences=point.batch,
        room_tokens=plan.layout.blocks * plan.choice.group_tokens,
    )
    return Layers(
        model,
        [context for context, _ in texts],
        format_of(plan, model.dtype),
        output=_OUTPUT,
        slots=plan.staying.slots,
        index=index,
        known=noise(rig, point),
        follow=[said for _, said in texts],
        tiers=tiers,
    )
