"""Known errors of a run's figures, from which their intervals are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any, Literal

from kvferry.analysis.intervals import Effect, effect_of_number
from kvferry.analysis.repeats import Metrics
from kvferry.analysis.reproduction.left_out import LEVEL, Spread
from kvferry.analysis.sureness import Sureness

_OF_DECODING = {"tpot_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s", "decode_tokens_per_s", "block_s"}
# The rate that the scenario measures.
OF_RATE = {"throughput_tokens_per_s", "seconds_per_token"}
ENERGY = ("energy_j", "battery_percent_per_request")


@dataclass(frozen=True)
class BothEnds:
    """A run's `own` figures, and those at both ends of what is known of something: its `spread`."""

    own: Metrics
    less: Metrics
    more: Metrics
    spread: Spread

    def share(self, of: str) -> float | None:
        """The share of a time that the thing takes: all parts of a time as many times as long make it as many times as
        long. None: there is no such time."""
        own, more = self.own.get(of), self.more.get(of)
        return log(more / own) / log(self.spread.factor) if own and more else None


class KnownErrors:
    """The effects of what is not known exactly of a run, thing by thing, and the evidence for each. ``not_known`` is
    why nothing is known of others; ``shares`` of the time per token, by what takes it."""

    def __init__(self, own: Metrics, measure: Literal["decode", "end_to_end"]) -> None:
        self.own = own
        self._of_decoding = _OF_DECODING | (OF_RATE if measure == "decode" else set())
        self.not_known: dict[str, str] = {}
        self.shares: dict[str, float] = {}
        self.forget()

    def forget(self) -> None:
        """Drops all that is known."""
        self._effects: list[Effect] = []
        self.evidence: dict[str, Any] = {"level": LEVEL}

    def add(self, what: str, told: Mapping[str, Any], effect: Effect) -> None:
        self._effects.append(effect)
        self.evidence[what] = told

    def add_number(self, what: str, ends: BothEnds, speaks_of: Callable[[str], bool]) -> None:
        width = ends.spread.half_width
        self.add(what, ends.spread.told, effect_of_number(what, self.own, ends.less, ends.more, width, speaks_of))

    def sureness(self) -> Sureness:
        return Sureness(self.own, tuple(self._effects), {**self.evidence, "not_known": self.not_known})

    # --- which figures rest on what ---------------------------------------------------------------------------------

    def of_prefill(self, key: str) -> bool:
        return self._of_whole(key) and key not in self._of_decoding

    def of_decoding(self, key: str) -> bool:
        """Whether all is known that a figure which decoding has a part in rests on."""
        return key in self._of_decoding or ("prefill" in self.evidence and self._of_whole(key))

    def _of_whole(self, key: str) -> bool:
        """Whether prefill has a part in a figure, or may have one, as decoding does."""
        is_time_or_rate = key.endswith("_s") and not key.endswith("bytes_per_s")
        return is_time_or_rate or key in OF_RATE or (key in ENERGY and "power" in self.evidence)
