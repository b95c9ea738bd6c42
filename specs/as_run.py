"""What a scenario describes, as it is run: every part of the workload's kind, the device and the model as asked for."""

from typing import Any

from kvferry.specs.base import BadKey
from kvferry.specs.engine import with_engine
from kvferry.specs.kinds import BY_KIND, KINDS
from kvferry.specs.link import LinkSpec, NoLink
from kvferry.specs.main_processor import with_main
from kvferry.specs.stored_model import as_stored
from kvferry.specs.weight_format import in_precision

# Of kinds of workload that may do without: decoding fetches nothing, and has what its bundled scenarios write.
_LINKS = {"decode": LinkSpec(rate_bytes_per_s=1e9 / 8), "session": NoLink()}


def of_one_kind(value: dict[str, Any]) -> dict[str, Any]:
    """Give the parts whose keys depend on the workload's kind that kind. Where it is not known, they are left out:
    the fault is the kind's."""
    workload = value.get("workload")
    kind = workload.get("kind") if isinstance(workload, dict) else getattr(workload, "kind", None)
    if kind not in KINDS:
        return {key: part for key, part in value.items() if key not in BY_KIND} | {
            key: {"kind": KINDS[0]} for key in BY_KIND
        }
    parts: dict[str, Any] = {key: value.get(key) for key in BY_KIND}
    for key, part in parts.items():
        if part is None:
            parts[key] = {"kind": kind}
        elif isinstance(part, dict):
            if part.get("kind", kind) != kind:
                raise BadKey(f"{key}.kind", f"{part['kind']!r:.60} is not the workload's, which is {kind}")
            parts[key] = {**part, "kind": kind}
    if kind in _LINKS and value.get("link") is None:
        parts["link"] = _LINKS[kind]
        if kind == "session" and isinstance(workload, dict):
            # What lies in a cloud comes over a link.
            parts["workload"] = {"in_cloud": "nothing", **parts.get("workload", workload)}
    return {**value, **parts}


def as_it_is_run(value: dict[str, Any]) -> dict[str, Any]:
    """The device with the engine and the processor, and the model in the precision, that the scenario asks for."""
    device, processor, engine = value.get("device"), value.get("processor"), value.get("engine")
    if isinstance(device, dict) and isinstance(engine, dict):
        device = with_engine(device, engine, replace=True)
        value = {**value, "device": device}
    named = device.get("processors") if isinstance(device, dict) else None
    if isinstance(device, dict) and isinstance(named, dict) and isinstance(processor, str) and processor in named:
        value = {**value, "device": with_main(device, processor)}
    value = dict(as_stored(value))
    model, precision = value.get("model"), value.get("precision")
    if isinstance(model, dict) and precision is not None:
        value = {**value, "model": in_precision(model, precision)}
    return value
