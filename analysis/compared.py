"""The columns of comparisons, by kind of workload."""

from collections.abc import Collection, Iterable, Sequence

from kvferry.analysis.figures import RATES

# By the metric that a workload is about, the most important first: in a narrow terminal the last ones are left out.
COMPARED = (
    "ttft_s",
    "streamed_bits_per_value",
    "kv_relative_error",
    "energy_j",
    "regret",
    "link_bytes",
    "tpot_s",
    "throughput_tokens_per_s",
    "streamed_share",
    "link_utilisation",
    "compute_utilisation",
)
COMPARED_DECODING = (
    "throughput_tokens_per_s",
    *RATES,
    "kv_memory_peak_bytes",
    "attended_tokens",
    "attention_mass",
    "kv_bits_per_value",
    "agreement_share",
    "kl_nats",
    "perplexity_over_full",
    "recall_share",
    "right_share",
    "full_attention_right_share",
    "tpot_s",
    "reuse_rate",
    "storage_utilisation",
    "io_to_compute",
    "energy_j",
    "read_bytes",
    "copied_bytes",
    "compute_utilisation",
    "batch",
    "ttft_s",
)
# Columns of a comparison of devices with a cloud.
COMPARED_ASSISTED = (
    "ttft_s",
    "ttft_p95_s",
    "assisted_ratio",
    "largest_gap_s",
    "promised_tpot_s",
    "tpot_s",
    "lost_share",
    "uneven_share",
    "total_energy_j",
    "energy_j",
    "cloud_energy_j",
    "cloud_latency_s",
    "ttft_device_s",
    "cloud_throughput_requests_per_s",
    "uplink_bytes",
    "throughput_tokens_per_s",
)
# Columns of a comparison of conversations.
COMPARED_SESSIONS = (
    "ttft_s",
    "ttft_p95_s",
    "tpot_s",
    "attended_tokens",
    "attention_mass",
    "found_in_memory_share",
    "found_on_flash_share",
    "found_in_cloud_share",
    "computed_share",
    "total_energy_j",
    "energy_j",
    "cloud_energy_j",
    "write_bytes",
    "flash_life_years",
    "link_bytes",
    "memory_peak_bytes",
)
COLUMNS = {"ttft_s": COMPARED, "throughput_tokens_per_s": COMPARED_DECODING}


def columns_of(systems: Iterable[Collection[str]], ranked_by: str) -> Sequence[str]:
    """Returns the columns of a comparison of systems with these metrics."""
    known = set[str]().union(*systems)
    for key, columns in (("assisted_share", COMPARED_ASSISTED), ("computed_share", COMPARED_SESSIONS)):
        if key in known:
            return columns
    return COLUMNS.get(ranked_by, ())
