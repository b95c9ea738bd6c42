"""SparKV's encoding as its Section V has it: layer-wise quantisation, then Huffman coding."""

import numpy as np

from kvferry.policies.codecs import Encoding, huffman

# Shares of the layers, from the first on, whose keys and values keep 32 levels; the others get 16. CacheGen's
# published configuration (LMCache, CacheGenConfig: 10 and 2 of 32 layers), as SparKV prints none.
_FINE_KEYS, _FINE_VALUES = 10 / 32, 2 / 32


def layerwise(entropy_bits: np.ndarray, values: np.ndarray | int) -> Encoding:
    """As `huffman`, with half the levels in deeper layers.

    A step twice as wide saves one bit per number; half of the bits where there are fewer than two.
    """
    fine = huffman(entropy_bits, values).encoded_bytes
    coarse = huffman(np.maximum(entropy_bits - 1, entropy_bits / 2), values).encoded_bytes
    depth = np.arange(entropy_bits.shape[1]) / entropy_bits.shape[1]
    share = ((depth < _FINE_KEYS) + 1.0 * (depth < _FINE_VALUES))[None, :, None] / 2
    return Encoding(share * fine + (1 - share) * coarse)
