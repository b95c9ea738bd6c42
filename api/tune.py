"""Parameters of decoding with KV on storage, found offline as KVSwap does (Section 3.5 and appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.remarks import how_known, software
from kvferry.api.scenario import Settings, Source, check_workload, load
from kvferry.pipelines.plugins import naming_plugins
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import count, quantity

if TYPE_CHECKING:
    import pandas as pd

    from kvferry.api.tune_check import Check
    from kvferry.policies.decode.solutions import Solutions

# What this module's arguments are called among the tuner's limits.
_LIMITS = {
    "kv_memory": "budget_bytes",
    "selected_tokens": "selected_tokens",
    "most_context": "most_context",
    "most_batch": "most_batch",
    "most_group": "most_group_tokens",
    "most_compression": "most_compression",
    "relaxation": "relaxation",
    "tolerance": "tolerance",
    "buffer_step": "slots_step_tokens",
    "least_context": "least_context",
    "context_step": "context_step",
    "batch_step": "batch_step",
}


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a tuning found, and the runs that it was checked by. As the last value of a notebook's cell it shows its
    table."""

    scenario: Scenario
    solutions: Solutions
    check: Check | None = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per batch and context: group_tokens, compression, groups, slots, memory_bytes, block_s, overlap (share
        of the I/O that is hidden), hidden (whether that is enough), prefill_s and tokens_per_s."""
        import pandas as pd

        rows = [
            {
                "batch": found.batch,
                "context": found.context,
                "group_tokens": found.grouping.group_tokens,
                "compression": found.grouping.compression,
                "groups": found.grouping.groups,
                "slots": found.grouping.slots,
                "memory_bytes": found.memory_bytes,
                "block_s": found.block_s,
                "overlap": found.overlap,
                "hidden": found.hidden,
                "prefill_s": found.prefill_s,
                "tokens_per_s": found.tokens_per_s,
            }
            for found in self.solutions.solved.values()
        ]
        return pd.DataFrame(rows).set_index(["batch", "context"])

    @property
    def remarks(self) -> list[str]:
        """What a reader should know: how the device's profile and what software takes are known, and how the check
        went."""
        notes = [how_known(self.scenario.device), software(self.scenario)]
        if self.check is None:
            notes.append("not checked by runs: what was found, or the default, cannot be run with that memory")
        else:
            notes.append(self.check.said())
        return [note for note in notes if note]

    def to_json(self) -> str:
        """What ``kvferry tune --json`` prints, and a scenario's ``policies.tuned`` names as a file."""
        return self.solutions.to_json()

    def write(self, path: str | Path) -> Path:
        """Writes the file for ``policies.tuned``. Raises KvferryError where it cannot be written."""
        from kvferry.system.whole_file import write_file

        return write_file(Path(path), self.to_json().encode())

    def __repr__(self) -> str:
        return f"{self.scenario.name}: {len(self.solutions.solved)} solutions for KV in {self.solutions.tier}"

    def _repr_html_(self) -> str:
        return str(self.table.to_html(max_rows=20))


@naming_plugins()
def tune(
    source: Source,
    settings: Settings = (),
    *,
    seed: int | None = None,
    kv_memory: str | float | None = None,
    selected_tokens: int | None = None,
    most_context: str | int | None = None,
    most_batch: int | None = None,
    most_group: int | None = None,
    most_compression: float | None = None,
    relaxation: float | None = None,
    tolerance: float | None = None,
    buffer_step: int | None = None,
    least_context: str | int | None = None,
    context_step: str | int | None = None,
    batch_step: int | None = None,
) -> Tuned:
    """Finds group length, compression, selected groups and slots for a device, a model and a memory budget.

    `source`, `settings` and `seed` as in ``load``. `kv_memory`: for all sequences together, "2200 MiB" or bytes;
    `selected_tokens`: the product MG; `most_context` ("32Ki", tokens) and `most_batch`: what to solve for at most; all
    of these as the scenario says, where left out. `most_group`: the longest group (G_max); `most_compression`: of the
    scored keys (sigma_max); `relaxation`: the share of I/O that may stay exposed (alpha); `tolerance`: how much slower
    than the fastest setting a block may be; `buffer_step`: tokens by which the reuse buffer grows (delta);
    `least_context` (S_min), `context_step` and `batch_step`: what is solved for besides.

    Raises InputError as ``load`` does, for a scenario whose system has nothing to tune, for limits that cannot be, with
    a line per fault that begins with the argument's name, and for a budget that holds no selection.
    """
    from pydantic import ValidationError

    from kvferry.api.tune_check import checked
    from kvferry.pipelines.decoding.tuning import limits_of, tune_scenario
    from kvferry.policies.decode.tuning_limits import TuningLimits
    from kvferry.scenarios.faults import complaints_of

    loaded = load(source, settings, seed=seed)
    check_workload(loaded, "decode", "kvferry tune", "kvswap/throughput")
    given = {
        "kv_memory": _number("kv_memory", kv_memory, size=True),
        "selected_tokens": selected_tokens,
        "most_context": _number("most_context", most_context),
        "most_batch": most_batch,
        "most_group": most_group,
        "most_compression": most_compression,
        "relaxation": relaxation,
        "tolerance": tolerance,
        "buffer_step": buffer_step,
        "least_context": _number("least_context", least_context),
        "context_step": _number("context_step", context_step),
        "batch_step": batch_step,
    }
    try:
        limits = limits_of(loaded, **{_LIMITS[name]: value for name, value in given.items()})
    except ValidationError as error:
        names = {limit: name for name, limit in _LIMITS.items()}
        faults = complaints_of(error, TuningLimits)
        lines = (f"{names.get('.'.join(map(str, fault.key)), 'limits')}: {fault.what}" for fault in faults)
        raise InputError("\n".join(lines)) from None
    solutions, check = checked(loaded, tune_scenario(loaded, limits))
    return Tuned(loaded, solutions, check)


def _number(name: str, value: Any, size: bool = False) -> Any:
    """Raises InputError."""
    if not isinstance(value, str):
        return value
    try:
        return quantity(value, "size") if size else count(value)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
