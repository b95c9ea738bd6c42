"""What a metric is called, and what it means: the labels of tables and axes, and the texts of help and docs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """How a metric is shown: its label, whether higher is better (None: neither is), and what it is."""

    label: str
    better: Literal["low", "high"] | None = None
    about: str = ""


# In the order they are shown. A metric that is not named here is shown last under its key.
FIGURES: dict[str, Figure] = {
    "ttft_s": Figure(
        "TTFT, mean", "low", "time to first token: from a request's arrival, waiting included; mean over requests"
    ),
    "ttft_p50_s": Figure("TTFT, median", "low", "median over requests"),
    "ttft_p95_s": Figure("TTFT, p95", "low", "95th percentile over requests"),
    "ttft_p99_s": Figure("TTFT, p99", "low", "99th percentile over requests"),
    "ttft_first_turn_s": Figure("TTFT, first turns", "low", "of the first turn of each conversation; mean"),
    "ttft_later_turns_s": Figure("TTFT, later turns", "low", "of all other turns; mean"),
    "ttft_device_s": Figure(
        "own TTFT", "low", "from arrival until a device that a cloud helps has a first token of its own; mean"
    ),
    "load_s": Figure("load time", "low", "from arrival until the context's KV is complete; mean"),
    "bound_s": Figure(
        "bound on the load", None, "no schedule could have been faster, even knowing the whole trace of the link; mean"
    ),
    "bound_gap": Figure("gap to the bound", "low", "mean load time over mean bound, minus 1"),
    "regret": Figure(
        "regret, at most",
        "low",
        "load time over its bound, minus 1; mean. The best possible schedule lies between the two",
    ),
    "regret_p95": Figure("regret, p95", "low", "its 95th percentile over requests"),
    "answer_s": Figure("whole answer", "low", "from a question to the last token of its answer; mean"),
    "tpot_s": Figure("TPOT", "low", "time per output token after the first, of a request; mean"),
    "tpot_p50_s": Figure("TPOT, median", "low", "median over requests"),
    "tpot_p95_s": Figure("TPOT, p95", "low", "95th percentile over requests"),
    "tpot_p99_s": Figure("TPOT, p99", "low", "99th percentile over requests"),
    "largest_gap_s": Figure("largest gap", "low", "longest wait between two tokens of one request"),
    "throughput_tokens_per_s": Figure(
        "tokens/s", "high", "of all requests together; with `measure: decode` over the time of decoding alone"
    ),
    "decode_tokens_per_s": Figure(
        "tokens/s, decoding", "high", "over the time of decoding alone, first tokens left out"
    ),
    "end_to_end_tokens_per_s": Figure(
        "tokens/s, with prefill", "high", "from the first arrival to the last token, first tokens included"
    ),
    "attended_tokens": Figure(
        "tokens attended to",
        None,
        "tokens of a sequence that attention takes in: per layer, KV head and step; mean. A system that leaves some out"
        " is marked (*): its rate is not one of equal quality",
    ),
    "attended_share": Figure("of all tokens", None, "share of the tokens that there are by then"),
    "attention_mass": Figure(
        "attention mass",
        "high",
        "share of true attention mass on the tokens attended to, measured for the selector at that share on a bundled"
        ' model: an indicator only; "not known" for other selectors and smaller shares. With `live.quality` that of the'
        " run itself",
    ),
    "attention_mass_spread": Figure(
        "attention mass, give or take",
        None,
        "half the difference of the attention mass between the texts that it was measured on",
    ),
    "agreement_share": Figure(
        "agrees with full attention",
        "high",
        "share of tokens behind the first where the most likely next token is that of full attention over the same"
        " tokens; of real runs with `live.quality`, as those below",
    ),
    "kl_nats": Figure("KL from full attention, nats", "low", "divergence of the next token's distribution; mean"),
    "kl_p95_nats": Figure("KL, p95", "low", "its 95th percentile over tokens"),
    "perplexity": Figure("perplexity", "low", "of the text that is said, behind its context"),
    "perplexity_over_full": Figure("perplexity over full", "low", "perplexity over that of full attention"),
    "recall_share": Figure(
        "selection's recall",
        "high",
        "of the k tokens of a KV head with most true attention mass, the share among the k that were chosen; mean over"
        " heads, layers and steps. Tokens that are attended to besides do not count. Modelled: where keys are generated"
        " or recorded, by what queries want of them",
    ),
    "full_attention_right_share": Figure(
        "right with full attention", None, "share of answers that full attention says right: what the model can at all"
    ),
    "slo_attainment": Figure("requests within the SLO", "high", "share of requests that meet all limits of the SLO"),
    "goodput_requests_per_s": Figure("of them per second", "high", "requests per second that meet the SLO"),
    "goodput_tokens_per_s": Figure("their tokens/s", "high", "tokens per second of requests that meet the SLO"),
    "energy_j": Figure(
        "energy/request",
        "low",
        "of the device alone, over the whole run, idle time included, and over its requests; of devices with a cloud"
        ' while they have a request. "not counted" where a part is unknown',
    ),
    "cloud_energy_j": Figure(
        "cloud's energy/request", "low", "of all its machines over the whole run, idle time included, over the requests"
    ),
    "total_energy_j": Figure("both together", "low", "devices and cloud, per request"),
    "battery_percent_per_request": Figure(
        "battery/request, %", "low", "the energy of a request, of what the charged battery holds"
    ),
    "temperature_max_c": Figure(
        "hottest, C", "low", "the chip's highest temperature, where a device's heat is modelled"
    ),
    "first_throttled_s": Figure("throttles after", "high", "when the clock was first below the full one"),
    "throttled_s": Figure("throttled for", "low", "how long the clock was below the full one"),
    "least_clock": Figure(
        "least clock", "high", "of the processors, a share of the full one; their rates fall with it"
    ),
    "memory_peak_bytes": Figure(
        "memory peak",
        "low",
        "of all that is held together, by name below: weights, the runtime, workspace, KV; of several devices, of the"
        " one that held most",
    ),
    "kv_memory_peak_bytes": Figure("KV memory peak", "low", "of KV and what manages it, in memory"),
    "kv_metadata_bytes": Figure("KV metadata", "low", "what selects KV: keys of low rank, landmarks, tables"),
    "kv_buffer_bytes": Figure("KV buffers", "low", "KV that is kept in memory: reuse and rolling buffers"),
    "streamed_share": Figure(
        "units streamed", None, "share of the context's units that came over the link; the others were computed"
    ),
    "streamed_bits_per_value": Figure(
        "bits per value", None, "of what was streamed; with the same encoding, fewer bits are coarser KV"
    ),
    "kv_relative_error": Figure(
        "KV error",
        "low",
        "error of the KV relative to its size, by what was measured of its encoding on a bundled model, in a real run"
        " on the model that runs; what was computed counts as exact, though a modelled prefill leaves out attention"
        " blocks that matter little. Streamed with a clearly larger one than others: answers of lower quality (*)",
    ),
    "kv_bits_per_value": Figure(
        "bits per KV value",
        None,
        "as attention takes KV in, where fewer than 16. Fewer than another system's: answers of lower quality (*)",
    ),
    "kv_kl_nats": Figure(
        "KL, nats (indicator)",
        "low",
        "how far a bundled model's next token strays under that encoding; an indicator only",
    ),
    "assisted_tokens": Figure(
        "cloud's tokens", None, "that came in time to be used, the first included, of requests to which any came; mean"
    ),
    "assisted_tokens_max": Figure("the most of them", None, "of a request"),
    "planned_tokens": Figure("planned", None, "L, the first included, of the same requests; shown if not all came"),
    "planned_tokens_max": Figure("the most planned", None, "largest L of a request"),
    "assisted_ratio": Figure(
        "prompt kept",
        None,
        "r, the part of a prompt that the device prefills; mean. Less than all: answers of lower quality (*)",
    ),
    "assisted_share": Figure("requests helped", None, "share of requests that the cloud had a part in"),
    "lost_share": Figure(
        "requests let down",
        "low",
        "share with which something went wrong in the cloud, or one of its tokens came behind the device's own; one "
        "that is late and still comes first is in the largest gap alone",
    ),
    "uneven_share": Figure("let down by pace", "low", "of requests: a gap 17 ms, one frame, beyond the promise"),
    "corrected_tokens": Figure(
        "tokens corrected", None, "cloud's tokens where the device's model would have said another; mean"
    ),
    "right_share": Figure("answers right", "high", "share of answers that begin as they should, of real models"),
    "promised_tpot_s": Figure(
        "promised TPOT", "low", "the pace at which tokens from the cloud are shown (Eq. 4); mean"
    ),
    "promised_tpot_max_s": Figure("the longest", "low", "of a request"),
    "cloud_throughput_requests_per_s": Figure(
        "cloud's requests/s", "high", "from the first arrival to the last served"
    ),
    "slot_occupancy": Figure("slots held", None, "share of the cloud's slots, over that time"),
    "cloud_latency_s": Figure(
        "slot held for", "low", "from a slot to the last token of a request; mean over those served"
    ),
    "cloud_prefix_share": Figure(
        "prompts found in cache", None, "tokens of prompts whose KV an instance had kept, of all (prefix caching)"
    ),
    "cloud_batch": Figure("decoding together", None, "requests in a step of an instance of the cloud; mean"),
    "cloud_utilisation": Figure("cloud's processors busy", None, "share of the run; mean over instances"),
    "prefill_utilisation": Figure("those that prefill busy", None, "the same of these instances"),
    "decode_utilisation": Figure("those that decode busy", None, "the same of these instances"),
    "prepared_mean_s": Figure("device prepares", "low", "before anything leaves it; mean, as the parts below"),
    "answered_mean_s": Figure("the cloud answers", "low", "from asking until its first token is there"),
    "waited_mean_s": Figure("of it for a slot", "low", "in the cloud's queue"),
    "cloud_prefill_mean_s": Figure("of it prefill", "low", "in the cloud, waiting for an instance within"),
    "refined_mean_s": Figure(
        "cloud refines",
        "low",
        "chooses what of the prompt is kept, and packs the mask; behind the first token by default",
    ),
    "unpacked_mean_s": Figure("then for the mask", "low", "from the first token until the mask is there and unpacked"),
    "own_prefill_mean_s": Figure("device prefills", "low", "from then until it has a first token of its own"),
    "first_response_bytes": Figure("first response", "low", "bytes of the first token and the mask; mean"),
    "first_response_bytes_max": Figure("the largest", "low", "bytes"),
    "link_bytes": Figure("link traffic", None, "over the run; of several devices, of all of them"),
    "uplink_bytes": Figure("uplink traffic", None, "over the run: what all devices send"),
    "wasted_bytes": Figure(
        "of it wasted", "low", "fetched for nothing: the processor was first, not all came, or it was unusable"
    ),
    "read_bytes": Figure("storage read", None, "over the run"),
    "write_bytes": Figure("storage written", None, "over the run"),
    "copied_bytes": Figure("copied between memories", None, "between those of host and processor (PCIe); over the run"),
    "found_in_memory_share": Figure(
        "found in memory", "high", "share of all prompts' tokens whose KV was there; of conversations, as those below"
    ),
    "found_on_flash_share": Figure("found on flash", None, "the same"),
    "found_in_cloud_share": Figure("found in the cloud", None, "the same, there alone: streamed, or computed"),
    "computed_share": Figure("found nowhere", "low", "the same: new, or given up, and computed"),
    "ttft_from_memory_s": Figure(
        "TTFT from memory", "low", "of turns most of whose prompt was there; mean, as those below"
    ),
    "ttft_from_flash_s": Figure("TTFT from flash", "low", "the same"),
    "ttft_from_cloud_s": Figure("TTFT from the cloud", "low", "the same"),
    "ttft_computed_s": Figure("TTFT computed", "low", "of turns most of whose prompt was nowhere"),
    "by_reading_share": Figure(
        "brought by reading", None, "share of all prompts' tokens that were not in memory, by their path; from flash"
    ),
    "by_streaming_share": Figure("brought by streaming", None, "the same, over the link"),
    "by_computing_share": Figure("brought by computing", None, "the same, found somewhere or new"),
    "ttft_by_reading_s": Figure(
        "TTFT by reading", "low", "of turns most of which came so, but for what was in memory; mean, as those below"
    ),
    "ttft_by_streaming_s": Figure("TTFT by streaming", "low", "the same"),
    "ttft_by_computing_s": Figure("TTFT by computing", "low", "the same"),
    "queue_s": Figure("waits for other turns", "low", "part of a turn's time to first token; mean, as those below"),
    "context_s": Figure("waits for its context", "low", "until what is known of it is in memory"),
    "question_s": Figure("waits for its question", "low", "until the rest is read and the first token is there"),
    "waits_s": Figure("waits of all turns", "low", "for their first tokens, together"),
    "waits_bound_s": Figure("of it needed", None, "on an idle device, all that existed in memory as far as it fits"),
    "waits_savable_share": Figure("of it savable", "low", "at most, by whatever is kept, loaded and foreseen"),
    "said_by_cloud_share": Figure("said by the cloud", "low", "share of answers' tokens, where a cloud helps"),
    "kept_written_bytes": Figure("of it to keep KV", "low", "written between turns, as memory had no room"),
    "kept_blocks_dropped": Figure("kept blocks dropped", "low", "of an earlier run's file, cut or changed since"),
    "flash_written_per_day_bytes": Figure("written per day", "low", "to storage, by all that writes"),
    "flash_life_years": Figure(
        "flash endures, years", "high", "until that is what the storage's profile says it endures"
    ),
    "day_energy_j": Figure("energy per day", "low", "of the device, idle time included"),
    "battery_percent_per_day": Figure("battery per day, %", "low", "that energy, of what the charged battery holds"),
    "reuse_rate": Figure("KV reused", "high", "share of selected KV blocks that were still in memory"),
    "effective_bytes_per_s": Figure(
        "effective bandwidth", "high", "KV that attention wanted and storage brought, over the time in reads"
    ),
    "access_entries": Figure(
        "entries per access", "high", "KV entries of clusters that lie in one piece and are read in one step; mean"
    ),
    "access_entries_max": Figure("longest access", None, "the most of them"),
    "moved_bytes": Figure(
        "KV moved on storage",
        "low",
        "entries of clusters that were stored and are written again as clusters grow and are cut; over the run",
    ),
    "cut_read_bytes": Figure(
        "KV read to be cut",
        "low",
        "entries of clusters that no query wanted, and that were read to be cut; over the run",
    ),
    "write_amplification": Figure(
        "write amplification", "low", "bytes written to clusters, in whole pages, over those of the new entries"
    ),
    "space_overhead": Figure(
        "space overhead", "low", "what clusters take of the storage over the bytes of their entries, minus 1"
    ),
    "io_to_compute": Figure(
        "I/O to compute", "low", "time in reads over time in computing the layers; above 1 reads cannot all be hidden"
    ),
    "block_s": Figure("time per layer", "low", "TPOT over the number of layers"),
    "block_io_s": Figure("of it reading", "low", "time in reads per layer and step, hidden or not"),
    "seconds_per_token": Figure("time per token of the batch", "low", "1 / tokens/s"),
    "tokens_decoded": Figure(
        "tokens decoded per sequence",
        None,
        "that were carried out; the rest of the output follows at the pace of the later half",
    ),
    "batch": Figure("sequences together, mean", None, "decoded in one step; mean over steps"),
    "preemptions": Figure("preemptions", "low", "how often a request gave up its KV for others"),
    "uplink_utilisation": Figure(
        "uplink busy", None, "share of the time from the first arrival to the last token; of several devices, the mean"
    ),
    "link_utilisation": Figure("link busy", None, "share of the time from the first arrival to the last token"),
    "compute_utilisation": Figure("processor busy", None, "the same of the main processor"),
    "storage_utilisation": Figure("storage busy", None, "the same of storage"),
    "requests": Figure("requests", None, "that arrived"),
    "requests_finished": Figure("finished", None, "that reached their first token"),
    "kv_read_bytes": Figure("KV in read buffers", None, "memory that reads under way take, in a real run"),
    "kv_log_bytes": Figure("log of the KV file", None, "bytes of it, in a real run that keeps its file"),
    "resident_bytes": Figure("memory of the process", None, "resident at the end of a real run"),
    "storage_batches": Figure("batches of reads", None, "handed to storage, in a real run"),
    "storage_batches_late": Figure("of them late", "low", "not complete when the layer wanted them"),
}

# Both rates of decoding; a scenario's `measure` says which of them ``throughput_tokens_per_s`` is.
RATES = ("decode_tokens_per_s", "end_to_end_tokens_per_s")


def explained(keys: Iterable[str]) -> str:
    """Labels with what they mean, a paragraph each, for ``--help``."""
    return "\n\n".join(f"{FIGURES[key].label}: {FIGURES[key].about}." for key in keys)


def less_is_better(metric: str) -> bool | None:
    """Whether less of a metric is better; None where that is not known. A part's energy is like the whole's."""
    if metric not in FIGURES:
        return True if re.fullmatch(r"energy_\w+_j", metric) else None
    better = FIGURES[metric].better
    return None if better is None else better == "low"


def label_of(key: str, of_devices: bool) -> str:
    """Returns a metric's name in tables and on axes. `of_devices`: devices have a cloud, whose energy is apart."""
    part = re.fullmatch(r"energy_(\w+)_j", key)
    label = f"{FIGURES['energy_j'].label}: {part[1]}" if part else FIGURES[key].label if key in FIGURES else key
    if of_devices and (part or key in ("energy_j", "day_energy_j")):
        return f"devices' {label}"
    if key == "memory_peak_bytes" and of_devices:
        return "memory peak of one device"
    return label
