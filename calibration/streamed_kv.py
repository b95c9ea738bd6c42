"""Streamed KV as loads have it: decoded by the workers of a CodecPool and put into the session, a layer at a time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.task import Task
from kvferry.calibration.unplanned_load import Phase, loading
from kvferry.traces.chunks import CHUNK_TOKENS

# Those that are entropy-coded, the one whose rate is the profile's own first.
CODECS = ("huffman", "cachegen")
# Faster than any decoder: there is always a piece for it.
_LINK_BYTES_PER_S = 1e9


def tasks(rig: Rig, folder: Path) -> Iterator[Task]:
    for name in CODECS:
        for tokens in (rig.settings.chunk_tokens[0], CHUNK_TOKENS):
            task = f"codec: {name} pieces of {tokens} tokens"
            yield Task(task, lambda c=name, n=tokens: streaming(rig, folder, c, n))  # type: ignore[misc]


def streaming(rig: Rig, folder: Path, name: str, tokens: int) -> list[Measurement]:
    """Seconds of decoding a piece, and of putting it where the session keeps it, while nothing is computed.

    In a stream and not by themselves: threads that pass pieces on wait for the interpreter, and caches hold what
    the others left there.
    """
    with loading(rig, folder, name, tokens, _LINK_BYTES_PER_S) as load:
        return pieces(rig, name, tokens, [load.phase(stream=True)])


def pieces(rig: Rig, name: str, tokens: int, phases: Sequence[Phase]) -> list[Measurement]:
    """What phases of nothing but streaming tell of pieces."""
    values = float(2 * tokens * rig.spec.head_dim * rig.spec.kv_heads)
    at = {"values": values, "workers": float(rig.settings.workers)}
    placed = {"bytes": values * rig.spec.kv_value_bytes}
    return [
        Measurement(
            what=f"decode {name}", unit="s", values=tuple(s for phase in phases for s in phase.pieces_s), at=at
        ),
        Measurement(what="placing", unit="s", values=tuple(s for phase in phases for s in phase.copies_s), at=placed),
    ]
