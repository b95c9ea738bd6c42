"""The link between device and cloud: the rates that it replays, and its outages."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Part, exactly_one_of
from kvferry.specs.units import BytesPerS, Seconds


class OutageSpec(Part):
    """The link carries nothing from start until start + duration, on the run's clock."""

    # When it begins, on the run's clock.
    start_s: Seconds
    # How long it lasts.
    duration_s: Seconds = Field(gt=0)


class WaySpec(Part):
    """One direction of a link: a replayed bandwidth trace, or a constant rate; exactly one of the two."""

    model_config = exactly_one_of("trace", "rate")

    # A bundled or fetched trace by name, or the path of one.
    trace: str | None = Field(default=None, min_length=1)
    # A constant rate, in place of a trace.
    rate_bytes_per_s: BytesPerS | None = None
    # Factor on the trace's rates.
    scale: float = Field(default=1.0, gt=0, le=1e6, strict=True)
    # Where in the trace the run begins; random: anywhere in it, by the run's seed.
    offset_s: Literal["random"] | Seconds = 0.0
    # Of a generated trace, the realisation: its model's own; seed: another one for every seed of the run; or that of a
    # number.
    instance: Literal["own", "seed"] | Annotated[int, Field(ge=0, lt=2**63, strict=True)] = "own"
    # After the trace's last sample: from the start again, its last rate for ever, or no link any more. None: as the
    # trace's file says, else from the start again.
    on_end: Literal["loop", "hold", "end"] | None = None
    # When nothing is carried, on the run's clock, in order.
    outages: tuple[OutageSpec, ...] = Field(default=(), max_length=1000)

    @model_validator(mode="after")
    def _one_source(self) -> "WaySpec":
        if self.trace is None and self.rate_bytes_per_s is None:
            raise ValueError("needs a trace (trace: wifi-campus) or a constant rate (rate: 850 Mbit/s)")
        if self.trace is not None and self.rate_bytes_per_s is not None:
            raise BadKey("rate", "stands beside a trace; keep one of them and set the other to null")
        return self

    @model_validator(mode="after")
    def _chance_in_a_trace(self) -> "WaySpec":
        for key, asked in (("offset", self.offset_s == "random"), ("instance", self.instance != "own")):
            if asked and self.trace is None:
                raise BadKey(key, "a constant rate is the same at all times; leave it out, or name a trace")
        return self

    @property
    def drawn(self) -> bool:
        """Whether nothing of it is left to a run's seed any more."""
        return self.offset_s != "random" and self.instance != "seed"

    @property
    def begins_s(self) -> float:
        """Returns where in the trace the run begins. Raises ValueError before that is drawn."""
        return float(self.offset_s)

    @model_validator(mode="after")
    def _outages_in_order(self) -> "WaySpec":
        for before, after in zip(self.outages, self.outages[1:], strict=False):
            if after.start_s < before.start_s + before.duration_s:
                raise BadKey("outages", "overlap or are out of order; list them by start, one after the other")
        return self


class LinkSpec(WaySpec):
    """The link to the device, and what it sends over."""

    # Round-trip time.
    rtt_s: Seconds = 0.0
    # By how much longer a message between machines may be under way, one way: anything up to so much, at random.
    jitter_s: Seconds = 0.0
    # A file of recorded round trips, one of which each message has at random, instead of rtt and jitter.
    round_trips: str | None = Field(default=None, min_length=1, max_length=1000)
    # For what the device sends. None: as fast as what it is sent, on a way of its own.
    up: WaySpec | None = None

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "LinkSpec":
        if self.round_trips is not None and (self.rtt_s or self.jitter_s):
            what = "stands beside rtt or jitter, which a recording replaces; keep one of them and set the other to null"
            raise BadKey("round_trips", what)
        return self

    @property
    def drawn(self) -> bool:
        return super().drawn and (self.up is None or self.up.drawn)

    @property
    def varies(self) -> bool:
        """Whether messages are longer under way than others."""
        return self.jitter_s > 0 or self.round_trips is not None


class LoadSpec(Part):
    """A replayed load trace, or a constant share of the processor; exactly one of the two."""

    model_config = exactly_one_of("trace", "share")

    # A load trace by name or path: a share of the processor over time.
    trace: str | None = Field(default=None, min_length=1)
    # The share of the processor's time that other programs use: 0.3 leaves 70 %.
    share: float | None = Field(default=None, ge=0, lt=1, strict=True)
    # A processor of the device by name; None: its main one.
    processor: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "LoadSpec":
        if (self.trace is None) == (self.share is None):
            raise ValueError("needs exactly one of trace (a load trace) and share (share: 0.3)")
        return self


class NoLink(LinkSpec):
    """Stands where a scenario names no link: of what is asked, nothing may need one."""

    rate_bytes_per_s: BytesPerS | None = 1e9 / 8
    on_end: Literal["loop", "hold", "end"] | None = "loop"
