"""``kvferry tune``: group size, compression, selected groups and slots for a device, model and memory budget."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.options import JsonOption, PluginOption, ScenarioArgument, SeedOption, SetOption, as_options, overrides

# Parameters of the command that are no limits of the tuner.
_OTHERS = ("scenario", "output", "settings", "plugins", "seed", "json")
_MEANINGS = (
    "G: consecutive tokens that are read and kept together. sigma: full keys over the compressed ones that\n"
    "groups are scored by. M: groups that a layer selects. C: groups that a layer keeps for the next token; 0: none.\n"
    "MiB: what is used, of what was granted; a larger buffer does not fit, or would make it noticeably slower."
)


def tune(
    scenario: ScenarioArgument,
    kv_memory: Annotated[
        str | None,
        typer.Option("--kv-memory", help="For all sequences together, as in '2200 MiB'. Default: the scenario's."),
    ] = None,
    most_context: Annotated[
        str | None,
        typer.Option("--most-context", help="Longest context to solve for, as in 32Ki. Default: the scenario's."),
    ] = None,
    most_batch: Annotated[
        int | None, typer.Option("--most-batch", help="Largest batch to solve for. Default: the scenario's.")
    ] = None,
    selected_tokens: Annotated[
        int | None,
        typer.Option(
            "--selected-tokens", help="Selected tokens, MG. Default: the scenario's policies.selected_tokens."
        ),
    ] = None,
    most_group: Annotated[int | None, typer.Option("--most-group", help="Longest group to try (G_max).  [8]")] = None,
    most_compression: Annotated[
        float | None,
        typer.Option("--most-compression", help="Highest compression of the scored keys (sigma_max).  [32]"),
    ] = None,
    relaxation: Annotated[
        float | None, typer.Option("--relaxation", help="Share of I/O that may stay exposed (alpha).  [0.05]")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option("--tolerance", help="How much slower than the fastest setting a block may be.  [0.04]"),
    ] = None,
    buffer_step: Annotated[
        int | None, typer.Option("--buffer-step", help="Tokens by which the reuse buffer grows (delta).  [400]")
    ] = None,
    least_context: Annotated[
        str | None, typer.Option("--least-context", help="Shortest context to solve for (S_min).  [4Ki]")
    ] = None,
    context_step: Annotated[
        str | None,
        typer.Option("--context-step", help="Tokens between contexts. Default: 2Ki; more if there are many."),
    ] = None,
    batch_step: Annotated[
        int | None,
        typer.Option("--batch-step", help="Sequences between batches. Default: 1; more if there are many."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File for the result as JSON.")
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    json: JsonOption = False,
) -> None:
    """Tune decoding with KV on storage, offline, as KVSwap does (its Section 3.5 and appendix A).

    The file serves later runs: kvferry run SCENARIO --set policies.tuned=FILE takes the nearest batch and context, and
    gives every sequence the memory that it was tuned for.
    """
    limits = {name: value for name, value in locals().items() if name not in _OTHERS}
    from kvferry.api.tune import tune as tuned
    from kvferry.cli.progress import say, spinner
    from kvferry.cli.table import print_table
    from kvferry.specs.errors import quoted

    with as_options(*limits), spinner("tuning"):
        found = tuned(scenario, overrides(settings, seed), **limits)
    if output is not None:
        found.write(output)
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
            f"{s.memory_bytes / 2**20:,.0f} of {s.batch * found.solutions.limits.each_bytes / 2**20:,.0f}",
            f"{1e3 * s.block_s:.2f}",
            f"{s.overlap:.0%}" if s.hidden else f"{s.overlap:.0%}, not enough",
            None if s.prefill_s is None else f"{s.prefill_s:.4g}",
            None if s.tokens_per_s is None else f"{s.tokens_per_s:.4g}",
        )
        for s in found.solutions.solved.values()
    ]
    found_values = ("group, tokens (G)", "compression (sigma)", "groups read (M)", "slots (C)", "MiB")
    columns = ("batch", "context", *found_values, "block, ms", "I/O hidden", "prefill, s", "tokens/s")
    print_table(columns, rows, title=f"tuned for KV that lies in {found.solutions.tier}")
    print(_MEANINGS)
    if (check := found.check) is not None:
        figures = ("run", "tokens/s", "energy/sequence", "storage read", "KV memory", "KV reused")
        print_table(figures, check.rows(), title=f"run: batch {check.batch}, context {check.context:,}")
    for note in found.remarks:
        print(quoted(note))
