"""The one JSON object that a run prints with --json and leaves in its folder."""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from kvferry.pipelines.plugins import used
from kvferry.pipelines.record import Run
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import UNSHOWN
from kvferry.specs.model import ModelSpec
from kvferry.specs.version import VERSION

Envelope = dict[str, Any]


def envelope_of(
    run: Run,
    metrics: Mapping[str, float],
    *,
    scenario: str,
    system: str,
    seed: int,
    provenance: Mapping[str, Any] | None = None,
    not_counted: str | None = None,
) -> Envelope:
    """{"outcome", "metrics", "scenario", "system", "seed", "versions", "provenance"}, and "why" unless done.

    "memory_at_peak" has the bytes that made up the memory peak, by name, and what is kept free beside it.
    "machines" has the energy by component and the memory of the machines beside the device, by name, where there are
    any. "not_counted" says why there is no energy.
    "link_down" and "unusable" are there where a request met such a fault and went on without (see `Run.faults`),
    "not_recorded" where the selections of a run could not be written; "notes" where the run had to do otherwise than
    its system's description says.

    Holds nothing that differs between equal runs: wall times stay in `run.measured`.
    """
    envelope: Envelope = {
        "outcome": run.outcome,
        "metrics": dict(metrics),
        "scenario": scenario,
        "system": system,
        "seed": seed,
        "versions": versions(),
        "provenance": dict(provenance or {}),
    }
    if run.why:
        envelope["why"] = run.why
    if run.memory_at_peak:
        envelope["memory_at_peak"] = dict(run.memory_at_peak)
    if run.machines:
        envelope["machines"] = {name: asdict(one) for name, one in run.machines.items()}
    if not_counted:
        envelope["not_counted"] = {"energy": not_counted}
    if run.link_down:
        envelope["link_down"] = run.link_down
    if run.unusable:
        envelope["unusable"] = run.unusable
    if run.notes:
        envelope["notes"] = list(run.notes)
    if "not_recorded" in run.measured:
        envelope["not_recorded"] = run.measured["not_recorded"]
    return envelope


def provenance_of(device: DeviceSpec, model: ModelSpec, **more: Any) -> dict[str, Any]:
    """The sources of the numbers behind a run; `more` names the trace, a cost table ... "plugins": of those in use the
    SHA-256 of their files, by name."""
    plugins = {plugin.name: f"sha256:{plugin.sha256}" for plugin in used()}
    return {
        "device": {
            "name": device.name,
            "measured": device.is_measured,
            **({"calibration": device.calibration.model_dump()} if device.calibration else {}),
            "sources": dict(device.sources),
        },
        "model": {"name": model.name, "source": model.source},
        **({"plugins": plugins} if plugins else {}),
        **more,
    }


def versions() -> dict[str, str]:
    return {
        "kvferry": VERSION,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "simpy": version("simpy"),
    }


def to_json(value: Mapping[str, Any]) -> str:
    """Strict JSON with sorted keys and a line end.

    Raises ValueError for NaN and infinities, which JSON does not have; a metric that does not apply must be left out.
    """
    text = json.dumps(value, allow_nan=False, sort_keys=True, indent=2, ensure_ascii=False)
    # What JSON may leave as it is and a terminal would obey.
    return UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"
