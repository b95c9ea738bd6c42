"""Seconds that streamed KV takes, layer by layer: decoding by a CodecPool's workers, and copying into the session."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.task import Task
from kvferry.calibration.unplanned_load import Phase, loading
from kvferry.traces.chunks import CHUNK_TOKENS

# The entropy-coded ones; the first one's rate is the profile's default.
CODECS = ("huffman", "cachegen")
# Faster than any decoder, which so never waits for a piece.
_LINK_BYTES_PER_S = 1e9


def tasks(rig: Rig, folder: Path) -> Iterator[Task]:
    for name in CODECS:
        for tokens in (rig.settings.chunk_tokens[0], CHUNK_TOKENS):
            task = f"codec: {name} pieces of {tokens} tokens"
            yield Task(task, lambda c=name, n=tokens: streaming(rig, folder, c, n))  # type: ignore[misc]


def streaming(rig: Rig, folder: Path, name: str, tokens: int) -> list[Measurement]:
    """Seconds of decoding a piece, and of putting it where the session keeps it, while nothing is computed.

    Pieces are measured in a stream and not one by one: there, threads wait for the interpreter, and caches hold other
    threads' data, as in a load.
    """
    with loading(rig, folder, name, tokens, _LINK_BYTES_PER_S) as load:
        return pieces(rig, name, tokens, [load.phase(stream=True)])


def pieces(rig: Rig, name: str, tokens: int, phases: Sequence[Phase]) -> list[Measurement]:
    """The seconds of pieces, from phases in which KV only streams."""
    values = float(2 * tokens * rig.spec.head_dim * rig.spec.kv_heads)
    at = {"values": values, "workers": float(rig.settings.workers)}
    placed = {"bytes": values * rig.spec.kv_value_bytes}
    return [
        Measurement(
            what=f"decode {name}", unit="s", values=tuple(s for phase in phases for s in phase.pieces_s), at=at
        ),
        Measurement(what="placing", unit="s", values=tuple(s for phase in phases for s in phase.copies_s), at=placed),
    ]
