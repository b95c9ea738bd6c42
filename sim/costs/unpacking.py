"""Unpacking quantised weights: the instructions that a new token's products take, over the rate of beginning them."""

from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec


def unpacking_s_per_byte(processor: ProcessorSpec, model: ModelSpec) -> float:
    """Seconds that unpacking takes per byte of a layer's weights, at the peak; 0 where it hides behind reading them.

    Left out: that a retrieval head's weights need no unpacking, and that prefill unpacks, which is little beside its
    arithmetic. The output head's weights, of more bits, count by their bytes too: they take more instructions.
    """
    unpack, rate = processor.unpack, processor.instruction_per_s
    if unpack is None or rate is None or model.matrices.layer_bits >= 16:
        return 0.0
    instructions = unpack.weight_instructions + unpack.row_instructions / model.matrices.mean_row
    return instructions / rate * 8 / model.matrices.layer_bits
