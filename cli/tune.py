"""``kvferry tune``: group size, compression, selected groups and slots for a device, model and memory budget."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kvferry.cli.options import JsonOption, PluginOption, ScenarioArgument, SeedOption, SetOption, as_options, overrides

# The tuner's limits: options of these types, which Python calls by the same names.
_LIMITS: dict[str, tuple[type, str]] = {
    "kv_memory": (str, "For all sequences together, as in '2200 MiB'. Default: the scenario's."),
    "most_context": (str, "Longest context to solve for, as in 32Ki. Default: the scenario's."),
    "most_batch": (int, "Largest batch to solve for. Default: the scenario's."),
    "selected_tokens": (int, "Selected tokens, MG. Default: the scenario's policies.selected_tokens."),
    "most_group": (int, "Longest group to try (G_max).  [8]"),
    "most_compression": (float, "Highest compression of the scored keys (sigma_max).  [32]"),
    "relaxation": (float, "Share of I/O that may stay exposed (alpha).  [0.05]"),
    "tolerance": (float, "How much slower than the fastest setting a block may be.  [0.04]"),
    "buffer_step": (int, "Tokens by which the reuse buffer grows (delta).  [400]"),
    "least_context": (str, "Shortest context to solve for (S_min).  [4Ki]"),
    "context_step": (str, "Tokens between contexts. Default: 2Ki; more if there are many."),
    "batch_step": (int, "Sequences between batches. Default: 1; more if there are many."),
}
_MEANINGS = (
    "G: consecutive tokens that are read and kept together. sigma: full keys over the compressed ones that\n"
    "groups are scored by. M: groups that a layer selects. C: groups that a layer keeps for the next token; 0: none.\n"
    "MiB: what is used, of what was granted; a larger buffer does not fit, or would make it noticeably slower."
)


def tune(
    scenario: ScenarioArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="File for the result as JSON.")
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    json: JsonOption = False,
    **limits: Any,
) -> None:
    """Tune decoding with KV on storage, offline, as KVSwap does (its Section 3.5 and appendix A).

    The file serves later runs: kvferry run SCENARIO --set policies.tuned=FILE takes the nearest batch and context, and
    gives every sequence the memory that it was tuned for.
    """
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


def _with_options(command: Callable[..., None]) -> None:
    """Declares an option for each of the limits, behind the scenario."""
    first, *others, _ = inspect.signature(command).parameters.values()
    options = [
        first.replace(name=name, default=None, annotation=Annotated[kind | None, typer.Option(help=about)])
        for name, (kind, about) in _LIMITS.items()
    ]
    command.__signature__ = inspect.Signature([first, *options, *others])  # type: ignore[attr-defined]


_with_options(tune)
