"""An engine: what software makes of hardware of a kind, apart from any device."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from kvferry.specs.base import Spec
from kvferry.specs.units import Seconds
from kvferry.specs.weight_format import WeightFormatName

# Kernel kinds: what an efficiency belongs to. Never a system. "attention" is dense prefill attention,
# "sparse_attention" the block-sparse one with its mask derivation, "decode_attention" one new token's, "gather" copies
# of KV. "unsplit_attention" is a new token's where one block of threads reads all KV of a sequence and head. "gemm"
# multiplies prompts with weights, "product" what is no weight of a layer, and as fast where nothing else is said.
Kernel = Literal[
    "gemm",
    "product",
    "gemv",
    "attention",
    "sparse_attention",
    "decode_attention",
    "unsplit_attention",
    "scoring",
    "gather",
    "svd",
]
# Who makes hardware, as files name it.
VENDOR = {"type": "string", "minLength": 1, "description": "Who makes it: nvidia, apple and so on. Absent: any engine."}
Share = Annotated[float, Field(gt=0, le=1)]


class UnpackSpec(Spec):
    """Instructions of one lane each that multiply quantised weights with a new token's numbers: for each weight, and to
    begin and sum up each row of a matrix."""

    weight_instructions: float = Field(gt=0, le=1e4)
    row_instructions: float = Field(default=0.0, ge=0, le=1e7)


class Int8GemmSpec(Spec):
    """Multiplies prompts with quantised weights as INT8, activations quantised too. ``efficiency``: the share of the
    peak in INT8; ``vendors``: whose hardware has such kernels."""

    efficiency: Share
    vendors: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1, max_length=100)


class EngineOnProcessor(Spec):
    """Shares of the peaks that kernels reach, and fixed costs, on every processor of one kind; the meaning of each key
    is that of ``ProcessorSpec``."""

    efficiency: dict[Kernel, Share] = Field(default_factory=dict)
    default_efficiency: Share = 0.6
    dispatch_s: Seconds = 0.0
    layer_s: Seconds = 0.0
    step_s: Seconds = 0.0
    unpack: UnpackSpec | None = None
    int8_gemm: Int8GemmSpec | None = None


class EngineSpec(Spec):
    """Numbers that hold for all devices with a processor of the kind. Every number carries its source in `sources`."""

    model_config = ConfigDict(
        json_schema_extra=lambda schema: schema["properties"].update(vendors={"type": "array", "items": VENDOR})
    )
    name: str
    processors: dict[Literal["gpu", "cpu", "npu"], EngineOnProcessor] = Field(min_length=1)
    # Weight formats that it reads; none named: it is not known which.
    weights: tuple[WeightFormatName, ...] = ()
    # Whether it launches layers kernel by kernel: `layer_s` then holds what a runtime says of that elsewhere.
    eager: bool = False
    sources: dict[str, str]

    @model_validator(mode="before")
    @classmethod
    def _numbers_alone(cls, value: Any) -> Any:
        """Returns it without its `vendors`, of whose hardware it is: for its choice (scenarios/engine_hardware.py)."""
        return {key: item for key, item in value.items() if key != "vendors"} if isinstance(value, dict) else value


def with_engine(device: Mapping[str, Any], engine: Mapping[str, Any], replace: bool = False) -> dict[str, Any]:
    """A device, as a file has it, whose processors have the engine's numbers where they have none of their own, or in
    place of their own (`replace`). Their sources name the engine. Applied twice, it changes nothing more."""
    named: Any = device.get("processors")
    by_kind: Any = engine.get("processors")
    own_sources, said_by_engine = device.get("sources") or {}, engine.get("sources") or {}
    if not all(isinstance(part, dict) for part in (named, by_kind, own_sources, said_by_engine)):
        # Whoever validates it says which of them is no mapping.
        return dict(device)
    processors, sources = dict(named), dict(own_sources)
    for name, processor in named.items():
        kind = processor.get("kind") if isinstance(processor, dict) else None
        numbers = by_kind.get(kind) if isinstance(kind, str) else None
        if not isinstance(numbers, dict):
            continue
        if not _has_kernels(numbers.get("int8_gemm"), device.get("vendor")):
            numbers = {key: value for key, value in numbers.items() if key != "int8_gemm"}
        theirs = EngineOnProcessor.model_fields if replace else ()
        own = {key: value for key, value in processor.items() if key not in theirs}
        processors[name] = {**numbers, **own}
        for key in theirs:
            sources.pop(f"processors.{name}.{key}", None)
        for key in (key for key in numbers if key not in own):
            said = said_by_engine.get(f"processors.{kind}.{key}")
            if said is not None:
                sources[f"processors.{name}.{key}"] = f"engine {engine.get('name')}: {said}"
    return {**device, "processors": processors, "sources": sources, "engine": dict(engine)}


def _has_kernels(int8_gemm: Any, vendor: Any) -> bool:
    """Returns whether a device of this vendor, if it says one, multiplies in INT8."""
    vendors = int8_gemm.get("vendors") if isinstance(int8_gemm, dict) else None
    return vendor is None or not isinstance(vendors, list | tuple) or vendor in vendors
