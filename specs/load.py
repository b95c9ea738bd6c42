"""Background load: the share of a processor that other programs use during a run."""

from pydantic import Field, model_validator

from kvferry.specs.base import Part, exactly_one_of


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
