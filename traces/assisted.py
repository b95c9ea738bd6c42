"""Requests of many devices over time, and the masks that a cloud would send them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvferry.specs.assist import MOST_ASSISTED, AssistSpec, DeviceArrivalsSpec
from kvferry.specs.errors import InputError
from kvferry.traces.chance import Source, generator
from kvferry.traces.request import Request
from kvferry.traces.request_log import read_log
from kvferry.traces.requests import lengths_around

# Tokens of a sentence, in the mean: some 19 words.
_SENTENCE_TOKENS = 25


@dataclass(frozen=True, eq=False)
class AssistedRequests:
    """Request by request, in order of arrival: when it comes, to which device, tokens of prompt and answer, and what it
    is about. ``closed``: a device's next request comes when the one before has ended."""

    arrivals_s: np.ndarray
    devices: np.ndarray
    prompts: np.ndarray
    outputs: np.ndarray
    scenes: np.ndarray
    closed: bool
    # Of a log, for the user.
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.arrivals_s)

    def as_they_came(self, arrivals: Sequence[Request] | None) -> "AssistedRequests":
        """At the times, of the lengths and at the devices that another run recorded, where it is not None. Raises
        InputError for a recording of more or fewer requests."""
        if arrivals is None:
            return self
        if len(arrivals) != len(self):
            raise InputError(f"workload: {len(arrivals):,} requests were recorded, this run has {len(self):,}")
        return AssistedRequests(
            arrivals_s=np.array([one.arrival_s for one in arrivals]),
            devices=np.array([one.source for one in arrivals]),
            prompts=np.array([one.context for one in arrivals]),
            outputs=np.array([one.output for one in arrivals]),
            scenes=self.scenes,
            closed=False,
            notes=self.notes,
        )


def assisted_requests(workload: AssistSpec, seed: int) -> AssistedRequests:
    """Raises InputError for a trace that cannot be read, and for a time in which no request comes."""
    if workload.trace is not None:
        found, notes = read_log(
            Path(workload.trace), first=workload.requests, most=MOST_ASSISTED, question=workload.question
        )
        arrivals_s = np.array([one.arrival_s for one in found])
        prompts = np.maximum([one.context + one.question for one in found], workload.fixed + 1)
        outputs = np.array([one.output for one in found])
        devices, scenes = _dealt(workload, len(found), seed)
        return AssistedRequests(arrivals_s, devices, prompts, outputs, scenes, closed=False, notes=notes)
    came = _came(workload, seed) if workload.cells is None else _in_cells(workload, workload.cells, seed)
    if not len(came.arrivals_s):
        raise InputError("workload.duration: no request comes within it; make it longer")
    return came


def _in_cells(workload: AssistSpec, cells: int, seed: int) -> AssistedRequests:
    """Requests of all cells, each drawn by itself: another cell, or a device in another one, changes nothing in it."""
    # Cells that have a request.
    found = []
    for cell in range(min(cells, workload.requests or cells)):
        devices = len(range(cell, workload.devices, cells))
        requests = None if workload.requests is None else len(range(cell, workload.requests, cells))
        alone = workload.model_copy(update={"cells": None, "devices": devices, "requests": requests})
        found.append(_came(alone, seed, workload.first_cell + cell))
    cell_of = np.concatenate([np.full(len(one), cell) for cell, one in enumerate(found)])
    numbers = np.concatenate([np.arange(len(one)) for one in found])
    arrivals_s, whose, prompts, outputs, scenes = (
        np.concatenate([getattr(one, name) for one in found])
        for name in ("arrivals_s", "devices", "prompts", "outputs", "scenes")
    )
    order = np.lexsort((cell_of, numbers, arrivals_s))
    return AssistedRequests(
        arrivals_s[order],
        (whose * cells + cell_of)[order],
        prompts[order],
        outputs[order],
        scenes[order],
        closed=workload.arrivals is None,
    )


def _came(workload: AssistSpec, seed: int, *place: int) -> AssistedRequests:
    """Requests drawn at a place of chance."""
    arrivals_s = _arrivals_s(workload, seed, *place)
    medians = workload.prompt, workload.output
    prompts, outputs = lengths_around(medians, workload.spread, (len(arrivals_s), seed, *place)).T
    prompts = np.maximum(prompts, workload.fixed + 1)
    devices, scenes = _dealt(workload, len(arrivals_s), seed, *place)
    return AssistedRequests(arrivals_s, devices, prompts, outputs, scenes, closed=workload.arrivals is None)


