"""A device by its parts: processors, memory, decompression, network interface."""

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.engine import VENDOR, EngineSpec, Int8GemmSpec, Kernel, Share, UnpackSpec, with_engine
from kvferry.specs.heat import BatterySpec, HeatSpec
from kvferry.specs.power_mode import PowerModeSpec, in_power_mode
from kvferry.specs.storage import Slowdown, StorageSpec
from kvferry.specs.units import (
    Bandwidth,
    Bytes,
    BytesPerS,
    Clock,
    Count,
    FlopPerS,
    InstructionsPerS,
    Seconds,
    ValuesPerS,
    Watts,
)

# Share of a machine's cores that others may keep busy while it is measured.
QUIET_SHARE = 0.3


class BlockSparseSpec(Spec):
    """How a block-sparse attention kernel runs on a GPU: see sim/costs/block_sparse.py for the model."""

    multiprocessors: Count = Field(ge=1, le=10_000)
    # Share of a multiprocessor's peak reached inside a block.
    tile_efficiency: Share
    # Blocks per query tile at which scattered reads halve the bandwidth.
    run_blocks: float = Field(default=0.0, ge=0, le=1e4)
    # Start and end of a query tile, and of the kernel.
    tile_s: Seconds = 0.0
    launch_s: Seconds = 0.0
    # Spread of a measurement: the sigma of a log-normal factor.
    noise: float = Field(default=0.0, ge=0, le=1)


class ProcessorSpec(Spec):
    """One processor: peak rates, how much of them each kind of kernel reaches, and what it draws."""

    kind: Literal["gpu", "cpu", "npu"]
    # Dense, in 16 bits, of matrix units where it has such; and in INT8, where an engine uses it.
    flop_per_s: FlopPerS
    int8_flop_per_s: FlopPerS | None = None
    # Instructions that its schedulers begin, counted once for each lane; None: unpacking weights hides behind reading.
    instruction_per_s: InstructionsPerS | None = None
    bytes_per_s: Bandwidth
    # Share of the peak that each kernel kind reaches; a kind that is absent reaches `default_efficiency`.
    efficiency: dict[Kernel, Share] = Field(default_factory=dict)
    default_efficiency: Share = 0.6
    # Fixed cost of handing one op to the processor.
    dispatch_s: Seconds = 0.0
    # Fixed cost of one layer on the processor: launches, norms, rotary embedding, residuals.
    layer_s: Seconds = 0.0
    # Fixed cost of a decode step besides: sampling, and the host's way round to the next step.
    step_s: Seconds = 0.0
    # What unpacking quantised weights takes in decoding; the longer of it and of reading them counts. None: it hides.
    unpack: UnpackSpec | None = None
    int8_gemm: Int8GemmSpec | None = None
    # On top of it for a layer of decoding that is launched kernel by kernel, as an eager runtime does where it must
    # look at every layer; whole steps and prefill are captured or long enough to hide it. This and the two below are
    # there where they were measured on the device; where none of them is, a runtime says them (specs/runtime.py).
    eager_layer_s: Seconds | None = None
    # Kernels of such a layer take this many times as long as in a captured step, and at least the time in which they
    # are launched one by one: a floor, since what the host does meanwhile hides behind longer ones.
    eager_slowdown: Slowdown = 1.0
    eager_floor_s: Seconds = 0.0
    # The host's time per sequence and token where KV lies in pages: page tables, scheduling.
    sequence_s: Seconds = 0.0
    # The host's bookkeeping of KV on storage: per KV block (group, token or chunk) that a layer selects, and on top
    # of it per slot that the block is looked for in.
    block_s: Seconds | None = None
    slot_s: Seconds | None = None
    # The most slots that a search costs more for. None: no limit.
    most_slots: Annotated[Count, Field(ge=1)] | None = None
    # Scores that softmax and top-k go through while decoding; None: as if in no time.
    topk_per_s: ValuesPerS | None = None
    # What a program takes on top of it for each score: see specs/runtime.py.
    unexplained_score_s: Seconds | None = None
    block_sparse: BlockSparseSpec | None = None
    # Folder with a folder per model of measured tables: see sim/costs/table.py.
    measured: str | None = Field(default=None, min_length=1, max_length=1000)
    # CPU threads of one op when it was measured; None: not known. The model does not depend on it.
    threads: Annotated[Count, Field(ge=1, le=1024)] | None = None
    # An NPU runs shapes compiled beforehand: token counts are rounded up to one of these.
    compiled_tokens: tuple[Annotated[Count, Field(ge=1)], ...] = ()
    # Attention sees this many tokens back, at most, as does a runtime with a sliding window: a longer prompt is
    # prefilled piece by piece, and none that a cloud refines should be longer. None: it sees all.
    window_tokens: Annotated[Count, Field(ge=1)] | None = None
    # Time to load the compiled graph: once, the main processor's from the first request on, others' at their first op.
    load_s: Seconds = 0.0
    idle_w: Watts = 0.0
    active_w: Watts = 0.0
    # While it computes nothing and storage moves what it waits for, as threads that poll do; None: `idle_w`.
    waiting_w: Watts | None = None


