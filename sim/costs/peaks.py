"""Which peak a kernel works at, and which share of it the kernel reaches."""

from kvferry.specs.device import ProcessorSpec
from kvferry.specs.engine import Kernel
from kvferry.specs.model import ModelSpec


def share_of(processor: ProcessorSpec, kernel: Kernel) -> float:
    """Returns the share of the 16-bit peak, or of the bandwidth, that a kernel kind reaches."""
    like = "gemm" if kernel == "product" and kernel not in processor.efficiency else kernel
    return processor.efficiency.get(like, processor.default_efficiency)


def multiplies_in_int8(processor: ProcessorSpec, model: ModelSpec) -> bool:
    """Returns whether prompts are multiplied with the model's weights as INT8: weights of 16 bits never are."""
    known = processor.int8_gemm is not None and processor.int8_flop_per_s is not None
    return known and model.matrices.layer_bits < 16


def flop_per_s(processor: ProcessorSpec, model: ModelSpec, kernel: Kernel) -> float:
    """Returns the arithmetic that a kernel kind does in a second."""
    if kernel == "gemm" and multiplies_in_int8(processor, model):
        assert processor.int8_gemm is not None and processor.int8_flop_per_s is not None
        return processor.int8_flop_per_s * processor.int8_gemm.efficiency
    return processor.flop_per_s * share_of(processor, kernel)