def _dealt(workload: AssistSpec, n: int, seed: int, *place: int) -> tuple[np.ndarray, np.ndarray]:
    """int[n] each: whose every request is, and what it is about."""
    rng = generator(Source.DEVICES, seed, *place)
    closed = workload.trace is None and workload.arrivals is None
    devices = workload.devices
    whose = np.arange(n) % devices if closed else rng.integers(devices, size=n)
    return whose, rng.integers(workload.scenes, size=n)


def _arrivals_s(workload: AssistSpec, seed: int, *place: int) -> np.ndarray:
    arrivals = workload.arrivals
    if arrivals is None:
        return np.zeros(workload.requests or workload.devices)
    rng = generator(Source.ARRIVALS, seed, *place)
    rate_hz = arrivals.rate_hz * workload.devices
    if workload.duration_s is not None:
        # By what share of the expected number had come: so a process of any rate takes one draw.
        n = rng.poisson(rate_hz * workload.duration_s)
        shares = np.sort(rng.uniform(size=n))
        edges_s, sums = _expected(arrivals, workload.duration_s, seed)
        arrived_s: np.ndarray = np.interp(shares, sums / sums[-1], edges_s)
        return arrived_s
    n = workload.requests or workload.devices
    came = np.cumsum(rng.exponential(1 / rate_hz, size=n))
    if arrivals.burstiness == 1:
        return came
    edges_s, sums = _expected(arrivals, 2 * float(came[-1]) + 10 * (arrivals.burst_s + arrivals.calm_s), seed)
    # `came` are times at the mean rate: by then so much of the expected number has come.
    return np.interp(came, sums, edges_s)


def _expected(arrivals: DeviceArrivalsSpec, duration_s: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges in seconds, and how many requests are expected by each, in units of a second at the mean rate."""
    if arrivals.burstiness == 1:
        return np.array([0.0, duration_s]), np.array([0.0, duration_s])
    rng = generator(Source.BURSTS, seed)
    pairs = 2 + int(4 * duration_s / (arrivals.burst_s + arrivals.calm_s))
    lengths_s = rng.exponential([arrivals.calm_s, arrivals.burst_s], size=(pairs, 2)).ravel()
    edges_s = np.append(0.0, np.cumsum(lengths_s))
    both_s = arrivals.burst_s + arrivals.calm_s
    calm = both_s / (arrivals.calm_s + arrivals.burstiness * arrivals.burst_s)
    sums = np.append(0.0, np.cumsum(lengths_s * np.tile([calm, calm * arrivals.burstiness], pairs)))
    # As long as it lasts, and at the mean rate behind what was drawn.
    at_end = np.interp(duration_s, edges_s, sums)
    within = edges_s < duration_s
    return np.append(edges_s[within], duration_s), np.append(sums[within], at_end)


def drawn_mask(tokens: int, beginning: int, question: int, kept: int, seed: int = 0) -> np.ndarray:
    """bool[tokens]: a mask as a refiner makes it that keeps whole sentences, `kept` tokens at most, the beginning and
    the question among them."""
    rng = generator(Source.SENTENCES, seed)
    mask = np.zeros(tokens, np.bool_)
    mask[:beginning] = True
    mask[tokens - question :] = True
    ends = np.cumsum(rng.geometric(1 / _SENTENCE_TOKENS, size=2 + 2 * tokens // _SENTENCE_TOKENS)) + beginning
    ends = np.append(ends[ends < tokens - question], tokens - question)
    starts = np.append(beginning, ends[:-1])
    left = kept - beginning - question
    for sentence in rng.permutation(len(starts)):
        size = int(ends[sentence] - starts[sentence])
        if 0 < size <= left:
            mask[starts[sentence] : ends[sentence]] = True
            left -= size
    return mask


def networks_of(workload: AssistSpec, seed: int) -> np.ndarray:
    """int[devices]: which of the workload's networks each device is on; the first device is on the scenario's own
    link, -1, as all are where it has none."""
    found = np.full(workload.devices, -1)
    if workload.networks is not None:
        shares = np.array([one.share for one in workload.networks])
        drawn = generator(Source.LINKS, seed).choice(len(shares), size=workload.devices - 1, p=shares / shares.sum())
        found[1:] = drawn
    return found
