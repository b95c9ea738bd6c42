"""Prices what a run's prefill and some of its steps asked for on another device.

What is chosen, found in buffers and read does not hang on speed, and the plan stays: one run serves for all.
"""

from collections.abc import Sequence

import numpy as np

from kvferry.machine.ops import Op
from kvferry.pipelines.decoding.noted import Noted, Notes
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Parts
from kvferry.pipelines.decoding.queue_work import QueueWork
from kvferry.pipelines.decoding.timetable import Step, timed
from kvferry.sim.storage import commands_of
from kvferry.specs.storage import StorageSpec
from kvferry.specs.tier import Tier


class Replay:
    """Times what was noted of a run with this plan. Its storage, if any, says of which commands reads and writes are
    made."""

    def __init__(self, noted: Noted, plan: DecodePlan, storage: StorageSpec | None) -> None:
        self._prefill, self._steps = (_List(notes, plan, storage) for notes in (noted.prefill, noted.steps))

    def seconds(self, queues: QueueWork) -> tuple[float, float]:
        """Returns what prefill and the noted steps take on a device."""
        return self._prefill.all_s(queues), self._steps.awaited_s(queues)


class _List:
    """Work in order, made ready to be timed many times."""

    def __init__(self, notes: Notes, plan: DecodePlan, storage: StorageSpec | None) -> None:
        self._plan = plan
        self._known: dict[object, Sequence[tuple[float, float]]] = {}
        self._steps = [Step(None, entry.after, entry.awaited) for entry in notes.entries]
        self._last = max((n for n, step in enumerate(self._steps) if step.awaited), default=-1)
        # Ops, or the lengths of a move's commands and its tiers.
        self._works: list[Op | tuple[np.ndarray, Tier, Tier]] = []
        for entry in notes.entries:
            if isinstance(entry.work, Op):
                self._works.append(entry.work)
            else:
                extents = entry.work.extents
                lengths = extents.arrays[1] if storage is None else commands_of(extents, storage)[1]
                self._works.append((lengths, entry.work.source, entry.work.to))

    def all_s(self, queues: QueueWork) -> float:
        return max((end_s for _, end_s in self._times(queues)), default=0.0)

    def awaited_s(self, queues: QueueWork) -> float:
        """Returns when the last thing has ended that was waited for."""
        return self._times(queues)[self._last][1] if self._last >= 0 else 0.0

    def _times(self, queues: QueueWork) -> Sequence[tuple[float, float]]:
        parts = tuple(self._parts(work, queues) for work in self._works)
        # Many a device differs in prefill alone, or in steps.
        key = parts, tuple(queues.beside.items()), tuple(queues.beside_processor.items())
        if key not in self._known:
            times = timed(self._steps, parts, queues.beside, beside_processor=queues.beside_processor)
            self._known[key] = times.stages
        return self._known[key]

    def _parts(self, work: Op | tuple[np.ndarray, Tier, Tier], queues: QueueWork) -> Parts:
        return queues.work(work) if isinstance(work, Op) else queues.move(self._plan, *work)
