"""Kernels that choosing and bringing KV are made of, each by itself: ranking, scoring, gathering, copies and launches.

The ops of a decode step are measured in place by `decode` and `retrieval`; these tell what the hardware does at other
sizes, and which share of an op is the engine's.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.task import Task

# Rows that rank for themselves, and scores of each: a layer of one sequence and of many, a short and a long context.
_RANKED = ((8, 4096), (8, 16384), (128, 4096), (128, 16384), (512, 16384))
# Chosen of each row's scores, where it has as many.
_CHOSEN = 2048
# A copy between memories goes up to the size of all KV of a layer; a piece, from a token's key to a group of tokens.
_COPIED_BYTES = (2**12, 2**18, 2**22, 2**26)
_PIECE_BYTES = (2**8, 2**10, 2**12, 2**16)
# Kernels of next to nothing that are launched one after the other.
_LAUNCHES = 100


def tasks(rig: Rig) -> Iterator[Task]:
    for rows, scores in _RANKED[: 2 if rig.settings.quick else None]:
        yield Task(f"ranking {rows} x {scores}", partial(ranking, rig, rows, scores))
    yield Task("scoring", partial(scoring, rig))
    yield Task("gathering", partial(gathering, rig))
    yield Task("launches", partial(launches, rig))
    if rig.on_cuda:
        yield Task("copies between memories", partial(copies, rig))
        yield Task("pieces of host memory", partial(pieces, rig))


def ranking(rig: Rig, rows: int, scores: int) -> list[Measurement]:
    """Softmax in single precision and top-k, as engines choose KV."""
    of = torch.randn(rows, scores, device=rig.model.device).to(rig.model.dtype)
    chosen = min(_CHOSEN, scores // 2)
    values = rig.seconds_of(lambda: torch.topk(torch.softmax(of.float(), -1), chosen, sorted=False))
    return [Measurement(what="rank", unit="s", values=values, at={"rows": rows, "scores": scores})]


def scoring(rig: Rig) -> list[Measurement]:
    """Keys of a KV head against one query each, as a matrix product of one row."""
    spec, keys = rig.spec, 4096 if rig.settings.quick else 16384
    batch = 8 if rig.on_cuda else 1
    query = _noise(rig, batch, spec.kv_heads, 1, spec.head_dim)
    key = _noise(rig, batch, spec.kv_heads, keys, spec.head_dim)
    values = rig.seconds_of(lambda: query @ key.mT)
    return [Measurement(what="scoring", unit="s", values=values, at={"bytes": float(key.nbytes)})]


def gathering(rig: Rig) -> list[Measurement]:
    """Keys of chosen tokens brought together within the device's memory."""
    spec = rig.spec
    total = 2**22 if rig.settings.quick or not rig.on_cuda else 2**27
    source = _noise(rig, total // (spec.head_dim * rig.model.dtype.itemsize), spec.head_dim)
    chosen = torch.randperm(len(source), device=rig.model.device)[: len(source) // 8].sort().values
    values = rig.seconds_of(lambda: source.index_select(0, chosen))
    moved = 2.0 * len(chosen) * source[0].nbytes
    return [Measurement(what="gather", unit="s", values=values, at={"bytes": moved})]


def launches(rig: Rig) -> list[Measurement]:
    """Seconds of a kernel that does next to nothing, and of a query's norm as models without fused kernels compute it,
    one after the other."""
    spec = rig.spec
    one, heads = _noise(rig, 1), _noise(rig, 1, spec.query_heads, 1, spec.head_dim)
    weight = torch.ones_like(heads[0, 0, 0])

    def norm() -> torch.Tensor:
        wide = heads.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(heads.dtype)

    def many(call: Callable[[], Any]) -> None:
        for _ in range(_LAUNCHES):
            call()

    found = {"launch": lambda: one.add_(0), "head_norm": norm}
    return [
        Measurement(what=what, unit="s", values=tuple(s / _LAUNCHES for s in rig.seconds_of(partial(many, call))))
        for what, call in found.items()
    ]


def copies(rig: Rig) -> list[Measurement]:
    """From the host's memory to the device's and back, pinned and pageable."""
    found = []
    for n_bytes in _COPIED_BYTES:
        there = torch.zeros(n_bytes, dtype=torch.uint8, device=rig.model.device)
        for kind, pinned in (("pinned", True), ("pageable", False)):
            here = torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=pinned)
            to_device = rig.seconds_of(partial(there.copy_, here, non_blocking=pinned))
            to_host = rig.seconds_of(partial(here.copy_, there, non_blocking=pinned))
            at = {"bytes": float(n_bytes)}
            found += [
                Measurement(what=f"copy to the device, {kind}", unit="s", values=to_device, at=at),
                Measurement(what=f"copy to the host, {kind}", unit="s", values=to_host, at=at),
            ]
    return found


def pieces(rig: Rig) -> list[Measurement]:
    """Pieces out of the host's memory brought together there by one op's threads, then copied to the device at once."""
    total = 2**24 if rig.settings.quick else 2**26
    found = []
    for piece_bytes in _PIECE_BYTES:
        source = torch.zeros(4 * total // piece_bytes, piece_bytes // 8, dtype=torch.int64)
        chosen = torch.randperm(len(source))[: total // piece_bytes].sort().values
        together = torch.empty(len(chosen), piece_bytes // 8, dtype=torch.int64, pin_memory=True)
        there = torch.empty(together.shape, dtype=torch.int64, device=rig.model.device)
        values = rig.seconds_of(partial(_brought, source, chosen, together, there))
        at = {"piece_bytes": float(piece_bytes), "bytes": float(total)}
        found.append(Measurement(what="pieces to the device", unit="s", values=values, at=at))
    return found


def _brought(source: torch.Tensor, chosen: torch.Tensor, together: torch.Tensor, there: torch.Tensor) -> None:
    torch.index_select(source, 0, chosen, out=together)
    there.copy_(together, non_blocking=True)


def _noise(rig: Rig, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=rig.model.device, dtype=rig.model.dtype)