class GatheredSpec(Spec):
    """Ranges of a length that the host brings together before they are copied as one, and the rate of both."""

    range_bytes: Bytes = Field(gt=0)
    bytes_per_s: BytesPerS = Field(gt=0)


class MemorySpec(Spec):
    """Where weights and KV live. Unified: one pool that all share; discrete: a copy path lies between."""

    unified: bool = Field(strict=True, examples=[True])
    capacity_bytes: Bytes = Field(gt=0)
    # In use by the operating system and other programs.
    reserved_bytes: Bytes = 0.0
    # Of the runtime itself, whatever the model: the context of a GPU with its kernels, or the process with its
    # libraries. None: as is assumed for the kind of the main processor.
    runtime_bytes: Bytes | None = None
    # Of what a run is granted, the part that stays unused: what an allocator loses to rounding and fragments. Assumed
    # where a profile does not say it; vLLM leaves 0.1 by default (gpu_memory_utilization), llama.cpp 1 GiB (--fit).
    margin_share: float = Field(default=0.02, ge=0, lt=1)
    # The bandwidth that all processors and DMA share if the memory is unified.
    bytes_per_s: Bandwidth
    # Host memory and copy path of a discrete GPU.
    host_capacity_bytes: Bytes | None = None
    copy_bytes_per_s: BytesPerS | None = None
    copy_latency_s: Seconds = 0.0
    # Rates of copies of scattered ranges, by their length, ascending; longer ones cost what whole copies do. Empty: all
    # do.
    gathered: tuple[GatheredSpec, ...] = Field(default=(), max_length=64)

    @field_validator("gathered")
    @classmethod
    def _ascending(cls, gathered: tuple[GatheredSpec, ...]) -> tuple[GatheredSpec, ...]:
        if any(b.range_bytes <= a.range_bytes for a, b in itertools.pairwise(gathered)):
            raise ValueError("range_bytes must ascend, each length once")
        return gathered

    @model_validator(mode="after")
    def _possible(self) -> "MemorySpec":
        if self.free_bytes <= 0:
            raise BadKey("reserved_bytes", f"leaves nothing of {self.capacity_bytes / 1e9:.4g} GB")
        if not self.unified and self.copy_bytes_per_s is None:
            raise BadKey("copy_bytes_per_s", "is missing; memory that is not unified has a copy path, say 25 GB/s")
        return self

    @property
    def free_bytes(self) -> float:
        """Memory for weights, KV and workspace: all that the operating system and other programs do not use."""
        return self.capacity_bytes - self.reserved_bytes


class PieceSpec(Spec):
    """A piece whose decoding was measured."""

    values: float = Field(gt=0)
    seconds: Seconds = Field(gt=0)


class DecodingSpec(Spec):
    """How fast one worker decodes."""

    values_per_s: ValuesPerS
    # Fixed time of a piece: handing it to a worker, and back.
    piece_s: Seconds = 0.0
    # Measured pieces, ascending. None: a piece takes the time of the line given by the two numbers above.
    pieces: tuple[PieceSpec, ...] = Field(default=(), max_length=64)

    @field_validator("pieces")
    @classmethod
    def _ascending(cls, pieces: tuple[PieceSpec, ...]) -> tuple[PieceSpec, ...]:
        if any(b.values <= a.values for a, b in itertools.pairwise(pieces)):
            raise ValueError("values must ascend, each size once")
        return pieces

    def seconds(self, values: float) -> float:
        """How long one piece of this many values takes: linear between measured pieces, at `values_per_s` beyond the
        largest. A smaller piece takes as long as the smallest, which is hardly more than the fixed time."""
        if not self.pieces:
            return self.piece_s + values / self.values_per_s
        below = self.pieces[0]
        for above in self.pieces:
            if values <= above.values:
                share = (values - below.values) / (above.values - below.values) if above is not below else 0.0
                return below.seconds + share * (above.seconds - below.seconds)
            below = above
        return below.seconds + (values - below.values) / self.values_per_s


