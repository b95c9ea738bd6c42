"""What a device's wait for its first tokens depends on, and what a cloud's help makes of it (P/D-Device 3.2 to 3.4)."""

import math
from dataclasses import dataclass
from typing import Literal

# What the tokens from the cloud amortise. `paper`: prefill(rl) - TTFT_c, as Eq. 4 has it, though Eq. 3 begins that
# prefill at TTFT_c: what is shown stalls once. `causal`: TTFT_d - TTFT_c, the time that the device really takes.
Smoothing = Literal["causal", "paper"]
# How the mask reaches the device. `with-token`: in one message with the first token, which waits for it (3.3).
# `behind-token`: in a message of its own, for which no token waits.
MaskComes = Literal["with-token", "behind-token"]


@dataclass(frozen=True, kw_only=True)
class Assistance:
    """One device's request and what is known of both sides.

    A ratio r is the length of the refined prompt over that of the whole one. L tokens come from the cloud: the first,
    and L - 1 that it decodes. Prefill takes a time per token (Sec. 3.3): attention within a window is linear, and short
    prompts are bound by their dense layers.
    """

    # l
    prompt_tokens: int
    # k_c and k_d
    cloud_s_per_token: float
    device_s_per_token: float
    # The parts of delta(l), which bound what choosing, packing and sending a mask takes.
    compress_s: float
    decompress_s: float
    round_trip_s: float
    cloud_tpot_s: float
    device_tpot_s: float
    # tau
    tolerable_tpot_s: float
    # xi: less of the prompt costs too much quality in this scenario.
    least_ratio: float
    # The longest prompt that the device takes. None: any.
    most_device_tokens: int | None = None
    smoothing: Smoothing = "causal"
    mask: MaskComes = "with-token"
    # Of the device, for all tokens from the cloud in one pass. None: it decodes through them.
    catch_up_s: float | None = None

    @property
    def bare_ttft_s(self) -> float:
        """Until the cloud's first token could be there, where it waits for no mask."""
        return self.cloud_s_per_token * self.prompt_tokens + self.round_trip_s

    @property
    def cloud_ttft_s(self) -> float:
        """Until the cloud's first token is there (Eq. 2), and the mask where that comes with it: what the user
        waits."""
        waits_s = self.compress_s if self.mask == "with-token" else 0.0
        return self.cloud_s_per_token * self.prompt_tokens + waits_s + self.round_trip_s

    @property
    def unpacked_s(self) -> float:
        """From the cloud's first token until the mask is unpacked."""
        return self.decompress_s + (self.compress_s if self.mask == "behind-token" else 0.0)

    def prefill_s(self, ratio: float) -> float:
        """The device's prefill of the refined prompt."""
        return self.device_s_per_token * ratio * self.prompt_tokens

    def device_ttft_s(self, ratio: float) -> float:
        """Until the device has a first token of its own (Eq. 3)."""
        return self.cloud_ttft_s + self.unpacked_s + self.prefill_s(ratio)

    def amortised_s(self, ratio: float) -> float:
        """The wait that tokens from the cloud are spread over, beyond the device's own pace. Negative where the device
        is done first."""
        if self.smoothing == "paper":
            return self.prefill_s(ratio) - self.cloud_ttft_s
        return self.device_ttft_s(ratio) - self.cloud_ttft_s

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """Least and largest r (Eq. 5): quality, and that help must not take longer than prefilling the whole prompt on
        the device, which may not take it all."""
        extra_s = self.compress_s + self.decompress_s + self.round_trip_s
        helpful = 1 - (self.cloud_s_per_token + extra_s / self.prompt_tokens) / self.device_s_per_token
        most = 1.0 if self.most_device_tokens is None else self.most_device_tokens / self.prompt_tokens
        return self.least_ratio, min(helpful, most)

    def decoded_bounds(self, ratio: float) -> tuple[float, float]:
        """Least and largest L - 1 (Eq. 6): a pace that users tolerate, and no decoding in the cloud beyond the device's
        first token. The least is infinite where users do not tolerate the device's own pace, or nothing
        above it."""
        least = self.covering(self.amortised_s(ratio), self.device_tpot_s)
        return least, (self.device_ttft_s(ratio) - self.cloud_ttft_s) / self.cloud_tpot_s

    def covering(self, wait_s: float, tpot_s: float) -> float:
        """Least L - 1 with which a wait is covered at the tolerated pace by a device that takes `tpot_s` for a token.
        It decodes through them while they are shown (Eq. 4), or is behind all of them in one pass, and then decodes
        the next: (wait + pass + TPOT_d) / L <= tau."""
        wait_s, spare_s = max(0.0, wait_s), self.tolerable_tpot_s - tpot_s
        if self.catch_up_s is not None:
            covered = max(0.0, (wait_s + self.catch_up_s + tpot_s) / self.tolerable_tpot_s - 1)
            return covered if spare_s >= 0 else math.inf
        if spare_s > 0:
            return wait_s / spare_s
        return 0.0 if spare_s == 0 and wait_s <= 0 else math.inf
