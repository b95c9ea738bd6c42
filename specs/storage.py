"""Flash storage: measured bandwidth, or the parts that bandwidth comes from."""

from typing import Literal

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.units import Bytes, BytesPerS, Count, Seconds, Watts


class CurveRow(Spec):
    """Bandwidth of random commands of these sizes, measured with `depth` of them under way."""

    depth: Count = Field(ge=1, le=1024)
    block_bytes: tuple[Bytes, ...] = Field(min_length=1, max_length=64)
    bytes_per_s: tuple[BytesPerS, ...] = Field(min_length=1, max_length=64)

    @model_validator(mode="after")
    def _a_rate_for_every_block(self) -> "CurveRow":
        blocks, rates = len(self.block_bytes), len(self.bytes_per_s)
        if blocks != rates:
            raise BadKey("bytes_per_s", f"has {rates} entries for {blocks} sizes in block_bytes; give one for each")
        if self.block_bytes[0] < 1 or any(b <= a for a, b in zip(self.block_bytes, self.block_bytes[1:], strict=False)):
            raise BadKey("block_bytes", "must ascend from at least 1 B, each size once")
        return self


class MapSpec(Spec):
    """The part of the mapping table that the controller holds.

    Once reads and writes spread over more than `covers_bytes`, the share of commands that find their entry is
    `covers_bytes` over that spread, as for uniform accesses; each of the others takes `miss_s` more.
    """

    covers_bytes: Bytes = Field(gt=0)
    miss_s: Seconds


class StorageSpec(Spec):
    """Storage as `curve`, which interpolates measured bandwidth. See docs/storage.md.

    The simplest curve is `bytes_per_s` with `latency_s`: every command takes latency + size / rate, one after the
    other.
    """

    name: str = ""
    model: Literal["curve"] = "curve"
    bytes_per_s: BytesPerS | None = None
    latency_s: Seconds = 0.0
    # One row for every depth that was measured, ascending; without rows for writes, they take what reads do.
    read: tuple[CurveRow, ...] = Field(default=(), max_length=64)
    write: tuple[CurveRow, ...] = Field(default=(), max_length=64)
    # Commands under way at once, at most.
    queue_depth: Count = Field(default=32, ge=1, le=1024)
    # half: one direction at a time.
    duplex: Literal["half", "full"] = "half"
    map: MapSpec | None = None
    idle_w: Watts = 0.0
    # None: its energy is not counted.
    active_w: Watts | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_description(self) -> "StorageSpec":
        if self.bytes_per_s is None and not self.read:
            raise BadKey("read", "is missing: rows of measured bandwidth, or a single bytes_per_s with a latency_s")
        if self.bytes_per_s is not None and (self.read or self.write):
            raise BadKey("bytes_per_s", "stands beside measured rows; keep one of them and set the other to null")
        if self.latency_s and self.bytes_per_s is None:
            raise BadKey("latency_s", "goes with bytes_per_s; measured rows have it inside")
        return self

    @model_validator(mode="after")
    def _rows_by_depth(self) -> "StorageSpec":
        for key, rows in (("read", self.read), ("write", self.write)):
            depths = [row.depth for row in rows]
            if depths != sorted(set(depths)):
                raise BadKey(key, f"needs one row for each depth, ascending; what came is {depths}")
        return self
