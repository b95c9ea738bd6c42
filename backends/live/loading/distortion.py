"""What an encoding loses of a real model's KV."""

from collections.abc import Iterable

import numpy as np

from kvferry.codecs import codec

# A chunk's place (token chunk, layer, head), its keys and its values.
Chunk = tuple[tuple[int, int, int], np.ndarray, np.ndarray]


def relative_errors(chunks: Iterable[Chunk], codec_name: str, layers: int) -> list[float]:
    """Returns for each level the root mean square of the difference over that of the numbers, keys and values
    together."""
    square, errors = 0.0, np.zeros(codec.CODECS[codec_name].levels)
    for (_, layer, _), keys, values in chunks:
        square += float((keys**2).sum() + (values**2).sum())
        for level in range(len(errors)):
            restored = codec.decode(codec.encode(codec_name, keys, values, level, layer / layers))
            errors[level] += sum(float(((a - b) ** 2).sum()) for a, b in zip(restored, (keys, values), strict=True))
    return np.sqrt(errors / square).tolist() if square else [0.0] * len(errors)
