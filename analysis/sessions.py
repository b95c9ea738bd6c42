"""Figures of conversations whose KV lives on: where contexts came from, what turns waited for, what flash takes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvferry.analysis.arrow_columns import real, text, whole
from kvferry.analysis.assisted import energy_with_cloud
from kvferry.pipelines.record import Run, TurnRecord
from kvferry.specs.storage import StorageSpec

_DAY_S, _YEAR_S = 86_400.0, 365.25 * 86_400.0
_ROUNDING = 1e-12
# Where the KV of a prompt's tokens came from, the nearest first, by the field of a record.
FROM = {"memory": "from_memory", "flash": "from_flash", "cloud": "from_cloud", "computed": "computed"}


# The paths over which the rest of a prompt's KV came.
PATHS = ("reading", "streaming", "computing")


def brought(turn: TurnRecord) -> Mapping[str, float]:
    """Returns the tokens of a turn's prompt that were not in memory, by the path over which their KV came."""
    computed = turn.prompt - turn.from_memory - turn.read - turn.streamed
    return dict(zip(PATHS, (turn.read, turn.streamed, computed), strict=True))


def mostly_by(turn: TurnRecord) -> str:
    """Returns the path over which most of it came; of equal parts, the first."""
    parts = brought(turn)
    return max(PATHS, key=lambda path: parts[path])


def mostly_from(turn: TurnRecord) -> str:
    """Returns where most of a turn's prompt came from; of equal parts, the nearest."""
    return max(FROM, key=lambda place: getattr(turn, FROM[place]))


def session_metrics(run: Run, storage: StorageSpec | None) -> dict[str, float]:
    """``found_..._share``: of all prompts' tokens, and ``computed_share`` the rest. ``ttft_<place>_s``: mean over
    the turns most of whose prompt came from there. ``by_..._share``: of all prompts' tokens, by the path over which
    those came that were not in memory; ``ttft_by_..._s``: mean over the turns most of whose came so.
    ``answer_s``: from a question to the last token of its answer, mean. ``queue_s``, ``context_s``, ``question_s``:
    parts of a turn's wait for its first token, means: until the device turns to it, until what is known of its prompt
    is there, and until the rest is read. ``waits_s``: for first tokens, of all turns together, ``waits_bound_s``: what
    no system could save of it, whatever it keeps, loads and foresees, and ``waits_savable_share``: of the waits, the
    others. ``said_by_cloud_share``: of answers' tokens, those of a cloud that helps.
    ``attended_...``, ``attention_...``: as of decoding, over the tokens of all answers.
    ``kept_written_bytes``: written to flash between turns. ``flash_written_per_day_bytes``: by all, and
    ``flash_life_years``: until that is what the storage's profile says it endures. ``day_energy_j``: of the device.
    ``cloud_energy_j``, ``total_energy_j``: with a cloud that helps, as of devices. ``kept_blocks_dropped``: of an
    earlier run's file, where any were."""
    turns = run.sessions.turns if run.sessions is not None else ()
    if not turns:
        return {}
    prompts = sum(turn.prompt for turn in turns)
    tokens = {place: sum(getattr(turn, key) for turn in turns) for place, key in FROM.items()}
    found = {
        "found_in_memory_share": tokens["memory"] / prompts,
        "found_on_flash_share": tokens["flash"] / prompts,
        "found_in_cloud_share": tokens["cloud"] / prompts,
        "computed_share": tokens["computed"] / prompts,
    }
    for place in FROM:
        ttft_s = [turn.first_token_s - turn.arrival_s for turn in turns if mostly_from(turn) == place]
        if ttft_s:
            name = place if place == "computed" else f"from_{place}"
            found[f"ttft_{name}_s"] = float(np.mean(ttft_s))
    for path in PATHS:
        found[f"by_{path}_share"] = sum(brought(turn)[path] for turn in turns) / prompts
        ttft_s = [turn.first_token_s - turn.arrival_s for turn in turns if mostly_by(turn) == path]
        if ttft_s:
            found[f"ttft_by_{path}_s"] = float(np.mean(ttft_s))
    found["answer_s"] = float(np.mean([turn.end_s - turn.arrival_s for turn in turns]))
    found["queue_s"] = float(np.mean([turn.began_s - turn.arrival_s for turn in turns]))
    found["context_s"] = float(np.mean([turn.got_s - turn.began_s for turn in turns]))
    found["question_s"] = float(np.mean([turn.first_token_s - turn.got_s for turn in turns]))
    found["waits_s"] = float(sum(turn.first_token_s - turn.arrival_s for turn in turns))
    bounds_s = [turn.bound_s for turn in turns if turn.bound_s is not None]
    if len(bounds_s) == len(turns):
        found["waits_bound_s"] = float(sum(bounds_s))
        # What is bound and what was waited are sums in another order.
        saved = 1.0 - found["waits_bound_s"] / found["waits_s"] if found["waits_s"] else 0.0
        found["waits_savable_share"] = 0.0 if abs(saved) < _ROUNDING else saved
    found |= _attention(turns)
    if said := sum(turn.said_by_cloud for turn in turns):
        found["said_by_cloud_share"] = said / sum(turn.output for turn in turns)
    if run.machines:
        found |= energy_with_cloud(run, run.energy_j, len(turns))
    found["kept_written_bytes"] = sum(turn.written_bytes for turn in turns)
    if dropped := run.measured.get("kept_blocks_dropped"):
        found["kept_blocks_dropped"] = float(dropped)
    if run.duration_s:
        written_bytes = run.tally.bytes_of("storage", "Write")
        if written_bytes:
            found["flash_written_per_day_bytes"] = written_bytes / run.duration_s * _DAY_S
            if storage is not None and storage.endurance_bytes is not None:
                found["flash_life_years"] = storage.endurance_bytes / (written_bytes / run.duration_s * _YEAR_S)
        if run.energy_j:
            found["day_energy_j"] = sum(run.energy_j.values()) / run.duration_s * _DAY_S
    return found


