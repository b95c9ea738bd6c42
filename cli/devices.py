"""``kvferry devices``: the bundled device profiles, and where their numbers come from."""

from typing import Annotated

import typer

from kvferry.cli.options import JsonOption


def devices(
    name: Annotated[str | None, typer.Argument(metavar="[DEVICE]", help="A device by name, or a file.")] = None,
    json: JsonOption = False,
) -> None:
    """List the device profiles, or show one with the source of each number."""
    from kvferry.analysis import human
    from kvferry.analysis.envelope import to_json
    from kvferry.cli.table import print_table
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_device

    found = [load_device(device) for device in ([name] if name else names("device"))]
    if json:
        print(to_json({"devices": [device.model_dump(mode="json") for device in found]}), end="")
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
        print_table(("value", "source"), sorted(found[0].sources.items()))
