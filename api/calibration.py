"""A profile of this machine, measured; or of another one, from what other programs measured there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.backends.world import Say
from kvferry.scenarios.loader import load_device
from kvferry.specs.device import QUIET_SHARE, DeviceSpec
from kvferry.specs.errors import InputError, MissingExtra
from kvferry.specs.units import count
from kvferry.traces.chunks import CHUNK_TOKENS

if TYPE_CHECKING:
    from kvferry.calibration.sustained import Sustained

# Of decoding without a break: a week.
MOST_MINUTES = 7 * 24 * 60


@dataclass(frozen=True)
class Calibration:
    """``profile``: the file that a scenario's ``device`` names. ``device``: what it says."""

    profile: Path
    device: DeviceSpec


def calibrate(
    model: str | None = None,
    output: str | Path = "calibration",
    *,
    files: Sequence[str | Path] = (),
    base: str = "laptop-cpu",
    name: str | None = None,
    parts: Sequence[str] | None = None,
    random_weights: bool = False,
    threads: int = 1,
    device: str = "cpu",
    dtype: str | None = None,
    attention: str = "dense",
    context: int | str = "8Ki",
    workers: int | None = None,
    quick: bool = False,
    fresh: bool = False,
    progress: Callable[[str, int, int], None] = lambda name, done, of: None,
    say: Say = lambda what: None,
) -> Calibration:
    """Measures this machine with a model, and writes a profile for ``device: PROFILE`` and ``costs: table``.

    `model`: a folder, or a name that ``kvferry models`` lists. `output`: the folder of the profile; what its journal
    has is not measured again unless `fresh`. `files`: JSON of llama-bench, fio or iperf3, instead of measuring. `base`:
    the profile for everything that is not measured; `parts`: what is, None: all. `threads`: of an op; `device`: a torch
    device; `attention`: "dense" or "block-sparse"; `context`: the longest one, in tokens; `workers`: processes that
    decompress, None: the remaining cores; `quick`: fewer points and repetitions, as a trial. `progress` is called with
    a task's name, how many are done, and of how many.

    Raises InputError for what cannot be measured so, MissingExtra where torch is not installed.
    """
    based = load_device(base)
    if files:
        from kvferry.calibration.from_files import profile_from

        named = [Path(file) for file in files]
        return _calibration(profile_from(named, Path(output), based, model=model, name=name, say=say))
    if model is None:
        raise InputError("model: names what to measure with, as Qwen/Qwen3-0.6B does; or give files")
    try:
        from kvferry.calibration.calibrate import calibrate as measure
        from kvferry.calibration.environment import usable_cores
        from kvferry.calibration.settings import PARTS, Settings
    except ImportError as error:
        raise MissingExtra(f"calibrating needs {error.name}: pip install '.[torch]'; --from needs none") from None
    if attention not in ("dense", "block-sparse"):
        raise InputError(f"attention {attention!r}: it can be dense or block-sparse")
    asked: dict[str, Any] = {
        "model": model,
        "random_weights": random_weights,
        "threads": threads,
        "device": device,
        "dtype": dtype,
        "attention": attention,
        "quick": quick,
        "context": _tokens(context),
        "workers": workers or max(1, usable_cores() - threads),
    }
    _say_who_is_at_work(say)
    wanted = PARTS if parts is None else parts
    written = measure(Settings(**asked), Path(output), based, parts=wanted, name=name, fresh=fresh, progress=progress)
    return _calibration(written)


def sustained(
    minutes: float,
    output: str | Path = "calibration",
    *,
    model: str = "byte-large",
    random_weights: bool = False,
    threads: int = 1,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    say: Say = lambda what: None,
) -> Sustained:
    """Decodes here without a break, chats of 128 tokens one after the other, and writes tokens/s and the hottest
    sensor's temperature of every second into a new file of the folder `output`. Ctrl-C ends it, and keeps what there
    is. `model` and the settings behind it as for ``calibrate``; `progress` is called with seconds done, of how many.

    Raises InputError for a model that is not there and a folder that cannot be written, MissingExtra where torch is not
    installed.
    """
    if not 0 < minutes <= MOST_MINUTES:
        raise InputError(f"sustained: {minutes:g} minutes; more than 0 and up to {MOST_MINUTES:,} will do, 10 say")
    try:
        from kvferry.calibration.measured_model import Rig
        from kvferry.calibration.settings import Settings
        from kvferry.calibration.sustained import sustained as measure
        from kvferry.model.models import check_device
    except ImportError as error:
        raise MissingExtra(f"decoding here needs {error.name}: pip install '.[torch]'") from None
    check_device(device)
    settings = Settings(model=model, random_weights=random_weights, threads=threads, device=device, dtype=dtype)
    _say_who_is_at_work(say)
    return measure(Rig(settings), Path(output), 60 * minutes, progress)


def _say_who_is_at_work(say: Say) -> None:
    from kvferry.calibration.environment import environment, usable_cores

    busy = environment()["load_average_1min"] or 0.0
    if busy > QUIET_SHARE * usable_cores():
        say(f"others are at work here (load average {busy:g}): they will be part of what is measured")


def _calibration(profile: Path) -> Calibration:
    return Calibration(profile, load_device(str(profile)))


def _tokens(context: int | str) -> int:
    try:
        tokens = context if isinstance(context, int) else count(context)
    except ValueError as error:
        raise InputError(f"context: {error}") from None
    if not CHUNK_TOKENS <= tokens <= 2**20:
        raise InputError(f"context {context}: from one token chunk on, {CHUNK_TOKENS}, to 1Mi")
    return tokens
