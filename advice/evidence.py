"""(d): how sure each figure is, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvferry.advice.answer import FIGURES, Statement, shown
from kvferry.advice.trial import Trial
from kvferry.analysis.repeats import Range
from kvferry.analysis.sureness import Sureness, how_sure
from kvferry.specs.device import DeviceSpec

# From the surest on.
Mark = Literal["measured", "fitted", "data sheet", "assumed"]
MARKS: tuple[Mark, ...] = ("measured", "fitted", "data sheet", "assumed")
# The numbers of the main processor, or of the device, that a figure mostly rests on.
_RESTS_ON = {
    "ttft_s": ("efficiency", "flop_per_s"),
    "ttft_p95_s": ("efficiency", "flop_per_s"),
    "tpot_s": ("efficiency", "bytes_per_s"),
    "energy_j": ("active_w", "idle_w"),
}
# A key of efficiency, as its source speaks of them one by one.
_KERNELS = {"ttft_s": ("gemm",), "ttft_p95_s": ("gemm",), "tpot_s": ("gemv", "decode_attention")}
_LATE = "no intervals: the time ran out before they were worked out"


@dataclass(frozen=True)
class Evidence:
    """``intervals`` by figure, where anything says how far it may be off; ``marks``: where each comes from."""

    intervals: Mapping[str, Range]
    marks: Mapping[str, Mark]
    said: Sequence[str]

    def statement(self, best: Trial) -> Statement:
        lines = [", ".join(self._figures(best)), *self.said]
        facts = {"intervals": {key: list(ends) for key, ends in self.intervals.items()}, "marks": dict(self.marks)}
        return Statement("d", "how sure", tuple(lines), facts)

    def _figures(self, best: Trial) -> Iterator[str]:
        for key in FIGURES:
            if key not in best.figures or key == "ttft_p95_s":
                continue
            ends = self.intervals.get(key)
            span = (
                " to ".join(shown(key, end) for end in sorted(ends, reverse=key == "tpot_s")) if ends else "no interval"
            )
            yield f"{FIGURES[key]}: {span} ({self.marks[key]})"


def evidence_of(best: Trial, sureness: Sureness | None) -> Evidence:
    """Returns what is known of how far the figures of a trial may be off."""
    assert best.scenario is not None
    known = {} if sureness is None else dict(sureness.intervals)
    found = {key: ends for key, ends in known.items() if key in FIGURES}
    if "tpot_s" in found and "answer_s" in best.figures:
        # An answer is its first token, and then its pace.
        first_s, own_s = best.figures["ttft_s"], best.figures["tpot_s"]
        rest_s = best.figures["answer_s"] - first_s
        firsts = found.get("ttft_s", (first_s, first_s))
        low, high = (first + rest_s * pace / own_s for first, pace in zip(firsts, found["tpot_s"], strict=True))
        found["answer_s"] = low, high
    marks = {key: _mark(best, key) for key in FIGURES if key in best.figures}
    why = "no intervals: helped devices have none" if best.composition.helped is not None else _LATE
    said = how_sure([sureness.evidence]) if sureness is not None else [why]
    return Evidence(found, marks, said)


def _mark(best: Trial, figure: str) -> Mark:
    """Where the least sure of the numbers that a figure mostly rests on comes from, by what the profile says of it."""
    assert best.scenario is not None
    device = best.scenario.device
    if figure == "memory_peak_bytes":
        # Weights and KV follow from the model's dimensions; what the runtime takes does not.
        return of_source(device.sources.get("memory.runtime_bytes", "assumed"))
    if figure == "answer_s":
        return max((_mark(best, key) for key in ("ttft_s", "tpot_s")), key=MARKS.index)
    if device.is_measured and figure != "energy_j":
        return "measured"
    sources = [source_of(device, key, _KERNELS.get(figure, ())) for key in _RESTS_ON[figure]]
    return max(map(of_source, sources), key=MARKS.index)


def source_of(device: DeviceSpec, key: str, kernels: Sequence[str] = ()) -> str:
    """Returns what a device's profile says of a number of its main processor; of several kernels, the part that names
    one of these."""
    text = device.sources.get(f"processors.{device.main}.{key}", "assumed")
    parts = [part for part in text.split(";") if any(kernel in part for kernel in kernels)]
    return parts[0] if parts else text


def of_source(text: str) -> Mark:
    """Returns the mark of a source's text, of which the beginning counts."""
    words = text.lower()
    places = {mark: words.find(word) for mark, word in _WORDS.items() if word in words}
    return min(places, key=lambda mark: places[mark]) if places else "data sheet"


_WORDS: dict[Mark, str] = {"measured": "measured", "fitted": "fitted", "assumed": "assumed", "data sheet": "data sheet"}