class DecompressorSpec(DecodingSpec):
    """Entropy decoding: values per second of one worker, and how many workers."""

    workers: Count = Field(default=1, ge=1, le=1024)
    active_w: Watts = 0.0
    # Codecs that decode at a rate of their own, by name.
    codecs: dict[str, DecodingSpec] = Field(default_factory=dict)

    def of(self, codec: str) -> "DecompressorSpec":
        """This decompressor at the rate of that codec."""
        own = self.codecs.get(codec, self)
        decoding = {"values_per_s": own.values_per_s, "piece_s": own.piece_s, "pieces": own.pieces}
        return self.model_copy(update=decoding)


class NetworkInterfaceSpec(Spec):
    """What the device adds to a link; the link itself belongs to the scenario."""

    # The highest rate at which it receives, however fast the link is. None: no limit.
    bytes_per_s: BytesPerS | None = None
    # Added to the link's round trip of each fetch: the time to request it and to pass it on.
    request_s: Seconds = 0.0
    idle_w: Watts = 0.0
    active_w: Watts = 0.0


class ContentionSpec(Spec):
    """How much paths of a device slow each other, as on cores that they share: see sim/contention.py.

    `slowdown[path][other]`: how many times as long work on `path` takes while `other` is busy. Paths that can be
    slowed are processors, decompress and copy; others are those, link and storage.
    """

    slowdown: dict[str, dict[str, Slowdown]]
    # The link's slowdowns hold at this rate, and grow and shrink with it. None: they hold whenever it is busy.
    link_bytes_per_s: BytesPerS | None = None

    def at(self, link_bytes_per_s: float) -> dict[str, dict[str, float]]:
        """The slowdowns beside a link of this mean rate."""
        share = 1.0 if self.link_bytes_per_s is None else link_bytes_per_s / self.link_bytes_per_s
        return {
            path: {other: 1 + (factor - 1) * (share if other == "link" else 1.0) for other, factor in others.items()}
            for path, others in self.slowdown.items()
        }


class CalibrationSpec(Spec):
    """How and when ``kvferry calibrate`` measured a profile. Spreads are distances between the quartiles of a
    measurement's repetitions over their mean."""

    date: str = Field(max_length=40)
    # Fewer points and repetitions, as a trial.
    quick: bool = False
    # Processes that were at work on the machine, and the cores that it has.
    load_average: float | None = Field(default=None, ge=0)
    cores: int | None = Field(default=None, ge=1)
    median_spread: float = Field(ge=0)
    largest_spread: float = Field(ge=0)
    # What that was measured of, such as matrix_product.
    largest_spread_of: str = Field(max_length=100)

    @property
    def busy(self) -> bool:
        """Whether others were at work: their share of the machine is in what was measured."""
        return self.load_average is not None and self.load_average > QUIET_SHARE * (self.cores or 1)


# Of a device that does not say how fast it decodes entropy codes, which only loads of contexts need.
_DECOMPRESSOR = {"values_per_s": "80 Mvalue/s", "workers": 4, "active_w": "5 W"}
_DECOMPRESSOR_SOURCE = "assumed, as the file does not say it: four cores of a board"
# What a runtime takes for itself, assumed: the CUDA context with the kernels of PyTorch or vLLM is some 0.5 GB; a
# process that has loaded PyTorch for a CPU 0.23 GB, as measured, and an engine in C++ less.
_RUNTIME_BYTES = {"gpu": 0.5e9, "npu": 0.3e9, "cpu": 0.3e9}


# For users alone: what a paper's profile has its name beside.
BY_DATA_SHEET = {
    "type": "string",
    "minLength": 1,
    "description": "Of a profile that a paper's prototype was fitted on: the same hardware by its data sheet.",
}


