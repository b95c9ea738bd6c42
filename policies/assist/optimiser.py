"""How much of a prompt a device prefills, and how many tokens the cloud decodes for it: problem P (P/D-Device 3.4)."""

import math
from dataclasses import dataclass
from typing import Literal

from kvferry.policies.assist.assistance import Assistance
from kvferry.specs.errors import KvferryError

# Numbers of tokens are whole, up to so much.
_ROUNDING = 1e-9
# More than any device waits for.
_MOST_DECODED = 100_000


class NoSetting(KvferryError):
    """No ratio and number of tokens keep Eq. 5 and 6; the message says which bound fails."""


@dataclass(frozen=True, slots=True)
class Setting:
    """``ratio``: r, of the prompt that the device prefills. ``tokens``: L, from the cloud, the first included."""

    ratio: float
    tokens: int


def best_setting(of: Assistance) -> Setting:
    """The solution of P in closed form: the least TTFT of the device, and among its L the smallest, since L is not in
    the objective and every token more holds a slot of the cloud.

    TTFT_d grows with r, so r is its lower bound unless Eq. 6 has no whole number there: then r grows as far as the
    next one needs, whose upper bound is r >= ((L - 1) TPOT_c - unpacked) / (k_d l), where the mask is unpacked so long
    behind the first token.

    Raises NoSetting.
    """
    least, most = _ratios(of)
    tolerated = of.decoded_bounds(least)[0]
    if not math.isfinite(tolerated):
        raise _nothing_between(of, least, most)
    first = max(1, math.ceil(tolerated - _ROUNDING))
    last = min(_MOST_DECODED, math.floor(of.decoded_bounds(most)[1] + _ROUNDING))
    for decoded in range(first, last + 1):
        needed = (decoded * of.cloud_tpot_s - of.unpacked_s) / of.prefill_s(1.0)
        ratio = min(most, max(least, needed))
        if of.decoded_bounds(ratio)[0] <= decoded + _ROUNDING:
            return Setting(ratio, decoded + 1)
    raise _nothing_between(of, least, most)


def setting_of(
    assistance: Assistance, tokens: int | Literal["auto"], ratio: float | Literal["auto"]
) -> Setting | NoSetting:
    """What help comes to for a prompt: as `tokens` and `ratio` say, and problem P's solution for what is open. Why
    it is none, where P has none."""
    if tokens != "auto" and ratio != "auto":
        return Setting(ratio, tokens)
    if tokens != "auto":
        # Without Eq. 6, the least r is best.
        least, most = assistance.ratio_bounds
        return Setting(least, tokens) if least <= most else _why(assistance)
    if ratio != "auto":
        return _tokens_at(assistance, ratio)
    try:
        return best_setting(assistance)
    except NoSetting as nothing:
        return nothing


def _why(assistance: Assistance) -> NoSetting:
    try:
        best_setting(assistance)
    except NoSetting as nothing:
        return nothing
    raise AssertionError("a setting without a ratio")


def _tokens_at(assistance: Assistance, ratio: float) -> Setting | NoSetting:
    """The smallest L of Eq. 6 at a given ratio."""
    least, most = assistance.decoded_bounds(ratio)
    decoded = max(1, math.ceil(least - _ROUNDING)) if math.isfinite(least) else None
    if decoded is None or decoded > most + _ROUNDING:
        what = f"at a ratio of {ratio:.3g}, {least:,.1f} decoded tokens keep the tolerated pace"
        return NoSetting(f"assisted tokens (Eq. 6): {what}, the cloud has time for {most:,.1f}")
    return Setting(ratio, decoded + 1)


def _ratios(of: Assistance) -> tuple[float, float]:
    least, most = of.ratio_bounds
    if least > most:
        what = f"at least {least:.3g} of the prompt keep the quality"
        if of.most_device_tokens is not None and most * of.prompt_tokens == of.most_device_tokens:
            why = f"the device takes {of.most_device_tokens:,} of {of.prompt_tokens:,} tokens"
        else:
            why = f"with more than {max(0.0, most):.3g} of it the device alone has a token of its own sooner"
        raise NoSetting(f"refinement ratio (Eq. 5): {what}, {why}")
    return least, most


def _nothing_between(of: Assistance, least: float, most: float) -> NoSetting:
    """Which side of Eq. 6 fails."""
    tolerated, spared = of.decoded_bounds(least)[0], of.decoded_bounds(most)[1]
    if not math.isfinite(tolerated):
        pace = f"the device's own pace of {1e3 * of.device_tpot_s:.3g} ms per token"
        return NoSetting(f"smoothed TPOT (Eq. 6, lower bound): {pace} is all that is tolerated, or more")
    if spared < 1:
        what = f"{1e3 * of.cloud_tpot_s:.3g} ms"
        return NoSetting(
            f"assisted tokens (Eq. 6, upper bound): the device is done before a token of {what} is decoded"
        )
    need, room = max(1, math.ceil(tolerated - _ROUNDING)), math.floor(spared + _ROUNDING)
    what = f"{need:,} decoded tokens keep the tolerated pace, the cloud has time for {room:,}"
    return NoSetting(f"assisted tokens (Eq. 6): {what}")
