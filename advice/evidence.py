"""(d): how sure each figure is, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvferry.advice.answer import EQUAL, FIGURES, Statement, shown
from kvferry.advice.measure import COPIES, Sensitivity
from kvferry.advice.trial import Trial
from kvferry.analysis.repeats import Range
from kvferry.analysis.sureness import RUNTIME, STORAGE, Sureness, how_sure
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
_NONE_HELPED = "no intervals: helped devices have none"
_LATE = "no intervals: the time ran out before they were worked out"


@dataclass(frozen=True)
class Evidence:
    """``intervals`` by figure, where anything says how far it may be off; ``marks``: where each comes from; ``said``:
    what the intervals rest on, in a few words; ``remarks``: in all, as a run's table has it; ``left_out``: numbers that
    change a figure and that no interval allows for."""

    intervals: Mapping[str, Range]
    marks: Mapping[str, Mark]
    said: str
    remarks: Sequence[str] = ()
    left_out: Sequence[str] = ()

    def statement(self, best: Trial) -> Statement:
        without = list(self._without(best, "no interval" if self.intervals else "where figures come from"))
        lines = ["; ".join([*self._with_intervals(best), *without]), self.said]
        lines = lines if self.intervals else [f"{self.said}; {''.join(without)}"]
        if self.intervals and self.left_out:
            lines.append(f"not in these intervals: {', '.join(self.left_out)}")
        facts = {
            "intervals": {key: list(ends) for key, ends in self.intervals.items()},
            "marks": dict(self.marks),
            "remarks": list(self.remarks),
            "left_out": list(self.left_out),
        }
        return Statement("d", "how sure", tuple(lines), facts)

    def _with_intervals(self, best: Trial) -> Iterator[str]:
        for key in FIGURES:
            # It rests on the same evidence as the mean.
            if key in best.figures and key in self.intervals and key != "ttft_p95_s":
                low, high = (shown(key, end) for end in sorted(self.intervals[key], reverse=key == "tpot_s"))
                # Of two rates the unit stands once.
                yield f"{FIGURES[key]} {low.removesuffix(' tokens/s')} to {high} ({self.marks[key]})"

    def _without(self, best: Trial, head: str) -> Iterator[str]:
        by_mark: dict[str, list[str]] = {}
        for key in FIGURES:
            if key in best.figures and key not in self.intervals and key != "ttft_p95_s":
                by_mark.setdefault(self.marks[key], []).append(FIGURES[key])
        if by_mark:
            said = (f"{', '.join(of)} ({mark})" for mark, of in by_mark.items())
            yield f"{head}: {', '.join(said)}"


def evidence_of(best: Trial, sureness: Sureness | None) -> Evidence:
    """Returns what is known of how far the figures of a trial may be off."""
    assert best.scenario is not None
    known = {} if sureness is None else dict(sureness.intervals)
    found = {key: ends for key, ends in known.items() if key in FIGURES}
    marks = {key: _mark(best, key) for key in FIGURES if key in best.figures}
    if sureness is None:
        return Evidence(found, marks, _NONE_HELPED if best.composition.helped is not None else _LATE)
    return Evidence(found, marks, _rests_on(sureness), how_sure([sureness.evidence]))


def _rests_on(sureness: Sureness) -> str:
    """What intervals rest on: how far rates of devices that were left out of the fit were off, or whole runs."""
    evidence = sureness.evidence
    if "runs" in evidence:
        return f"80 % intervals: by errors of {evidence['runs']['of']}"
    found = [
        f"{evidence[what]['factor']:.2f} ({what}, {evidence[what]['devices']})"
        for what in ("prefill", "decoding", STORAGE)
        if what in evidence
    ]
    if RUNTIME in evidence:
        software = f"software is any of {', '.join(evidence[RUNTIME]['over'])}"
        if not found:
            return f"80 % intervals: {software}"
        found.append(software)
    if not found:
        return "no intervals: nothing is known of rates like these"
    return f"80 % intervals: devices left out of the fit were off by a factor of {', '.join(found)}"


# By which evidence intervals allow for a number; for no others.
_EVIDENCE = {"the rate of prefill": "prefill", "the rate of decoding": "decoding", "the storage": STORAGE,
             "the runtime": RUNTIME}  # fmt: skip


def left_out(best: Trial, sureness: Sureness | None, found: Sequence[Sensitivity] = ()) -> list[str]:
    """Returns the numbers that change the figure of a trial and that its intervals do not allow for, each with where it
    comes from."""
    assert best.scenario is not None
    evidence = {} if sureness is None else sureness.evidence
    if "runs" in evidence:
        return []
    names = [one.number.name for one in found if one.swing > EQUAL]
    # The time may have run out before it was tried.
    if best.composition.away == "host" and COPIES.name not in [one.number.name for one in found]:
        names.append(COPIES.name)
    lacking = [name for name in names if _EVIDENCE.get(name) not in evidence]
    mark = of_source(best.scenario.device.sources.get("memory.copy_bytes_per_s", "assumed"))
    return [f"{name} ({mark})" if name == COPIES.name else name for name in lacking]


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
    if figure == "tpot_s" and best.composition.away == "host":
        sources.append(device.sources.get("memory.copy_bytes_per_s", "assumed"))
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