def _attention(turns: Sequence[TurnRecord]) -> dict[str, float]:
    """Returns the mean number of tokens that attention takes in, over all tokens behind turns' first ones, and the
    attention mass on them where it is known of every turn."""
    told = [(turn.output - 1, turn.attention) for turn in turns if turn.attention is not None]
    if not told:
        return {}
    steps = sum(n for n, _ in told)
    tokens, of = (sum(n * getattr(one, key) for n, one in told) / steps for key in ("tokens", "of"))
    found = {"attended_tokens": tokens, "attended_share": tokens / of}
    masses = [(n, one.mass) for n, one in told if one.mass is not None]
    if len(masses) < len(told):
        return found
    mean, spread = (sum(n * mass[part] for n, mass in masses) / steps for part in (0, 1))
    return found | {"attention_mass": mean} | ({"attention_mass_spread": spread} if tokens < of else {})


def turns_columns(turns: tuple[TurnRecord, ...]) -> Mapping[str, Any]:
    """A row per turn, in the order of their numbers: the fields of TurnRecord, with ``ttft_s``, ``mostly_from`` and
    ``mostly_by``."""
    counts = ("request", "conversation", "number", "prompt", "output", *FROM.values(), "units_streamed",
              "units_computed", "units_read", "said_by_cloud")  # fmt: skip
    times = ("arrival_s", "began_s", "got_s", "first_token_s", "end_s")
    sizes = ("read", "streamed", "written_bytes", "streamed_bytes", "kept_memory_bytes", "kept_flash_bytes")
    columns = {key: whole([getattr(turn, key) for turn in turns]) for key in counts}
    columns |= {key: real([getattr(turn, key) for turn in turns]) for key in (*times, *sizes)}
    columns["ttft_s"] = real([turn.first_token_s - turn.arrival_s for turn in turns])
    if all(turn.bound_s is not None for turn in turns):
        columns["bound_s"] = real([turn.bound_s for turn in turns])
    columns["mostly_from"] = text([mostly_from(turn) for turn in turns])
    columns["mostly_by"] = text([mostly_by(turn) for turn in turns])
    return columns
