"""A phone that a cloud helps, in round numbers."""

from kvferry.policies.assist.assistance import Assistance

# The cloud prefills 8,000 tokens in 0.8 s and the device in 12 s; the first token and the mask are there after 0.95 s.
PHONE = Assistance(
    prompt_tokens=8000,
    cloud_s_per_token=0.1e-3,
    device_s_per_token=1.5e-3,
    compress_s=0.1,
    decompress_s=0.05,
    round_trip_s=0.05,
    cloud_tpot_s=0.03,
    device_tpot_s=0.04,
    tolerable_tpot_s=0.1,
    least_ratio=0.25,
)


def smoothed_tpot_s(of: Assistance, ratio: float, tokens: int) -> float:
    """Returns the pace at which `tokens` from the cloud are shown (Eq. 4); never faster than the device's own."""
    return of.device_tpot_s + max(0.0, of.amortised_s(ratio)) / (tokens - 1)
