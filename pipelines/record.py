"""What a run leaves behind: the raw material of every metric, table and picture."""

from dataclasses import dataclass, field
from typing import Any, Literal

from kvferry.machine.span import Span

Outcome = Literal["done", "interrupted", "out_of_memory", "infeasible"]


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request's story. Times are on the run's clock; None: not reached, or not applicable."""

    request: int
    arrival_s: float
    # The context's KV was complete; the first token was there; the last one was.
    loaded_s: float | None = None
    first_token_s: float | None = None
    token_times_s: tuple[float, ...] = ()
    units_computed: int = 0
    units_streamed: int = 0
    # Bytes fetched for units that were used; and for others, which the processor finished first, or of which not all
    # came, or which could not be decoded.
    streamed_bytes: float = 0.0
    wasted_bytes: float = 0.0
    # No schedule could have made the KV complete sooner after arrival, seeing the whole trace in advance.
    bound_s: float | None = None
    # Mean bits per key or value number over what was streamed; None: nothing was.
    streamed_bits_per_value: float | None = None
    # Why the link carried nothing any more, from when on what was missing was computed; None: it did to the end.
    link_down: str | None = None
    # Units that came whole and could not be decoded or put in place, hence were computed; and why the first of them.
    units_unusable: int = 0
    unusable: str | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One scenario run once."""

    outcome: Outcome
    # For the user: why the outcome is not "done".
    why: str = ""
    requests: tuple[RequestRecord, ...] = ()
    spans: tuple[Span, ...] = ()
    duration_s: float = 0.0
    # Energy by component (base, gpu, cpu, npu, decompress, network, ...), over the run; where a part of the tokens
    # tells of all, over all of them.
    energy_j: dict[str, float] = field(default_factory=dict)
    memory_capacity_bytes: float = 0.0
    memory_peak_bytes: float = 0.0
    kv_memory_peak_bytes: float = 0.0
    # The replayed link: edges (n + 1) and rates (n) over the run, for drawing.
    link_times_s: tuple[float, ...] = ()
    link_bytes_per_s: tuple[float, ...] = ()
    # Stopped by the user: the requests are those that had finished by then; the outcome is "interrupted" where they are
    # a batch that had tokens to go.
    interrupted: bool = False
    # Further metrics under the project's keys, SI units, that the run itself knows best: they go before derived ones.
    figures: dict[str, float] = field(default_factory=dict)
    # Wall-clock seconds this run took to simulate, to plan: the only entries that differ between equal runs.
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def link_down(self) -> str | None:
        """Why the link went down for good, during the first request that met it."""
        return next((record.link_down for record in self.requests if record.link_down), None)

    @property
    def unusable(self) -> str | None:
        """How much came that could not be used, and why the first of it."""
        why = next((record.unusable for record in self.requests if record.unusable), None)
        return why and f"{sum(record.units_unusable for record in self.requests):,} units that arrived: {why}"

    @property
    def faults(self) -> tuple[str, ...]:
        """For the user: what went wrong on the way and was made good by computing. Such a run measures no link."""
        told = []
        if self.link_down:
            told.append(f"the link went down, and what was missing was computed: {self.link_down}")
        if self.unusable:
            told.append(f"could not be used, and was computed: {self.unusable}")
        return tuple(told)
