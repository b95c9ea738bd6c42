"""The whole calibration: measure what is not yet in the journal, then write the profile's folder."""

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from kvferry.backends.live.calibration import codec, compute, contention, dispatch, link, power, storage
from kvferry.backends.live.calibration.environment import environment, identity, memory_bytes
from kvferry.backends.live.calibration.journal import Journal
from kvferry.backends.live.calibration.measurement import Measurement
from kvferry.backends.live.calibration.profile import profile
from kvferry.backends.live.calibration.rig import Rig
from kvferry.backends.live.calibration.settings import PARTS, Settings
from kvferry.backends.live.calibration.tables import tables
from kvferry.backends.live.calibration.task import Task
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import unknown_name
from kvferry.traces.format import write_whole

# Told a task's name, how many are done, and of how many.
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
    for part in parts:
        if part not in PARTS:
            raise unknown_name("part", part, PARTS)
    rig = Rig(settings)
    _ = rig.spec  # a model that is not to be had ends it here
    begun_with = surroundings(rig)
    journal = Journal(folder, settings.to_json() | identity(), fresh=fresh)
    probe = folder / "probe"
    probe.mkdir(exist_ok=True)
    wanted = list(tasks(rig, probe, parts))
    try:
        for done, task in enumerate(wanted):
            progress(task.name, done, len(wanted))
            if task.name not in journal.done:
                journal.add(task.name, task.measure())
        progress("writing the profile", len(wanted), len(wanted))
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    measured = [m for task in wanted for m in journal.done[task.name]]
    return write(name or folder.resolve().name, rig, measured, begun_with, folder, base)


def tasks(rig: Rig, probe: Path, parts: Sequence[str]) -> Iterator[Task]:
    settings = rig.settings
    by_part: dict[str, Callable[[], Iterator[Task]]] = {
        "compute": lambda: compute.tasks(rig),
        "dispatch": lambda: dispatch.tasks(settings),
        "codec": lambda: codec.tasks(rig),
        "storage": lambda: storage.tasks(settings, probe),
        "link": lambda: link.tasks(settings, probe),
        "contention": lambda: contention.tasks(rig, probe),
        "power": lambda: power.tasks(rig),
    }
    for part in PARTS:
        if part in parts:
            yield from by_part[part]()


def surroundings(rig: Rig) -> dict[str, Any]:
    """What the profile says of memory, and the circumstances."""
    told = environment() | {"free_memory_bytes": memory_bytes("MemAvailable")}
    if rig.on_cuda:
        index = torch.device(rig.settings.device).index or 0
        told["device"] = torch.cuda.get_device_name(index)
        told["device_memory_bytes"] = float(torch.cuda.mem_get_info(index)[1])
        told["cuda"] = torch.version.cuda
    return told


def write(
    name: str,
    rig: Rig,
    measured: Sequence[Measurement],
    begun_with: dict[str, Any],
    folder: Path,
    base: DeviceSpec,
) -> Path:
    """profile.yaml, measured/MODEL/*.csv, model.yaml, storage.csv and calibration.json."""
    settings, model = rig.settings, rig.spec
    draft, fit = profile(name, settings, model, measured, begun_with, base)
    found = tables(measured)
    if not found:
        draft.profile["processors"][draft.profile["main"]].pop("measured", None)
    now = datetime.now(UTC).replace(microsecond=0).isoformat()
    record = {
        "date": now,
        "settings": settings.to_json() | {"model": model.name},
        "environment": {"at the beginning": begun_with, "at the end": environment()},
        "fit": None
        if fit is None
        else {
            "efficiency": fit.efficiency,
            "layer_s": fit.layer_s,
            "peaks_raised_by": fit.raised,
            "relative_error": {
                op: {"median": median, "worst": worst, "points": count}
                for op, (median, worst, count) in fit.errors.items()
            },
        },
        "measurements": [{**m.to_json(), "median": m.median, "spread": m.spread} for m in measured],
    }
    for file, content in found.items():
        write_whole(folder / "measured" / model.name / file, content)
    write_whole(folder / "model.yaml", yaml.safe_dump(model.model_dump(mode="json"), sort_keys=False).encode())
    write_whole(folder / "storage.csv", storage_csv(measured))
    write_whole(folder / "calibration.json", (json.dumps(record, indent=1) + "\n").encode())
    # Last: whoever sees it sees the rest.
    heading = f"Measured by kvferry calibrate on {now[:10]} with {model.name}: {begun_with['cpu']}"
    write_whole(folder / "profile.yaml", draft.yaml(heading))
    return folder / "profile.yaml"


def storage_csv(measured: Sequence[Measurement]) -> bytes:
    """A row for each block size, depth and way of reading."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("block_bytes", "depth", "bytes_per_s", "spread", "by"))
    for m in measured:
        if m.what in ("random_read", "random_read_fio"):
            by = "fio" if m.what.endswith("fio") else "kvferry"
            rows.writerow((int(m.at["block_bytes"]), int(m.at["depth"]), f"{m.median:.4g}", f"{m.spread:.3f}", by))
    return text.getvalue().encode()
