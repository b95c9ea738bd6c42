"""``kvferry tune``: group size, compression, selected groups and slots for a device, model and memory budget."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.options import JsonOption, ScenarioArgument, SeedOption, SetOption, overrides


def tune(
    scenario: ScenarioArgument,
    kv_memory: Annotated[str, typer.Option("--kv-memory", help="For all sequences together, as in '2200 MiB'.")],
    most_context: Annotated[str, typer.Option("--most-context", help="As in 32Ki.")] = "32Ki",
    most_batch: Annotated[int, typer.Option("--most-batch", min=1, max=64)] = 8,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write JSON.")] = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    """Tune decoding with KV on storage, offline, as KVSwap does (its Section 3.5).

    The file serves later runs: kvferry run SCENARIO --set policies.tuned=FILE takes the nearest batch and context.
    """
    from kvferry.analysis.folder import write_file
    from kvferry.cli.checks import scenario_for_run
    from kvferry.cli.progress import say
    from kvferry.cli.table import print_table
    from kvferry.pipelines.offload_tuning import tune_scenario
    from kvferry.policies.offload.tuner import TuningLimits
    from kvferry.specs.errors import InputError
    from kvferry.specs.units import count, quantity

    loaded = scenario_for_run(scenario, overrides(settings, seed))
    try:
        budget_bytes, context = quantity(kv_memory, "size"), count(most_context)
    except ValueError as error:
        raise InputError(f"kvferry tune: {error}") from None
    limits = TuningLimits(budget_bytes=budget_bytes, most_context=context, most_batch=most_batch)
    found = tune_scenario(loaded, limits)
    if output is not None:
        write_file(output, found.to_json().encode())
        say(f"written to {output}")
    if json:
        sys.stdout.write(found.to_json())
        return
    rows = [
        (
            s.batch,
            s.context,
            s.grouping.group_tokens,
            f"{s.grouping.compression:g}",
            s.grouping.groups,
            s.grouping.slots,
            f"{s.memory_bytes / 2**20:,.0f}",
            f"{1e3 * s.block_s:.2f}",
            "yes" if s.hidden else "no",
        )
        for s in found.solved.values()
    ]
    print_table(("batch", "context", "G", "sigma", "M", "C", "MiB", "block, ms", "I/O hidden"), rows)
