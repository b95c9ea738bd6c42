"""Flash storage: measured bandwidth, or the parts that bandwidth comes from."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.units import Bytes, BytesPerS, Count, Seconds, Watts

# How many times as long something takes.
Slowdown = Annotated[float, Field(ge=1, le=1000)]


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


class FlashSpec(Spec):
    """The parts of a flash device that a command passes: see sim/flash.py for the model."""

    # Of the host, for a command alone: it holds its place in the queue and nothing else. Its pages are pinned and
    # mapped at host_bytes_per_s; None: in no time.
    host_s: Seconds = 0.0
    host_bytes_per_s: BytesPerS | None = None
    # Of the controller for each command; None: a write takes it as long as a read. On top of that for one that does
    # not begin and end between sectors.
    command_s: Seconds
    write_command_s: Seconds | None = None
    partial_s: Seconds = 0.0
    # Bytes protected by one error-correcting code, which leave a die together.
    sector_bytes: Bytes = Field(default=4096, ge=1)
    # Bytes that a die senses at once, however few of them are needed.
    page_bytes: Bytes = Field(default=16384, ge=1)
    page_read_s: Seconds
    page_program_s: Seconds
    # How long before its pages are programmed a write has ended: what the write buffer holds, in seconds.
    buffer_s: Seconds = 0.0
    channels: Count = Field(ge=1, le=256)
    # On each channel.
    dies: Count = Field(ge=1, le=256)
    channel_bytes_per_s: BytesPerS
    # Between device and host. With half duplex both directions share it, and commands hold it, too; with full duplex
    # they do where `commands_hold_bus` says so, and are handled beside what the bus moves where not.
    bus_bytes_per_s: BytesPerS
    commands_hold_bus: bool = False

    @model_validator(mode="after")
    def _whole_sectors(self) -> "FlashSpec":
        if self.sector_bytes % 1 or self.page_bytes % self.sector_bytes:
            sectors = f"{self.sector_bytes:g} B"
            raise BadKey("page_bytes", f"is no whole number of sectors of {sectors}; 4 KiB sectors in 16 KiB pages are")
        return self


class StorageSpec(Spec):
    """Storage as a `curve`, which interpolates measured bandwidth, or a `queue`, which follows commands on their way.
    See docs/storage.md. A profile may describe both, and `model` says which is meant.

    The simplest curve is `bytes_per_s` with `latency_s`: every command takes latency + size / rate, one after the
    other. Without rows either, the curve is what the queue model reaches.
    """

    name: str = ""
    model: Literal["curve", "queue"] = "curve"
    bytes_per_s: BytesPerS | None = None
    latency_s: Seconds = 0.0
    # One row for every depth that was measured, ascending; without rows for writes, they take what reads do.
    read: tuple[CurveRow, ...] = Field(default=(), max_length=64)
    write: tuple[CurveRow, ...] = Field(default=(), max_length=64)
    queue: FlashSpec | None = None
    # Direct reads begin and end at a multiple of it: what is read as one lies on whole blocks.
    block_bytes: Bytes = Field(default=512, ge=1, le=2**20)
    # The host joins extents of a batch that lie against each other into one command; without it, each is one.
    merges: bool = True
    # Commands under way at once, at most.
    queue_depth: Count = Field(default=32, ge=1, le=1024)
    # half: one direction at a time.
    duplex: Literal["half", "full"] = "half"
    # Computing slows its commands as many times as they slow computing, by the device's `contention`.
    slowed_by_computing: bool = Field(default=False, strict=True)
    map: MapSpec | None = None
    # Its capacity; None: never full.
    capacity_bytes: Bytes | None = Field(default=None, gt=0)
    # The shortest read that reaches most of its bandwidth: the length of KV blocks unless a policy sets it.
    good_read_bytes: Bytes = Field(default=16384, ge=1)
    # Bytes that may be written to it in its life; None: not known.
    endurance_bytes: Bytes | None = Field(default=None, gt=0)
    idle_w: Watts = 0.0
    # None: its energy is not counted.
    active_w: Watts | None = None
    sources: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_description(self) -> "StorageSpec":
        if self.model == "queue" and self.queue is None:
            raise BadKey("queue", "is missing: model: queue needs to know controller, dies, channels and bus")
        if self.bytes_per_s is None and not self.read and self.queue is None:
            raise BadKey("read", "is missing: rows of measured bandwidth, or a single bytes_per_s with a latency_s")
        if self.bytes_per_s is not None and (self.read or self.write):
            raise BadKey("bytes_per_s", "stands beside measured rows; keep one of them and set the other to null")
        if self.latency_s and self.bytes_per_s is None:
            raise BadKey("latency_s", "goes with bytes_per_s; measured rows have it inside")
        return self

    @field_validator("block_bytes")
    @classmethod
    def _whole_block(cls, n_bytes: float) -> float:
        if n_bytes % 1 or int(n_bytes) & (int(n_bytes) - 1):
            raise ValueError(f"block size {n_bytes:g} B is no power of two; 512 B or 4 KiB would do")
        return n_bytes

    @model_validator(mode="after")
    def _rows_by_depth(self) -> "StorageSpec":
        for key, rows in (("read", self.read), ("write", self.write)):
            depths = [row.depth for row in rows]
            if depths != sorted(set(depths)):
                raise BadKey(key, f"needs one row for each depth, ascending; what came is {depths}")
        return self
