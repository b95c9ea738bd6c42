"""Who answers where problem P has no solution: the device, the cloud, or both with the help that comes nearest."""

import math
from dataclasses import dataclass
from typing import Literal

from kvferry.policies.assist.assistance import Assistance
from kvferry.policies.assist.optimiser import NoSetting, Setting

# Numbers of tokens are whole, up to so much.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What a device does with the whole prompt: when it has its first token, and its time per token then."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Fallback:
    """``setting``: of the help that comes nearest; None: the device or the cloud answers by itself. ``slow_s``: its
    time per token, where that is more than users tolerate."""

    by: Literal["device", "cloud", "both"]
    why: NoSetting
    setting: Setting | None = None
    slow_s: float | None = None

    def __str__(self) -> str:
        if self.setting is None:
            slow = "" if self.slow_s is None else f", whose {1e3 * self.slow_s:.3g} ms per token are more than tau, too"
            return f"{self.why}; the {self.by} answers by itself{slow}"
        return f"{self.why}; instead {self.setting.tokens:,} tokens and a ratio of {self.setting.ratio:.3g}"


def too_late(of: Assistance, alone: Alone) -> NoSetting | None:
    """Why no help is asked for, whatever P says: the device has its first token before the cloud's could be there.
    None: it has not. Eq. 5 says so of a ratio that is P's to choose, not of one that is given."""
    if alone.ttft_s > of.bare_ttft_s:
        return None
    what = (
        f"the device has its own after {alone.ttft_s:.3g} s, and the cloud's could be there after {of.bare_ttft_s:.3g}"
    )
    return NoSetting(f"first token: {what}")


def fallback(
    of: Assistance,
    why: NoSetting,
    alone: Alone,
    answer_tokens: int,
    tokens: int | Literal["auto"] = "auto",
    ratio: float | Literal["auto"] = "auto",
) -> Fallback:
    """The one with which the first token comes first, as in P's objective: a device that is faster never has it later,
    but for the mask that comes with it. Of the two with a cloud, help, where its tokens keep the tolerated pace and
    are fewer than the answer's; Eq. 6's upper bound, which spares the cloud, gives way. `tokens`, `ratio`: as a
    scenario says; auto: the whole prompt where Eq. 5 fails, else its least ratio, and as few tokens as keep the
    pace."""
    if alone.ttft_s <= of.bare_ttft_s:
        return Fallback("device", why)
    least, most = of.ratio_bounds
    if ratio == "auto":
        ratio = least if least <= most else 1.0
    if tokens == "auto":
        if ratio < 1:
            waits_s, tpot_s = of.device_ttft_s(ratio) - of.cloud_ttft_s, of.device_tpot_s
        else:
            waits_s, tpot_s = alone.ttft_s - of.bare_ttft_s, alone.tpot_s
        needed = of.covering(waits_s, tpot_s) if tpot_s < of.tolerable_tpot_s else math.inf
        tokens = 1 + max(1, math.ceil(needed - _ROUNDING)) if needed < answer_tokens else answer_tokens
    if tokens >= answer_tokens:
        return Fallback("cloud", why, slow_s=of.cloud_tpot_s if of.cloud_tpot_s > of.tolerable_tpot_s else None)
    return Fallback("both", why, Setting(ratio, tokens))
