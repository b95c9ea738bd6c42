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
    # Bytes fetched for units that were used, and for units that the processor finished first.
    streamed_bytes: float = 0.0
    wasted_bytes: float = 0.0
    # No schedule could have made the KV complete sooner after arrival, seeing the whole trace in advance.
    bound_s: float | None = None
    # Mean bits per key or value number over what was streamed; None: nothing was.
    streamed_bits_per_value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One scenario run once."""

    outcome: Outcome
    # For the user: why the outcome is not "done".
    why: str = ""
    requests: tuple[RequestRecord, ...] = ()
    spans: tuple[Span, ...] = ()
    duration_s: float = 0.0
    # Energy by component (base, gpu, cpu, npu, decompress, network, ...), over the run; where a part of the tokens tells
    # of all, over all of them.
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
