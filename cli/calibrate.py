"""``kvferry calibrate``: makes a device profile from measurements of this machine or of other programs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvferry.cli.output import results_folder

if TYPE_CHECKING:
    from kvferry.specs.device import DeviceSpec

# Load average per core above which the command warns.
_QUIET_SHARE = 0.3
_PARTS = "compute,sparsity,decode,dispatch,codec,storage,link,contention,power"
# Options that only a measurement uses.
_ONLY_HERE = (
    "random_weights",
    "threads",
    "device",
    "dtype",
    "attention",
    "context",
    "workers",
    "parts",
    "quick",
    "fresh",
)


def calibrate(
    command: typer.Context,
    files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files after --from.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", parser=results_folder, help="Folder of the profile."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model: a folder, or a name that kvferry models lists.")
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Treat --model as a description and draw random weights.")
    ] = False,
    threads: Annotated[int, typer.Option("--threads", min=1, max=1024, help="CPU threads per op.")] = 1,
    device: Annotated[str, typer.Option("--device", help="A torch device: cpu, cuda, cuda:1.")] = "cpu",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32, bfloat16 or float16. Default: as stored.")
    ] = None,
    attention: Annotated[str, typer.Option("--attention", help="dense or block-sparse.")] = "dense",
    context: Annotated[str, typer.Option("--context", help="The longest context to measure.")] = "8Ki",
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=1024, help="Decompressor processes. Default: the remaining cores."),
    ] = None,
    parts: Annotated[
        str, typer.Option("--parts", help="What to measure, comma-separated; the rest comes from --base.")
    ] = _PARTS,
    base: Annotated[
        str, typer.Option("--base", metavar="DEVICE", help="Device profile for everything that is not measured.")
    ] = "laptop-cpu",
    name: Annotated[str | None, typer.Option("--name", help="Name of the device. Default: the folder's name.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points and repetitions, as a trial.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Ignore the folder's journal and measure everything again.")
    ] = False,
    from_files: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE...", help="JSON of llama-bench, fio or iperf3, instead of measuring."),
    ] = None,
) -> None:
    """Measure this device with a model, and write a profile that `device: DIR/profile.yaml` uses.

    When interrupted or killed, the same command resumes. With --from nothing is measured here: the profile is made from
    the output of llama-bench, fio and iperf3, which may come from another device.
    """
    from kvferry.scenarios.loader import load_device
    from kvferry.specs.errors import InputError

    if files and not from_files:
        raise InputError(f"{files[0]}: files come after --from; to measure this device, give none")
    based = load_device(base)
    if from_files:
        useless = [key for key in _ONLY_HERE if _given(command, key)]
        if useless:
            options = ", ".join(f"--{key.replace('_', '-')}" for key in useless)
            raise InputError(f"{options}: nothing is measured here with --from; leave it out")
        _from_files([*from_files, *(files or [])], output, model, based, name)
        return
    if model is None:
        raise InputError("--model: names what to measure with, as in --model Qwen/Qwen3-0.6B; or --from FILE...")
    asked = {
        "model": model,
        "random_weights": random_weights,
        "threads": threads,
        "device": device,
        "dtype": dtype,
        "attention": attention,
        "quick": quick,
    }
    _measure(asked, context, workers, parts, output or Path("calibration"), based, name, fresh)


def _given(command: typer.Context, key: str) -> bool:
    source = command.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


def _from_files(
    files: list[Path], output: Path | None, model: str | None, base: "DeviceSpec", name: str | None
) -> None:
    from kvferry.calibration.from_files import profile_from
    from kvferry.cli.progress import say

    print(profile_from(files, output or Path("calibration"), base, model=model, name=name, say=say))


@contextmanager
def _kept(output: Path) -> Iterator[None]:
    from kvferry.cli.progress import say

    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is kept in {output}, and the same command goes on from there")
        raise


def _measure(
    asked: dict[str, Any],
    context: str,
    workers: int | None,
    parts: str,
    output: Path,
    base: "DeviceSpec",
    name: str | None,
    fresh: bool,
) -> None:
    from kvferry.cli.progress import say, steps
    from kvferry.specs.errors import InputError, MissingExtra
    from kvferry.specs.units import count
    from kvferry.traces.chunks import CHUNK_TOKENS

    try:
        from kvferry.calibration.calibrate import calibrate as measure
        from kvferry.calibration.environment import environment, usable_cores
        from kvferry.calibration.settings import Settings
    except ImportError as error:
        raise MissingExtra(
            f"calibrating needs {error.name}: pip install '.[torch]' in KVFerry's folder; --from needs none"
        ) from None
    try:
        asked["context"] = count(context)
    except ValueError as error:
        raise InputError(f"--context: {error}") from None
    if not CHUNK_TOKENS <= asked["context"] <= 2**20:
        raise InputError(f"--context {context}: from one token chunk on, {CHUNK_TOKENS}, to 1Mi")
    if asked["attention"] not in ("dense", "block-sparse"):
        raise InputError(f"--attention {asked['attention']!r}: it can be dense or block-sparse")
    busy = environment()["load_average_1min"] or 0.0
    if busy > _QUIET_SHARE * usable_cores():
        say(f"others are at work here (load average {busy:g}): they will be part of what is measured")
    asked["workers"] = workers or max(1, usable_cores() - asked["threads"])
    with _kept(output), steps() as progress:
        written = measure(
            Settings(**asked),
            output,
            base,
            parts=[part.strip() for part in parts.split(",") if part.strip()],
            name=name,
            fresh=fresh,
            progress=progress,
        )
    say(
        "a scenario uses it with `device: PROFILE` and `costs: table`, or `costs: predictor` for block-sparse attention"
    )
    print(written)
