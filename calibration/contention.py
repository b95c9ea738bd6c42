"""How much the paths slow each other: decoder, compute thread, server and client share the device's cores."""

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.streamed_kv import CODECS, pieces
from kvferry.calibration.task import Task
from kvferry.calibration.unplanned_load import loading
from kvferry.traces.chunks import CHUNK_TOKENS

# The link's rate during the measurement. It is part of the profile, as the slowdown is proportional to it.
LINK_BYTES_PER_S = 40e6
# Tokens of a chunk: in the middle of the sizes whose decoding is measured.
_TOKENS = CHUNK_TOKENS // 2
# A path that was busy for a smaller share of the time counts as busy for this share: noise is not divided by almost 0.
_LEAST_BUSY = 0.05


def tasks(rig: Rig, folder: Path) -> Iterator[Task]:
    yield Task("contention: streamed KV and compute", lambda: beside_decoding(rig, folder))
    yield Task("contention: link and compute", lambda: beside_the_link(rig, folder))


def beside_decoding(rig: Rig, folder: Path) -> list[Measurement]:
    """For each pair of paths, seconds of one beside the other over its seconds alone, measured alternately.

    KV streams in as in a load, as fast as possible: fetched, decoded, put into a session. The whole slowdown of the
    processor is attributed to the decoder, per second that it is busy.
    """
    compute, decompress, copy, alone = [], [], [], []
    with loading(rig, folder, CODECS[0], _TOKENS, LINK_BYTES_PER_S) as load:
        for _ in range(_rounds(rig)):
            computed, streamed, both = load.phase(compute=True), load.phase(stream=True), load.phase(True, True)
            alone.append(streamed)
            compute.append(_slowdown(both.compute_s / computed.compute_s, both.decompress_busy))
            decompress.append(fmean(both.pieces_s) / fmean(streamed.pieces_s))
            copy.append(fmean(both.copies_s) / fmean(streamed.copies_s))
    return [
        _ratio("compute beside decompress", compute),
        _ratio("decompress beside compute", decompress),
        _ratio("copy beside compute", copy),
        *pieces(rig, CODECS[0], _TOKENS, alone),
    ]


def beside_the_link(rig: Rig, folder: Path) -> list[Measurement]:
    """The same for the link at a fixed rate; its bytes are not decoded and are thrown away."""
    compute = []
    with loading(rig, folder, None, _TOKENS, LINK_BYTES_PER_S) as load:
        for _ in range(_rounds(rig)):
            computed, both = load.phase(compute=True), load.phase(True, True)
            compute.append(_slowdown(both.compute_s / computed.compute_s, both.link_busy))
    return [_ratio("compute beside link", compute)]


def _rounds(rig: Rig) -> int:
    return 1 if rig.settings.quick else 3


def _slowdown(ratio: float, busy: float) -> float:
    """The slowdown while the other path is busy, from the mean slowdown and the share of the time that it was busy."""
    return 1 + (ratio - 1) / max(busy, _LEAST_BUSY)


def _ratio(what: str, values: list[float]) -> Measurement:
    at = {"link_bytes_per_s": LINK_BYTES_PER_S}
    return Measurement(what=what, unit="times", values=tuple(values), at=at)
