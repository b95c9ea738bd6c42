"""What a run leaves behind: the raw material of every metric, table and picture."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from kvferry.backends.world import Inputs
from kvferry.machine.span import Span
from kvferry.machine.warmth import Warmth
from kvferry.pipelines.tally import Tally, Totals
from kvferry.policies.decode.attention_mass import AttentionMass

if TYPE_CHECKING:
    # A load needs nothing of decoding.
    from kvferry.pipelines.decoding.noted import Noted

Outcome = Literal["done", "interrupted", "out_of_memory", "infeasible"]


# Units whose path a run keeps, by the requests in order; of further requests only the counts.
MOST_UNIT_PATHS = 100_000


class UnitPath(NamedTuple):
    """The path by which a unit of a context's KV came first, when it was handed over to it, and when it was there."""

    token_chunk: int
    layer: int
    # None: all heads together.
    head: int | None
    streamed: bool
    asked_s: float
    ready_s: float


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One request's story. Times are on the run's clock; None: not reached, or not applicable."""

    request: int
    arrival_s: float
    # Tokens before its question, with what was said in turns before, and of the question; the number of the context,
    # where several requests may be about one; the number of the conversation's first request, and of its turn, from 0.
    context_tokens: int | None = None
    question_tokens: int | None = None
    source: int | None = None
    conversation: int | None = None
    turn: int = 0
    # Work on it began; before, it waited for others.
    began_s: float | None = None
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
    # What the stored context is encoded with, and the share of its key and value numbers that came at each level of it;
    # the rest was computed. None: nothing was loaded.
    codec: str | None = None
    shares_by_level: Mapping[int, float] = field(default_factory=dict)
    # In the order in which they came; of a run's first requests.
    units: tuple[UnitPath, ...] = ()
    # Why the link carried nothing any more, from when on what was missing was computed; None: it did to the end.
    link_down: str | None = None
    # Units that came whole and could not be decoded or put in place, hence were computed; and why the first of them.
    units_unusable: int = 0
    unusable: str | None = None


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A record of decoding a batch; the analysis makes figures over the whole output from it.

    ``output`` tokens per sequence are wanted; ``token_times_s`` are those of a sequence that were really decoded, on
    the run's clock, where all decode in lock step. ``steps``: sequences that decoded together and the seconds of each
    step, where requests come and go; their records have the times of their tokens. ``half``: what had added up as the
    second half of the decoded steps began, after ``half_step`` steps; None where every token was decoded.
    ``half_counts`` and ``end_counts``: KV blocks ``wanted`` and ``reused`` until then, and over the run; of clusters on
    storage also ``accesses``, entries ``accessed`` by them, and what their layout has counted. ``step_blocks``: KV
    blocks (wanted, reused) in each step that was carried out, those too that only warmed buffers up. Of tokens of a
    sequence, the ones that were ``attended`` to and the ones that there were (``attendable``), summed over as many
    ``attentions``: of a layer in a step where all decode in lock step, else of a sequence in a step.
    """

    batch: int
    layers: int
    output: int
    token_times_s: tuple[float, ...]
    steps: tuple[tuple[int, float], ...] = ()
    # When each token that was carried out was there, also those that only warmed buffers up; None: ``token_times_s``.
    carried_out_s: tuple[float, ...] | None = None
    # Which tokens of the output these are, from 0 on; None: the first ones.
    carried_out: tuple[int, ...] | None = None
    # Seconds in which layers moved to another tier by themselves, beside those between tokens' times.
    moves_s: float = 0.0
    half: Totals | None = None
    half_step: int = 0
    end: Totals
    half_counts: Mapping[str, float] = field(default_factory=dict)
    end_counts: Mapping[str, float] = field(default_factory=dict)
    step_blocks: tuple[tuple[int, int], ...] = ()
    # Reserved for the whole batch; None: no KV lies on storage.
    metadata_bytes: float | None = None
    buffer_bytes: float | None = None
    # Whether the system keeps KV blocks that were read for later steps, as far as its budget has room for them.
    reuses: bool = False
    # Of clusters on storage: the most entries that one read brought, and how much more of the file they take than their
    # entries do, as a share of these.
    longest_access: int | None = None
    space_overhead: float | None = None
    # Share of attention mass on the tokens that attention takes in, as measured for the selector; None: not known.
    attention_mass: AttentionMass | None = None
    # The share of what queries want most that was chosen, where a modelled world knows its keys.
    recall: float | None = None
    # How often a request gave up its KV for others, and was prefilled again.
    preemptions: int = 0
    # Work that some steps asked the machine for; None: it is a real one, or all KV is in memory.
    noted: "Noted | None" = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Assisted:
    """Requests of devices with a cloud, column by column, in the order in which they ended; NaN where a time was not
    reached or does not apply.

    Of each: its number, when it came, when its device turned to it, and when its first token was shown; the
    device's own first token; how many tokens were shown, the last of them, and the longest wait between two; L; r;
    the promised pace; the parts of the wait for the first token (``prepared_s`` on the device, ``waited_s`` for a
    slot, ``cloud_prefill_s``, ``refined_s``, behind it where the mask comes behind) and what then passed until the
    mask was unpacked, and to prefill (``unpacked_s``, ``own_prefill_s``); bytes of the first response, its mask
    included; ``came``, the tokens that came from the cloud, and of these ``corrected``, where the device's model
    would have said another; whether it was ``lost``, the cloud failing it in some way, and whether the answer is
    ``right``, where that is known. ``answers``: what was said, by request, of those whose tokens are kept; none in
    the modelled world. ``devices``: how many there are. ``cloud``: figures of the cloud
    over the run. ``energy_j``: of devices while they had a request, by component.
    """

    columns: Mapping[str, np.ndarray]
    cloud: Mapping[str, float]
    energy_j: Mapping[str, float]
    answers: Mapping[int, str] = field(default_factory=dict)
    devices: int = 1


