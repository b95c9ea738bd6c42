"""A whole calibration: measure what is not in the journal yet, then write the profile's folder."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvferry.calibration import (
    compute,
    contention,
    decoding,
    dispatch,
    kernels,
    power,
    retrieval,
    sparsity,
)
from kvferry.calibration import (
    fetches as link,
)
from kvferry.calibration import (
    storage_reads as storage,
)
from kvferry.calibration import (
    streamed_kv as codec,
)
from kvferry.calibration.environment import environment, identity, memory_bytes
from kvferry.calibration.folder import write
from kvferry.calibration.journal import Journal
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement, merged
from kvferry.calibration.perceptron import put_perceptron
from kvferry.calibration.profile import profile
from kvferry.calibration.settings import KNOWN_PARTS, PARTS, Settings
from kvferry.calibration.task import Task
from kvferry.model.models import DTYPES, check_device
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError, pick, unknown_name

# Parts that hardly depend on the processor's speed.
ONCE = ("storage", "power")
# Called with a task's name, how many tasks are done, and of how many.
Progress = Callable[[str, int, int], None]


def calibrate(
    settings: Settings,
    folder: Path,
    base: DeviceSpec,
    *,
    parts: Sequence[str] = PARTS,
    name: str | None = None,
    fresh: bool = False,
    progress: Progress = lambda name, done, of: None,
) -> Path:
    """Measure this device with one model; returns the profile. What `folder`'s journal has is not measured again.

    Raises InputError for parts and models that do not exist, and for a journal of other settings.
    """
    if not parts:
        raise InputError(f"--parts: names nothing to measure; known: {', '.join(PARTS)}")
    pick("dtype", DTYPES, settings.dtype or "float32")
    if {"decode", "retrieval"} <= set(parts):
        raise InputError("--parts: decode and retrieval measure the same ops, each its own way; measure one of them")
    for part in parts:
        if part not in KNOWN_PARTS:
            raise unknown_name("part", part, KNOWN_PARTS)
    rig = Rig(settings)
    check_device(settings.device)
    begun_with = surroundings(rig)  # before the model takes its part of the memory
    _ = rig.spec  # raises where there is no such model
    journal = Journal(folder, settings.to_json() | identity(), fresh=fresh)
    probe = folder / "probe"
    probe.mkdir(exist_ok=True)
    wanted = list(passes(rig, probe, parts))
    try:
        for done, task in enumerate(wanted):
            progress(task.name, done, len(wanted))
            if task.name not in journal.done:
                journal.add(task.name, task.measure())
        progress("writing the profile", len(wanted), len(wanted))
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    measured = merged(m for task in wanted for m in journal.done[task.name])
    draft, fit = profile(name or folder.resolve().name, settings, rig.spec, measured, begun_with, base)
    made_with = {name: version for name, version in identity().items() if name in ("kvferry", "torch", "numpy")}
    today = datetime.now(UTC).date().isoformat()
    draft.profile["calibration"] = circumstances_of(measured, settings, begun_with, today)
    return write(
        folder,
        draft,
        fit,
        rig.spec,
        measured,
        perceptron=put_perceptron(draft, rig.spec, measured, date=today, versions=made_with),
        heading=f"Measured by kvferry calibrate with {rig.spec.name} on {begun_with['cpu']}",
        circumstances={
            "settings": settings.to_json() | {"model": rig.spec.name},
            "environment": {"at the beginning": begun_with, "at the end": environment()},
        },
    )


def circumstances_of(
    measured: Sequence[Measurement], settings: Settings, begun_with: Mapping[str, Any], date: str
) -> dict[str, Any]:
    """What a profile says of how and when it was measured, as in a file."""
    widest = max(measured, key=lambda one: one.spread)
    return {
        "date": date,
        "quick": settings.quick,
        "load_average": begun_with.get("load_average_1min"),
        "cores": begun_with.get("cores"),
        "median_spread": round(float(np.median([one.spread for one in measured])), 4),
        "largest_spread": round(widest.spread, 4),
        "largest_spread_of": widest.what,
    }


def passes(rig: Rig, probe: Path, parts: Sequence[str]) -> Iterator[Task]:
    """All tasks several times over, those of storage and power once. A machine is slower for minutes now and then, and
    no measurement should have all its repetitions in such a time."""
    often = [part for part in parts if part not in ONCE]
    for n in range(rig.settings.passes):
        for task in tasks(rig, probe, often):
            yield Task(f"{task.name}, pass {n + 1}", task.measure)
    yield from tasks(rig, probe, [part for part in parts if part in ONCE])


def tasks(rig: Rig, probe: Path, parts: Sequence[str]) -> Iterator[Task]:
    """The tasks of these parts, each once."""
    settings = rig.settings
    by_part: dict[str, Callable[[], Iterator[Task]]] = {
        "compute": lambda: compute.tasks(rig),
        "sparsity": lambda: sparsity.tasks(rig),
        "decode": lambda: decoding.tasks(rig, probe),
        "retrieval": lambda: retrieval.tasks(rig, probe),
        "kernels": lambda: kernels.tasks(rig),
        "dispatch": lambda: dispatch.tasks(settings),
        "codec": lambda: codec.tasks(rig, probe),
        "storage": lambda: storage.tasks(settings, probe),
        "link": lambda: link.tasks(settings, probe),
        "contention": lambda: contention.tasks(rig, probe),
        "power": lambda: power.tasks(rig),
    }
    for part in KNOWN_PARTS:
        if part in parts:
            yield from by_part[part]()


def surroundings(rig: Rig) -> dict[str, Any]:
    """The memory and the other circumstances that the profile mentions."""
    facts = environment() | {"free_memory_bytes": memory_bytes("MemAvailable")}
    if rig.on_cuda:
        index = torch.device(rig.settings.device).index or 0
        facts["device"] = torch.cuda.get_device_name(index)
        facts["device_memory_bytes"] = float(torch.cuda.mem_get_info(index)[1])
        facts["device_unified"] = bool(torch.cuda.get_device_properties(index).is_integrated)
        facts["cuda"] = torch.version.cuda
    return facts
