"""Background load: what others take of a processor while a request runs."""

from pydantic import Field, model_validator

from kvferry.specs.base import Part


class LoadSpec(Part):
    """A replayed load trace, or a constant share of the processor; exactly one of the two."""

    trace: str | None = Field(default=None, min_length=1)
    # Of the processor's time, taken by others: 0.3 leaves 70 %.
    share: float | None = Field(default=None, ge=0, lt=1, strict=True)
    # A processor of the device by name; None: its main one.
    processor: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "LoadSpec":
        if (self.trace is None) == (self.share is None):
            raise ValueError("needs exactly one of trace (a load trace) and share (share: 0.3)")
        return self
