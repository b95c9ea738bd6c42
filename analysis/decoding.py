"""Figures of decoding a batch, over its whole output, even where only a part was carried out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from kvferry.machine.ops import BLOCK_LABELS
from kvferry.pipelines.record import Decoded, RequestRecord, Run
from kvferry.pipelines.tally import Totals

# Observed in a real world; what managing the KV really took goes before what was reserved for it.
_OBSERVED = ("kv_metadata_bytes", "kv_buffer_bytes", "kv_read_bytes", "kv_log_bytes", "resident_bytes")
_BATCHES = ("storage_batches", "storage_batches_late")


@dataclass(frozen=True)
class Paces:
    """Steps that were carried out, over all sequences, and what a whole output comes to.

    ``times``: how often the second half of what was carried out follows again. ``tokens`` after each sequence's first,
    and the seconds in which they were decoded.
    """

    times: float
    tokens: float
    decoding_s: float
    tpot_s: float


def paces_of(decoded: Decoded, requests: Sequence[RequestRecord] = (), *, interrupted: bool = False) -> Paces | None:
    """The paces of the whole output. Tokens that were not decoded are taken to follow at the pace of the second half of
    the ones that were, and to cost as much of everything (left out: a system that reads all KV reads more towards the
    end). For an interrupted run, the paces of what was decoded; where requests come and go, their mean. None where no
    sequence has two tokens."""
    if decoded.steps:
        tokens = sum(n for n, _ in decoded.steps)
        gaps_s = [[b - a for a, b in pairwise(r.token_times_s)] for r in requests if len(r.token_times_s) > 1]
        tpot_s = sum(sum(gaps) / len(gaps) for gaps in gaps_s) / len(gaps_s)
        return Paces(0.0, tokens, sum(step_s for _, step_s in decoded.steps), tpot_s)
    times_s, batch = decoded.token_times_s, decoded.batch
    done = len(times_s) - 1
    if done < 1:
        return None
    decoding_s, rest = times_s[-1] - times_s[0], decoded.output - 1 - done
    if interrupted or decoded.half is None or rest <= 0:
        decoding_s += decoded.moves_s
        return Paces(0.0, batch * done, decoding_s, decoding_s / done)
    late = done - decoded.half_step
    decoding_s += rest / late * (times_s[-1] - times_s[-1 - late]) + decoded.moves_s
    return Paces(rest / late, batch * (done + rest), decoding_s, decoding_s / (done + rest))


def decoding_metrics(
    run: Run, decoded: Decoded, *, main_processor: str, measure: Literal["end_to_end", "decode"]
) -> dict[str, float]:
    """``block_s``: TPOT over layers; ``block_io_s``: time in reads, per layer and step. ``io_to_compute``: time in
    reads over time in a block's ops, both while decoding. Throughput counts all sequences' tokens, over the time spent
    decoding (measure "decode") or all of it. All but ``tokens_decoded``, which were really decoded, is of the whole
    output; energy is per sequence."""
    paces = paces_of(decoded, run.requests, interrupted=run.interrupted)
    if paces is None or run.outcome not in ("done", "interrupted"):
        return {}
    end = _sums(decoded.end, decoded.end_counts, main_processor)
    half = {} if decoded.half is None else _sums(decoded.half, decoded.half_counts, main_processor)
    sums, energy_j = _extended(end, half, paces.times), dict(decoded.end.energy_j)
    if decoded.half is not None:
        energy_j = _extended(energy_j, decoded.half.energy_j, paces.times)
    # The first tokens come from prefill.
    all_tokens = paces.tokens + (len(run.requests) if decoded.steps else decoded.batch)
    rates = {"decode": paces.tokens / paces.decoding_s, "end_to_end": all_tokens / sums["duration_s"]}
    figures = {
        "throughput_tokens_per_s": rates[measure],
        **{f"{over}_tokens_per_s": rate for over, rate in rates.items()},
        "seconds_per_token": 1 / rates[measure],
        "tpot_s": paces.tpot_s,
        "block_s": paces.tpot_s / decoded.layers,
        "batch": float(decoded.batch),
        "tokens_decoded": float(len(decoded.token_times_s if decoded.carried_out_s is None else decoded.carried_out_s)),
        "read_bytes": sums["read_bytes"],
        "write_bytes": sums["write_bytes"],
        "storage_utilisation": sums["storing_s"] / sums["duration_s"],
        "compute_utilisation": sums["computing_s"] / sums["duration_s"],
    }
    figures |= _attention(decoded, sums)
    if sums["copied_bytes"]:
        figures["copied_bytes"] = sums["copied_bytes"]
    if decoded.steps:
        figures["batch"] = sum(n for n, _ in decoded.steps) / len(decoded.steps)
        figures["tokens_decoded"] = sum(len(r.token_times_s) for r in run.requests) / len(run.requests)
        if decoded.preemptions:
            figures["preemptions"] = float(decoded.preemptions)
    if sums["reading_s"]:
        figures["block_io_s"] = sums["reading_s"] * decoded.batch / (paces.tokens * decoded.layers)
    if sums["reading_s"] and sums.get("brought_bytes"):
        figures["effective_bytes_per_s"] = sums["brought_bytes"] / sums["reading_s"]
    if sums["reading_s"] and sums["block_ops_s"]:
        figures["io_to_compute"] = sums["reading_s"] / sums["block_ops_s"]
    if decoded.metadata_bytes is not None and decoded.buffer_bytes is not None:
        figures["kv_metadata_bytes"] = decoded.metadata_bytes
        figures["kv_buffer_bytes"] = decoded.buffer_bytes
    if decoded.reuses and sums["wanted"]:
        figures["reuse_rate"] = sums["reused"] / sums["wanted"]
    if sums.get("accesses"):
        figures["access_entries"] = sums["accessed"] / sums["accesses"]
    if decoded.longest_access:
        figures["access_entries_max"] = float(decoded.longest_access)
    if decoded.space_overhead is not None:
        figures["space_overhead"] = decoded.space_overhead
        figures["moved_bytes"] = sums.get("moved_bytes", 0.0)
        figures["cut_read_bytes"] = sums.get("cut_read_bytes", 0.0)
    if sums.get("new_bytes"):
        figures["write_amplification"] = sums["written_bytes"] / sums["new_bytes"]
    if run.requests:
        figures |= {f"energy_{part}_j": total_j / len(run.requests) for part, total_j in sorted(energy_j.items())}
        if energy_j:
            figures["energy_j"] = sum(energy_j.values()) / len(run.requests)
    if "quality" in run.measured:
        # What was measured goes before what the selector is known for.
        figures.pop("attention_mass_spread", None)
        figures |= run.measured["quality"]
    return figures | _observed(run)


def _attention(decoded: Decoded, sums: Mapping[str, float]) -> dict[str, float]:
    """Returns the mean number of tokens that attention takes in, and the attention mass that they hold where known."""
    if not sums.get("attentions"):
        return {}
    share = sums["attended"] / sums["attendable"]
    found = {"attended_tokens": sums["attended"] / sums["attentions"], "attended_share": share}
    if decoded.recall is not None:
        found["recall_share"] = decoded.recall
    if decoded.attention_mass is None:
        return found
    mean, spread = decoded.attention_mass
    return found | {"attention_mass": mean} | ({"attention_mass_spread": spread} if share < 1 else {})


def _sums(totals: Totals, counts: Mapping[str, float], main_processor: str) -> dict[str, float]:
    busy_s, n_bytes = totals.busy_s, totals.n_bytes
    return {
        "duration_s": totals.now_s,
        "read_bytes": n_bytes.get(("storage", "Read"), 0.0),
        "write_bytes": n_bytes.get(("storage", "Write"), 0.0),
        "copied_bytes": sum(moved for (resource, _), moved in n_bytes.items() if resource == "copy"),
        "reading_s": busy_s.get(("storage", "Read"), 0.0),
        "block_ops_s": sum(busy_s.get((main_processor, label), 0.0) for label in BLOCK_LABELS),
        "computing_s": sum(seconds for (resource, _), seconds in busy_s.items() if resource == main_processor),
        "storing_s": totals.now_s * totals.storage_utilisation,
        "wanted": 0.0,
        "reused": 0.0,
        **counts,
    }


def _extended(now: Mapping[str, float], before: Mapping[str, float], times: float) -> dict[str, float]:
    """The sums `now`, to which what was added since `before` is added this many times more."""
    if not times:
        return dict(now)
    return {name: value + times * (value - before.get(name, 0.0)) for name, value in now.items()}


def _observed(run: Run) -> dict[str, float]:
    found = {name: float(run.measured[name]) for name in (*_OBSERVED, *_BATCHES) if name in run.measured}
    if "kv_metadata_bytes" in found:
        found["kv_memory_peak_bytes"] = found["kv_metadata_bytes"] + found["kv_buffer_bytes"]
    return found
