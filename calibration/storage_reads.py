"""Rates of random reads by block size and depth, through this project's storage path and with fio where it is
installed."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from kvferry.calibration.fio import rates_of
from kvferry.calibration.measurement import Measurement, repeated
from kvferry.calibration.settings import Settings
from kvferry.calibration.task import Task
from kvferry.disk.direct_storage import Storage, StorageFull
from kvferry.machine.ops import Extents
from kvferry.specs.errors import KvferryError
from kvferry.specs.human import size
from kvferry.traces.chance import Source, generator

BLOCKS = tuple(2**n for n in (12, 14, 16, 18, 20))
DEPTHS = (1, 2, 4, 8, 16, 32)
FILE = "storage-probe.bin"
_PROBE_BYTES, _QUICK_BYTES = 256 << 20, 4 << 20
# Where fio looks too: it takes a second for each.
_FIO_BLOCKS, _FIO_DEPTHS = BLOCKS[::2], (1, 8, 32)
_FIO_S = 60.0


def tasks(settings: Settings, folder: Path) -> Iterator[Task]:
    blocks, depths = ((2**12, 2**16), (1, 4)) if settings.quick else (BLOCKS, DEPTHS)
    for block_bytes in blocks:
        for depth in depths:
            name = f"storage: blocks of {block_bytes >> 10} KiB, {depth} at once"
            yield Task(name, lambda b=block_bytes, d=depth: reads(settings, folder, b, d))  # type: ignore[misc]


def reads(settings: Settings, folder: Path, block_bytes: int, depth: int) -> list[Measurement]:
    """Bytes per second of random reads past the page cache; a note where the file system does not allow them."""
    path = probe_file(settings, folder)
    at = {"block_bytes": float(block_bytes), "depth": float(depth)}
    ours = own_rates(settings, path, block_bytes, depth)
    found = [] if ours is None else [Measurement(what="random_read", unit="byte/s", values=ours, at=at)]
    if block_bytes in _FIO_BLOCKS and depth in _FIO_DEPTHS and shutil.which("fio") and not settings.quick:
        fio = fio_rate(path, block_bytes, depth)
        found.append(Measurement(what="random_read_fio", unit="byte/s", values=(fio,), at=at))
    return found or [Measurement(what="no_direct_io", unit="", values=(1.0,), at=at)]


def own_rates(settings: Settings, path: Path, block_bytes: int, depth: int) -> tuple[float, ...] | None:
    rng = generator(Source.MEASURED_READS, 0, block_bytes, depth)
    with Storage(path, depth=depth) as store:
        if store.note:
            return None
        each = min(64 * depth, max(depth, (16 << 20) // block_bytes))

        def once() -> list[float]:
            picked = rng.integers(store.size_bytes // block_bytes, size=each) * block_bytes
            extents = Extents(tuple(picked.tolist()), (block_bytes,) * each)
            began_s = perf_counter()
            store.read(extents).release()
            return [each * block_bytes / (perf_counter() - began_s)]

        return repeated(once, least=5, seconds=settings.point_s / 4)


def fio_rate(path: Path, block_bytes: int, depth: int) -> float:
    command = ["fio", "--name=kvferry", f"--filename={path}", "--rw=randread", f"--bs={block_bytes}", "--direct=1"]
    command += [
        "--ioengine=psync",
        "--thread",
        f"--numjobs={depth}",
        "--group_reporting",
        "--time_based",
        "--runtime=1",
    ]
    command += ["--readonly", "--output-format=json"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_FIO_S)
        return rates_of(json.loads(ran.stdout), "what fio printed")[0].bytes_per_s
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise KvferryError(f"fio does not work here: {error}") from None


def probe_file(settings: Settings, folder: Path) -> Path:
    """A file of numbers drawn at random, made once: zeros are too easy for some devices."""
    path = folder / FILE
    n_bytes = _QUICK_BYTES if settings.quick else _PROBE_BYTES
    if path.exists() and path.stat().st_size == n_bytes:
        return path
    partial = folder / f".{FILE}.{os.getpid()}"
    try:
        with Storage.create(partial, n_bytes) as store:
            rng = generator(Source.MEASURED_CONTENT, 0)
            for at in range(0, n_bytes, 4 << 20):
                store.write(Extents((at,), (4 << 20,)), rng.bytes(4 << 20))
        partial.replace(path)
    except StorageFull as error:
        raise KvferryError(
            f"measuring storage takes {size(n_bytes)} for a while, and there is no room for them; "
            f"--parts without storage does without ({error})"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
    return path
