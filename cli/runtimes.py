"""``kvferry runtimes``: what known software takes to manage KV outside the processor's memory."""

from typing import Annotated

import typer

from kvferry.cli.options import JsonOption


def runtimes(
    name: Annotated[str | None, typer.Argument(metavar="[RUNTIME]", help="A runtime by name, or a file.")] = None,
    json: JsonOption = False,
) -> None:
    """List the runtimes, or show one with the source of each number.

    A runtime is what a program takes beside its kernels to decode from KV that lies on storage or on the host. A
    scenario names one (runtime: NAME); else it is the one that was fitted on the device, or, assumed and scaled by the
    hosts' clocks, the prototype of the system's paper.
    """
    from kvferry.analysis import human
    from kvferry.analysis.envelope import to_json
    from kvferry.cli.table import print_table
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_runtime

    found = [load_runtime(runtime) for runtime in ([name] if name else names("runtime"))]
    if json:
        print(to_json({"runtimes": [runtime.model_dump(mode="json") for runtime in found]}), end="")
        return
    rows = []
    for one in found:
        times = [human.seconds(value) if value else "0" for value in (one.layer_s, one.block_s, one.slot_s)]
        clock = None if one.host_clock_hz is None else f"{one.host_clock_hz / 1e9:.3g} GHz"
        rows.append((one.name, *times, f"{one.storage_slowdown:.3g}x", clock, ", ".join(one.devices) or None))
    columns = ("runtime", "per layer", "per KV block", "per slot", "beside reads", "clock", "fitted on")
    print_table(columns, rows)
    if name:
        print_table(("figure", "source"), [*found[0].sources.items()])
