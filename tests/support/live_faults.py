"""What harms a real run that decodes with its KV in a file, and how it ends then."""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry.disk.direct_storage import StorageError
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario


def reported_until_it_failed(wanted: Scenario, harm: Callable[[int], None]) -> tuple[list[int], BaseException]:
    """How many tokens had been reported each time, and what ended it; `harm` is called after every one."""
    from kvferry.pipelines.decoding import workload as decoding

    reported: list[int] = []
    really = decoding.LockStepDecode

    class Harmed(really):  # type: ignore[valid-type, misc]
        def __init__(self, machine: Any, plan: Any, _on_token: Any, *others: Any) -> None:
            def after(tokens: int) -> None:
                reported.append(tokens)
                harm(tokens)

            super().__init__(machine, plan, after, *others)

    decoding.LockStepDecode = Harmed  # type: ignore[misc]
    try:
        with pytest.raises(StorageError) as caught:
            run_scenario(wanted)
    finally:
        decoding.LockStepDecode = really  # type: ignore[misc]
    return reported, caught.value


def opened(folder: Path) -> Path:
    """The file that this process has open in there: it has no name of its own any more."""
    assert list(folder.iterdir()) == []
    descriptors = (Path(path) for path in os.scandir("/proc/self/fd"))
    (path,) = (path for path in descriptors if path.exists() and str(folder) in os.readlink(path))
    return path


def cut(path: Path) -> None:
    os.truncate(path, 0)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_and_stretch(path: Path) -> None:
    n_bytes = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, n_bytes)


def punch_hole(path: Path) -> None:
    """In what prefill wrote of the first layer."""
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch = 1 | 2
    with open(path, "r+b") as file:
        if libc.fallocate(file.fileno(), keep_size_and_punch, ctypes.c_long(0), ctypes.c_long(1 << 16)):
            pytest.skip(f"no holes are punched here: {os.strerror(ctypes.get_errno())}")


def flip_a_bit(path: Path) -> None:
    with open(path, "r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
