"""What measurements depend on besides the device: clocks, governor, versions. No host names, no paths."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvferry.specs.version import VERSION

_PACKAGES = ("torch", "transformers", "numpy", "constriction")
_CPU = Path("/sys/devices/system/cpu")


def identity() -> dict[str, str]:
    """The processor and the versions of the measured software: measurements of different ones are not mixed."""
    return {"cpu": cpu_model(), "kvferry": VERSION} | versions()


def versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def environment() -> dict[str, Any]:
    """The present state; None for what the system does not report."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "governor": _first_line(_CPU / "cpu0/cpufreq/scaling_governor"),
        "clock_mhz": clock_mhz(),
        "most_clock_mhz": _khz(_CPU / "cpu0/cpufreq/cpuinfo_max_freq"),
        "memory_bytes": memory_bytes("MemTotal"),
        "load_average_1min": _load(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kvferry": VERSION,
        **versions(),
    }


def usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def cpu_model() -> str:
    for key in ("model name", "Model", "Hardware"):
        for line in _lines(Path("/proc/cpuinfo")):
            if line.split(":")[0].strip() == key and ":" in line:
                return " ".join(line.split(":", 1)[1].split())
    return platform.processor() or platform.machine()


def clock_mhz() -> float | None:
    """The first core's present clock."""
    now = _khz(_CPU / "cpu0/cpufreq/scaling_cur_freq")
    clocks = (line.split(":")[1] for line in _lines(Path("/proc/cpuinfo")) if line.startswith("cpu MHz"))
    return now if now is not None else next((float(mhz) for mhz in clocks), None)


def memory_bytes(key: str) -> float | None:
    """MemTotal, MemAvailable ...; None where the system does not report it."""
    found = (line.split()[1] for line in _lines(Path("/proc/meminfo")) if line.startswith(key + ":"))
    return next((float(kib) * 1024 for kib in found), None)


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _khz(path: Path) -> float | None:
    text = _first_line(path)
    return float(text) / 1e3 if text and text.isdigit() else None


def _first_line(path: Path) -> str | None:
    return next(iter(_lines(path)), None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