@dataclass(frozen=True, kw_only=True)
class TurnAttention:
    """What attention takes in for a token of an answer, in the mean over those behind the first: ``tokens`` of ``of``
    that there are by then, and the ``mass`` on them as measured for the selector; None: it is not known."""

    tokens: float
    of: float
    mass: AttentionMass | None


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One turn of a conversation that was answered; times on the run's clock. Tokens of its prompt by where their KV
    came from: ``from_memory``, ``from_flash``, ``from_cloud``, whether streamed or computed there, and ``computed``,
    which were nowhere. ``units_streamed``, ``units_computed``, ``units_read``: of what was loaded, as RequestRecord has
    it. ``read`` and ``streamed``: tokens whose KV came over these paths, layers counted as parts of a token; the rest,
    but for what was in memory, was computed."""

    request: int
    conversation: int
    number: int
    prompt: int
    output: int
    arrival_s: float
    # The device turned to it; its context's KV was there, but for what is read with the question; its first token, and
    # its last one.
    began_s: float
    got_s: float
    first_token_s: float
    end_s: float
    from_memory: int = 0
    from_flash: int = 0
    from_cloud: int = 0
    computed: int = 0
    units_streamed: int = 0
    units_computed: int = 0
    units_read: int = 0
    read: float = 0.0
    streamed: float = 0.0
    # None: its answer has a single token.
    attention: TurnAttention | None = None
    # Tokens of its answer that came from a cloud which helped with it.
    said_by_cloud: int = 0
    # Written behind it by what is kept; and bytes of the link.
    written_bytes: float = 0.0
    streamed_bytes: float = 0.0
    # Kept once it was over.
    kept_memory_bytes: float = 0.0
    kept_flash_bytes: float = 0.0
    # No system could have had its first token sooner after it came; None: not known.
    bound_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """What sessions leave behind."""

    turns: tuple[TurnRecord, ...]


@dataclass(frozen=True, kw_only=True)
class MachineRecord:
    """What a run took of a machine beside the device."""

    # By component; empty where no meter counts it.
    energy_j: Mapping[str, float]
    memory_capacity_bytes: float
    memory_peak_bytes: float
    # By name (policies/ledger.py), when most was held.
    memory_at_peak: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One scenario run once."""

    outcome: Outcome
    # For the user: why the outcome is not "done"; what is finished where it is "interrupted".
    why: str = ""
    requests: tuple[RequestRecord, ...] = ()
    # Of a workload that decodes a batch.
    decoded: Decoded | None = None
    # Of devices with a cloud.
    assisted: Assisted | None = None
    # Of conversations whose KV lives on.
    sessions: Sessions | None = None
    # For the user: what was done otherwise than the system's description says, and why.
    notes: tuple[str, ...] = ()
    # The first spans, for pictures and tables, and the tally of all; None: these spans are all.
    spans: tuple[Span, ...] = ()
    counted: Tally | None = None
    duration_s: float = 0.0
    # Energy by component (base, gpu, cpu, npu, decompress, network, ...), over the run.
    energy_j: dict[str, float] = field(default_factory=dict)
    memory_capacity_bytes: float = 0.0
    # Of several devices, of the one that held most.
    memory_peak_bytes: float = 0.0
    # What was held by name (policies/ledger.py) when most was; with what is kept free, which is no part of the peak.
    memory_at_peak: Mapping[str, float] = field(default_factory=dict)
    # The machines beside the device, whose energy and memory the other fields are about. Spans name the machine: the
    # resource cloud/gpu is the gpu of the machine cloud.
    machines: Mapping[str, MachineRecord] = field(default_factory=dict)
    kv_memory_peak_bytes: float = 0.0
    # The replayed link: edges (n + 1) and rates (n) over the run, for drawing.
    link_times_s: tuple[float, ...] = ()
    link_bytes_per_s: tuple[float, ...] = ()
    # Of the device; None: its heat is not modelled.
    warmth: Warmth | None = None
    # What the other world needs to replay this run.
    inputs: Inputs = Inputs()
    # Wall-clock seconds this run took to simulate, to plan, and what a real world observed: the only entries that
    # differ between equal runs.
    measured: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def tally(self) -> Tally:
        """Every span, by resource and label."""
        if self.counted is not None:
            return self.counted
        tally = Tally()
        for span in sorted(self.spans, key=lambda span: span.end_s):
            tally(span)
        return tally

    @property
    def interrupted(self) -> bool:
        """Stopped by the user: the requests are the ones that had finished by then."""
        return self.outcome == "interrupted"

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
        lines = []
        if self.link_down:
            lines.append(f"the link went down, and what was missing was computed: {self.link_down}")
        if self.unusable:
            lines.append(f"could not be used, and was computed: {self.unusable}")
        return tuple(lines)
