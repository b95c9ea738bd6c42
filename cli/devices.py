"""``kvferry devices``: the bundled device profiles, and where their numbers come from."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from kvferry.cli.listings import printed
from kvferry.cli.options import JsonOption

Row = tuple[str, str, str | None]


def devices(
    name: Annotated[str | None, typer.Argument(metavar="[DEVICE]", help="A device by name, or a file.")] = None,
    json: JsonOption = False,
) -> None:
    """List the device profiles, or show one with the source of each number."""
    from kvferry.analysis.remarks import how_known
    from kvferry.cli.table import print_table
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_device
    from kvferry.specs import human
    from kvferry.specs.errors import quoted

    found = [load_device(device) for device in ([name] if name else names("device"))]
    if printed("devices", found, json):
        return
    rows = []
    for device in found:
        main, memory = device.processors[device.main], device.memory
        others = ", ".join(sorted(device.processors.keys() - {device.main}))
        compute, bandwidth = f"{main.flop_per_s / 1e12:.3g} Tflop/s", f"{main.bytes_per_s / 1e9:.4g} GB/s"
        size = f"{human.size(memory.capacity_bytes)} {'unified' if memory.unified else 'discrete'}"
        rows.append((device.name, device.main, compute, bandwidth, size, others or None))
    print_table(("device", "main", "peak", "bandwidth", "memory", "also"), rows)
    if name:
        print_table(("figure", "value", "source"), _figures(found[0].model_dump(exclude_defaults=True)))
        if note := how_known(found[0]):
            print(quoted(note))
        for line in _checked(found[0].name):
            print(line)


def _checked(device: str) -> Iterator[str]:
    """What people measured on the device, and how far our figures are off."""
    from kvferry.analysis.reproduction.rate_errors import errors_by_device, rates_of

    for group in errors_by_device(rates_of(device)):
        fitted = f", {group['fitted']} of them fitted on" if group["fitted"] else ", none fitted on"
        rows = f"{group['rows']} public measurement{'s' if group['rows'] > 1 else ''}{fitted}"
        yield f"{group['engine']}, {group['experiment']}: {rows}: median error {group['median_error']:.1%}"


def _figures(profile: dict[str, Any]) -> Iterator[Row]:
    """Each source of a profile with the figures that it is about, and the figures without one."""
    by_source: dict[tuple[str, str | None], list[str]] = {}
    for path, value, key, source in _sourced(profile, "", {}):
        if source is None and not isinstance(value, float | int):
            continue  # such as the kind of a processor
        rest = path.removeprefix(key).lstrip(".") if source else ""
        by_source.setdefault((key if source else path, source), []).append(f"{rest} {_text(path, value)}".strip())
    for (key, source), values in by_source.items():
        yield key, "; ".join(values), source


def _sourced(value: Any, path: str, sources: dict[str, str]) -> Iterator[tuple[str, Any, str, str | None]]:
    """Each value under a path, with the key and text of the source nearest to it: its own, or that of what it is a
    part of. A storage device has sources of its own."""
    if isinstance(value, dict):
        dotted = f"{path}." if path else ""
        sources = {**sources, **{f"{dotted}{key}": source for key, source in value.get("sources", {}).items()}}
        for key, item in value.items():
            if key not in ("sources", "name", "main", "engine"):
                yield from _sourced(item, f"{dotted}{key}", sources)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        for n, item in enumerate(value):
            yield from _sourced(item, f"{path}.{n}", sources)
    else:
        known = max((known for known in sources if f"{path}.".startswith(f"{known}.")), key=len, default="")
        yield path, value, known, sources.get(known)


def _text(path: str, value: Any) -> str:
    from kvferry.specs import human

    if isinstance(value, list | tuple):
        return ", ".join(_text(path, item) for item in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    rates = ("flop_per_s", 1e12, "Tflop/s"), ("values_per_s", 1e6, "Mvalue/s")
    for ending, scale, unit in (*rates, ("instruction_per_s", 1e12, "Tinstruction/s"), ("_w", 1, "W")):
        if path.endswith(ending):
            return f"{value / scale:.4g} {unit}"
    if path.endswith("bytes_per_s"):
        return f"{human.size(value)}/s"
    return human.of_unit(path)(value) if path.endswith(("_s", "_bytes")) else f"{value:g}"
