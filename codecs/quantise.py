"""Quantises numbers to small integers, and back: per channel (SparKV, CacheGen), and in groups of 32 (KIVI).

Everything is affine, ``offset + step * symbol``, with offset and step as 16-bit floats: the error is at most half a
step plus the rounding of the offset.
"""

import numpy as np

GROUP = 32
# Half of float16's range, so that no finite value becomes infinite.
LARGEST = 32_000.0
_HALF = np.float16


# Symbols uint8[n, channels], and float16[channels] each of offset and step width.
Quantised = tuple[np.ndarray, np.ndarray, np.ndarray]


def per_channel(values: np.ndarray, steps: int, least_step: float = 0.0) -> Quantised:
    """``values[n, channels]`` as symbols from 0 to `steps`, whose number is at most 255.

    A channel's range is divided into `steps`, but into none narrower than `least_step` standard deviations. Its mean
    gets the middle symbol where that leaves room for all: channels then look alike, and one code suits them all. The
    values must be finite and within +-32,000: ValueError.
    """
    values = np.asarray(values, dtype=np.float32)
    low, high, mean = _bounds(values)
    step = (high - low) / steps
    if least_step:
        step = np.maximum(step, least_step * values.std(axis=0))
    step = _rounded_up(step)
    inverse = _inverse(step)
    below, above = np.rint((mean - low) * inverse), np.rint((high - mean) * inverse)
    middle = np.maximum(np.minimum((steps + 1) // 2, steps - above), below)
    offset = np.maximum(mean - middle * step, -LARGEST).astype(_HALF)
    return _symbols(values, offset, step, steps), offset, step


def from_minimum(values: np.ndarray, steps: int) -> Quantised:
    """The same, with symbol 0 for a channel's minimum and the last symbol for its maximum, as in KIVI."""
    values = np.asarray(values, dtype=np.float32)
    low, high, _ = _bounds(values)
    offset = low.astype(_HALF)
    step = _rounded_up((high - offset.astype(np.float32)).clip(0) / steps)
    return _symbols(values, offset, step, steps), offset, step


def restore(symbols: np.ndarray, scales: bytes | memoryview, out: np.ndarray | None = None) -> np.ndarray:
    """float32[n, channels] from symbols uint8 and the bytes of their `scales`; ValueError when those cannot be."""
    offset, step = np.frombuffer(scales, "<f2").reshape(2, -1).astype(np.float32)
    if not (np.isfinite(offset) & np.isfinite(step) & (step >= 0)).all():
        raise ValueError("scales that are none")
    values = np.multiply(symbols, step, out=out)
    values += offset
    return values


def scales(offset: np.ndarray, step: np.ndarray) -> bytes:
    """Offsets, then step widths, 2 bytes each."""
    return np.stack([offset, step]).astype("<f2").tobytes()


def check_range(*values: np.ndarray) -> None:
    """ValueError unless all can be written as 16-bit floats with room to spare."""
    if not all((np.abs(some) <= LARGEST).all() for some in values):
        raise ValueError(f"keys and values must be finite and within +-{LARGEST:,.0f}")


def groups_along(values: np.ndarray, axis: int) -> np.ndarray:
    """[n, channels] -> [32, groups]: every 32 neighbours along the axis are a column, the last ones repeated where
    they do not fill one. KIVI groups keys along tokens (axis 0) and values along channels (axis 1)."""
    lines = values if axis == 1 else values.T
    lines = np.pad(lines, ((0, 0), (0, -lines.shape[1] % GROUP)), mode="edge")
    return lines.reshape(-1, GROUP).T


def from_groups(columns: np.ndarray, shape: tuple[int, int], axis: int) -> np.ndarray:
    """The inverse: [n, channels] of that shape."""
    lines, length = shape if axis == 1 else shape[::-1]
    values = columns.T.reshape(lines, -1)[:, :length]
    return values if axis == 1 else values.T


def _rounded_up(values: np.ndarray) -> np.ndarray:
    nearest = values.astype(_HALF)
    return np.where(nearest < values, np.nextafter(nearest, _HALF(np.inf)), nearest)


def _bounds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low, high = values.min(axis=0), values.max(axis=0)
    check_range(low, high)
    return low, high, values.mean(axis=0)


def _inverse(step: np.ndarray) -> np.ndarray:
    return np.asarray(1 / np.where(step > 0, step, 1).astype(np.float32))


def _symbols(values: np.ndarray, offset: np.ndarray, step: np.ndarray, steps: int) -> np.ndarray:
    symbols = values - offset.astype(np.float32)
    symbols *= _inverse(step)
    np.rint(symbols, out=symbols)
    return np.clip(symbols, 0, steps, out=symbols).astype(np.uint8)
