"""Power at rest and under load, where the device reports it: by zeus (NVML, Jetson, RAPL), else by RAPL in sysfs."""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

from kvferry.calibration.measured_model import Rig, Running
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.task import Task
from kvferry.machine.ops import Advance, KvRef, Project
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks

POWERCAP = Path("/sys/class/powercap")
_WINDOW_S = 2.0


class Meter(NamedTuple):
    """`joules` returns the energy that a piece of work takes, by component (processor, memory ...); `source` reports
    it."""

    source: str
    joules: Callable[[Callable[[], None]], dict[str, float]]


def tasks(rig: Rig) -> Iterator[Task]:
    yield Task("power", lambda: power(rig))


def power(rig: Rig) -> list[Measurement]:
    """Watts of each component at rest and under load; where nothing reports them, a note."""
    meter = meter_here()
    if meter is None:
        return [Measurement(what="no_power_meter", unit="", values=(1.0,))]
    with rig.running(CHUNK_TOKENS) as running:
        _compute(running)
        return [
            Measurement(what=f"power {state} {component} by {meter.source}", unit="W", values=(watts,))
            for state, work in (("idle", lambda: sleep(_WINDOW_S)), ("active", lambda: _keep_at_it(running)))
            for component, watts in _watts(meter, work).items()
        ]


def meter_here() -> Meter | None:
    """The first meter that works."""
    if find_spec("zeus") is not None:
        meter = _zeus()
        if meter is not None:
            return meter
    return rapl(POWERCAP)


def rapl(folder: Path) -> Meter | None:
    """The processor packages' energy counters in sysfs; None where there are none, or only root may read them."""
    packages = [zone for zone in sorted(folder.glob("intel-rapl:*")) if zone.name.count(":") == 1]
    try:
        for zone in packages:
            _microjoules(zone)
    except (OSError, ValueError):
        return None
    if not packages:
        return None

    def joules(work: Callable[[], None]) -> dict[str, float]:
        before = [_microjoules(zone) for zone in packages]
        work()
        used = 0
        for zone, start in zip(packages, before, strict=True):
            end = _microjoules(zone)
            # The counter begins again after its range, which some minutes fill.
            used += end - start if end >= start else end - start + int((zone / "max_energy_range_uj").read_text())
        return {"cpu": used / 1e6}

    return Meter("RAPL", joules)


def _zeus() -> Meter | None:
    try:
        monitor = import_module("zeus.monitor").ZeusMonitor()
    except Exception:  # zeus raises whatever its drivers do, where there is nothing to measure
        return None

    def joules(work: Callable[[], None]) -> dict[str, float]:
        monitor.begin_window("kvferry", sync_execution=False)
        work()
        used = monitor.end_window("kvferry", sync_execution=False)
        used_j = {"gpu": used.gpu_energy, "cpu": used.cpu_energy, "dram": used.dram_energy}
        return {component: float(sum(parts.values())) for component, parts in used_j.items() if parts}

    return Meter("zeus", joules)


def _watts(meter: Meter, work: Callable[[], None]) -> dict[str, float]:
    took_s = 0.0

    def timed() -> None:
        nonlocal took_s
        began_s = perf_counter()
        work()
        took_s = perf_counter() - began_s

    joules = meter.joules(timed)
    return {component: used / took_s for component, used in joules.items()}


def _keep_at_it(running: Running) -> None:
    until_s = perf_counter() + _WINDOW_S
    while perf_counter() < until_s:
        _compute(running)


def _compute(running: Running) -> None:
    """The whole of a context's prefill."""
    request, session = running.loaded(0)
    tokens = session.kv.tokens[0]
    blocks = causal_blocks(tokens, 0) * session.kv.heads
    places = [KvRef(0, 0, l, None, 0.0) for l in range(session.kv.layers)]
    running.seconds([op for kv in places for op in (Project(tokens, kv), Advance(tokens, blocks, 0, kv))], request)


def _microjoules(zone: Path) -> int:
    return int((zone / "energy_uj").read_text())
