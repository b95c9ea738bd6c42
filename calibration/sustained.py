"""Decoding without a break: how a device's rate falls as it warms up, second by second, written as it is measured."""

import csv
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from kvferry.calibration.measured_model import Rig
from kvferry.specs.errors import InputError
from kvferry.traces.sustained import Rates

THERMAL = Path("/sys/class/thermal")
# Chats as those of the measured series that come along: a short prompt, and so many tokens behind it.
_PROMPT, _OUTPUT = 19, 128
_WARM_UP = 16
# What a rate is read off: means of so many seconds.
PIECE_S = 5
# Sensors that are not there give less or more.
_LEAST_C, _MOST_C = 0.0, 150.0


class Second(NamedTuple):
    """The rate over the second that ended so long after the beginning, and the hottest sensor's temperature."""

    until_s: int
    tokens_per_s: float
    temperature_c: float | None


@dataclass(frozen=True)
class Sustained:
    """A series that was measured, and the file that it is in."""

    path: Path
    seconds: tuple[Second, ...]
    interrupted: bool

    @property
    def in_words(self) -> str:
        """What it found; of less than three pieces, that it is too short."""
        per_s = np.array([one.tokens_per_s for one in self.seconds])
        pieces = len(per_s) // PIECE_S
        if pieces < 3:
            return f"{len(per_s)} s are too short to tell whether it throttles; {3 * PIECE_S} s are the least"
        rates = Rates(float(PIECE_S), per_s[: pieces * PIECE_S].reshape(pieces, PIECE_S).mean(axis=1))
        after_s = rates.throttled_after_s
        said = "did not throttle" if after_s is None else f"throttled after {after_s:.0f} s"
        began, ended = f"{rates.cold_per_s:.3g} tokens/s at the start", f"{rates.per_s[-1]:.3g} at the end"
        temperatures = [one.temperature_c for one in self.seconds if one.temperature_c is not None]
        heat = f"; {temperatures[0]:.0f} to {max(temperatures):.0f} C" if temperatures else "; no temperature to read"
        return f"{began}, {ended}: {said}{heat}"


def sustained(
    rig: Rig, folder: Path, lasting_s: float, progress: Callable[[int, int], None] = lambda done, of: None
) -> Sustained:
    """Decodes for so long, and writes each second into a new file of the folder when it is over. Ctrl-C ends it, and
    keeps what there is. Raises InputError where there is no such model, or the file cannot be written."""
    step = decoder(rig)
    # What is compiled and cached once is no part of the rate.
    for _ in range(_WARM_UP):
        step()
    found: list[Second] = []
    path, interrupted = new_file(folder), False
    try:
        with path.open("x", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(Second._fields)
            for one in seconds(step, lasting_s):
                rows.writerow((one.until_s, f"{one.tokens_per_s:.5g}", _shown(one.temperature_c)))
                _keep(file)
                found.append(one)
                progress(one.until_s, round(lasting_s))
    except KeyboardInterrupt:
        interrupted = True
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; another --output would do") from None
    return Sustained(path, tuple(found), interrupted)


def seconds(
    step: Callable[[], None],
    lasting_s: float,
    clock_s: Callable[[], float] = perf_counter,
    temperature_c: Callable[[], float | None] = lambda: hottest_c(THERMAL),
) -> Iterator[Second]:
    """Takes a step after the other, and yields every whole second: its tokens over the time that they took, which ends
    with the first one behind it. A step that takes longer than a second stands for every second that it ended in."""
    began_s = last_s = clock_s()
    tokens, until_s = 0, 1
    while last_s - began_s < lasting_s:
        step()
        tokens += 1
        now_s = clock_s()
        if now_s - began_s < until_s:
            continue
        rate, hottest = tokens / (now_s - last_s), temperature_c()
        while until_s <= now_s - began_s:
            yield Second(until_s, rate, hottest)
            until_s += 1
        last_s, tokens = now_s, 0


def decoder(rig: Rig) -> Callable[[], None]:
    """A function that decodes a token: of a chat, or where that is at its end, the first one of the next, with its
    prompt."""
    model, prompt = rig.model, torch.tensor([rig.context(_PROMPT)], device=rig.model.device)
    said, cache, tokens = prompt, DynamicCache(config=model.config), 0

    def step() -> None:
        nonlocal said, cache, tokens
        if tokens == _OUTPUT:
            said, cache, tokens = prompt, DynamicCache(config=model.config), 0
        with torch.inference_mode():
            logits = model(input_ids=said, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            said = logits[:, -1].argmax(dim=-1, keepdim=True)
            # Waits for the device, as who shows the token does.
            said.cpu()
        tokens += 1

    return step


def hottest_c(thermal: Path) -> float | None:
    """The temperature of the hottest sensor that can be read; None: of none."""
    found = []
    for file in sorted(thermal.glob("thermal_zone*/temp")):
        try:
            degrees = int(file.read_text()) / 1000
        except (OSError, ValueError):
            continue
        if _LEAST_C < degrees < _MOST_C:
            found.append(degrees)
    return max(found, default=None)


def new_file(folder: Path) -> Path:
    """A name in the folder that nothing has: a series is not measured twice, as a device has cooled by then or not.
    Raises InputError where there can be no such folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}; another --output would do") from None
    names = (f"sustained{f'-{n}' if n > 1 else ''}.csv" for n in range(1, 1_000_000))
    return next(folder / name for name in names if not (folder / name).exists())


def _keep(file: TextIOWrapper) -> None:
    """So that it is there even if the device switches itself off."""
    file.flush()
    os.fsync(file.fileno())


def _shown(temperature_c: float | None) -> str:
    return "" if temperature_c is None else f"{temperature_c:.1f}"
