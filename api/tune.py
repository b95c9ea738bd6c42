"""Parameters of decoding with KV on storage, found offline as KVSwap does (Section 3.5 and appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.remarks import how_known, software
from kvferry.api.scenario import Settings, Source, check_workload, load
from kvferry.pipelines.plugins import naming_plugins
from kvferry.specs.errors import InputError, pick
from kvferry.specs.scenario import Scenario
from kvferry.specs.units import count, quantity

if TYPE_CHECKING:
    import pandas as pd

    from kvferry.api.tune_check import Check
    from kvferry.policies.decode.solutions import Solutions

# The tuner's limits (TuningLimits) that have a shorter name here; others have one name everywhere.
_NAMES = {"budget_bytes": "kv_memory", "most_group_tokens": "most_group", "slots_step_tokens": "buffer_step"}


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
def tune(source: Source, settings: Settings = (), *, seed: int | None = None, **limits: str | float | None) -> Tuned:
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
    # What is decoded is the scenario's.
    names = {limit: _NAMES.get(limit, limit) for limit in TuningLimits.model_fields if limit != "output"}
    for name in limits:
        pick("limit", dict.fromkeys(names.values()), name)
    try:
        allowed = limits_of(loaded, **{limit: _number(name, limits.get(name)) for limit, name in names.items()})
    except ValidationError as error:
        faults = complaints_of(error, TuningLimits)
        lines = (f"{names.get('.'.join(map(str, fault.key)), 'limits')}: {fault.what}" for fault in faults)
        raise InputError("\n".join(lines)) from None
    solutions, check = checked(loaded, tune_scenario(loaded, allowed))
    return Tuned(loaded, solutions, check)


def _number(name: str, value: Any) -> Any:
    """Raises InputError."""
    if not isinstance(value, str):
        return value
    try:
        return quantity(value, "size") if name == "kv_memory" else count(value)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
