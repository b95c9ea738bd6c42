"""What a device asks of a cloud."""

from dataclasses import dataclass
from typing import Literal

from kvferry.policies.assist.assistance import Smoothing

# Refiners that go by the observation window, or by nothing.
Refining = Literal["snapkv-sentences", "weighted-sentences", "snapkv", "streaming-llm"]


@dataclass(frozen=True, kw_only=True)
class Help:
    """``tokens``: L, the first included. ``ratio``: r, of the prompt that it then prefills itself. auto: as problem P
    has it. ``draft``: tokens that a device drafts before the cloud looks at them,
    and ``accepted``: the share of them that stands, in the mean, where the two answer in turns. ``patience_s``: time
    without a word from the cloud after which the device goes on by itself; auto, planned: as
    policies/assist/patience.py has them; None: it waits as long as it takes. ``refiner``: what chooses, where there is
    real attention; votes count by the attention behind them, as the paper does not say how heads agree and equal votes
    lose the prompt's facts (docs/validation/quality.md)."""

    tokens: int | Literal["auto"] = "auto"
    ratio: float | Literal["auto"] = "auto"
    smoothing: Smoothing = "causal"
    draft: int = 5
    accepted: float = 0.6
    patience_s: float | Literal["auto", "planned"] | None = "planned"
    refiner: Refining = "weighted-sentences"