class DeviceSpec(Spec):
    """A device profile: every number carries its source in `sources`, keyed by the number's path."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema["properties"].update(vendor=VENDOR, by_data_sheet=BY_DATA_SHEET)
    )
    name: str
    processors: dict[str, ProcessorSpec] = Field(min_length=1)
    # The processor that prefill and decoding run on.
    main: str = Field(examples=["gpu"])
    memory: MemorySpec
    decompressor: DecompressorSpec = Field(examples=[{"values_per_s": "200 Mvalue/s", "workers": 4}])
    network: NetworkInterfaceSpec = NetworkInterfaceSpec()
    # None: the device has no storage to read or write.
    storage: StorageSpec | None = None
    # None: every path works as if it were alone, but for a unified memory's bandwidth.
    contention: ContentionSpec | None = None
    # The clock of the fastest core, which runs the program that drives the processors. None: not known.
    host_clock_hz: Clock | None = None
    # The software on it: gives its processors the numbers that they do not say themselves. None: they say all.
    engine: EngineSpec | None = None
    # Drawn at all times: board, display, DRAM refresh.
    base_w: Watts = 0.0
    # What its owner can choose between, by name, and what is chosen; None: as the other keys say.
    power_modes: dict[str, PowerModeSpec] = Field(default_factory=dict, max_length=100)
    power_mode: str | None = None
    # How it warms up and slows down; None: it keeps its clock however long it works.
    heat: HeatSpec | None = None
    # None: it has none, or it is not known.
    battery: BatterySpec | None = None
    # None: it was not measured by ``kvferry calibrate``, or by one that did not say.
    calibration: CalibrationSpec | None = None
    sources: dict[str, str] = Field(examples=[{"processors.gpu.flop_per_s": "data sheet"}])

    @model_validator(mode="before")
    @classmethod
    def _as_it_is_used(cls, value: Any) -> Any:
        """In its power mode, under its engine."""
        if not isinstance(value, dict):
            return value
        # The vendor is for the choice of engines (scenarios/engine_hardware.py), the other name for listings.
        value, engine = in_power_mode(_with_bandwidth(_with_decompressor(value))), value.get("engine")
        used = with_engine(value, engine) if isinstance(engine, dict) else value
        return {key: part for key, part in used.items() if key not in ("vendor", "by_data_sheet")}

    @property
    def runtime_bytes(self) -> float:
        """What the runtime takes of the memory for itself."""
        said = self.memory.runtime_bytes
        return _RUNTIME_BYTES[self.processors[self.main].kind] if said is None else said

    @property
    def is_measured(self) -> bool:
        """Whether ops of the main processor were measured on the device, as ``kvferry calibrate`` does. Otherwise the
        profile is what data sheets and papers say: its times are estimates, and bounds made from it prove nothing."""
        return self.processors[self.main].measured is not None

    def slowdown_at(self, link_bytes_per_s: float = 0.0) -> dict[str, dict[str, float]]:
        """Returns how paths slow each other beside a link of this mean rate: as `contention` says, and storage as much
        as it slows the main processor, where its profile says that it goes both ways."""
        if self.contention is None:
            return {}
        slowdown = self.contention.at(link_bytes_per_s)
        beside = slowdown.get(self.main, {}).get("storage", 1.0)
        if self.storage is not None and self.storage.slowed_by_computing and beside > 1:
            slowdown["storage"] = {self.main: beside}
        return slowdown

    @property
    def has_runtime(self) -> bool:
        """Whether the profile itself says what software takes to manage KV on storage, as a measured one does."""
        main = self.processors[self.main]
        return any(cost is not None for cost in (main.eager_layer_s, main.block_s, main.slot_s))

    @model_validator(mode="after")
    def _modes_of_its_processors(self) -> "DeviceSpec":
        for name, mode in self.power_modes.items():
            for processor in mode.processors:
                if processor not in self.processors:
                    has = ", ".join(self.processors)
                    raise BadKey("power_modes", f"{name}: {processor!r} is no processor of this device; it has {has}")
        return self

    @model_validator(mode="after")
    def _contention_of_its_paths(self) -> "DeviceSpec":
        slowed = {*self.processors, "decompress", "copy"}
        others = {*slowed, "link", "storage"}
        for path, slowdowns in (self.contention.slowdown if self.contention else {}).items():
            if path not in slowed:
                raise BadKey("contention", f"{path!r} is no path that can be slowed; there are {_listed(slowed)}")
            for other in slowdowns:
                if other == path or other not in others:
                    raise BadKey("contention", f"{path} beside {other!r}: beside it are {_listed(others - {path})}")
        return self


def _with_decompressor(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """A device, as a file has it, with a decompressor, where it says none."""
    sources = device.get("sources")
    if device.get("decompressor") is not None or not isinstance(sources, Mapping):
        return device
    return {**device, "decompressor": _DECOMPRESSOR, "sources": {**sources, "decompressor": _DECOMPRESSOR_SOURCE}}


def _with_bandwidth(device: Mapping[str, Any]) -> Mapping[str, Any]:
    """A device, as a file has it, that says the bandwidth of its memory or of its main processor once: it is one and
    the same, and in a memory that all share the other processors' too. Raises BadKey where it says neither."""
    memory, processors = device.get("memory"), device.get("processors")
    main = processors.get(device.get("main")) if isinstance(processors, Mapping) else None
    if not isinstance(memory, Mapping) or not isinstance(processors, Mapping) or not isinstance(main, Mapping):
        return device
    said = memory.get("bytes_per_s", main.get("bytes_per_s"))
    if said is None:
        raise BadKey("memory.bytes_per_s", "is missing; write it like bytes_per_s: 100 GB/s, what the data sheet says")
    shared = processors if memory.get("unified") is True else (device.get("main"),)
    filled = {
        name: {"bytes_per_s": said, **one} if name in shared and isinstance(one, Mapping) else one
        for name, one in processors.items()
    }
    return {**device, "memory": {"bytes_per_s": said, **memory}, "processors": filled}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
