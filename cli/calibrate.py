"""``kvferry calibrate``: makes a device profile from measurements of this machine or of other programs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from kvferry.cli.options import as_options
from kvferry.cli.output import results_folder

_PARTS = "compute,sparsity,decode,kernels,dispatch,codec,storage,link,contention,power"
# Options that a series of rates knows nothing of.
_NOT_SUSTAINED = ("from_files", "attention", "context", "workers", "parts", "base", "name", "quick", "fresh")
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
    sustained: Annotated[
        float | None,
        typer.Option(
            "--sustained",
            metavar="MINUTES",
            help="Decode without a break for so long instead, with --model (default: byte-large), and write tokens/s"
            " and temperature of every second: how a device that warms up slows down.",
        ),
    ] = None,
    from_files: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE...", help="JSON of llama-bench, fio or iperf3, instead of measuring."),
    ] = None,
) -> None:
    """Measure this device with a model, and write a profile that `device: DIR/profile.yaml` uses.

    When interrupted or killed, the same command resumes. With --from nothing is measured here: the profile is made from
    the output of llama-bench, fio and iperf3, which may come from another device.
    """
    from kvferry.api.calibration import calibrate as measure
    from kvferry.cli.progress import say, steps
    from kvferry.specs.errors import InputError, quoted

    folder = output or Path("calibration")
    if sustained is not None:
        if useless := [_option(key) for key in _NOT_SUSTAINED if _given(command, key)]:
            raise InputError(f"{', '.join(useless)}: --sustained measures rates alone; leave it out")
        _sustain(sustained, folder, model, random_weights=random_weights, threads=threads, device=device, dtype=dtype)
        return
    if files and not from_files:
        raise InputError(f"{files[0]}: files come after --from; to measure this device, give none")
    if from_files:
        if useless := [_option(key) for key in _ONLY_HERE if _given(command, key)]:
            raise InputError(f"{', '.join(useless)}: nothing is measured here with --from; leave it out")
        made = [*from_files, *(files or [])]
        print(quoted(str(measure(model, folder, files=made, base=base, name=name, say=say).profile)))
        return
    if model is None:
        raise InputError("--model: names what to measure with, as in --model Qwen/Qwen3-0.6B; or --from FILE...")
    with as_options("context", "attention"), _kept(folder), steps() as progress:
        written = measure(
            model,
            folder,
            base=base,
            name=name,
            parts=[part.strip() for part in parts.split(",") if part.strip()],
            random_weights=random_weights,
            threads=threads,
            device=device,
            dtype=dtype,
            attention=attention,
            context=context,
            workers=workers,
            quick=quick,
            fresh=fresh,
            progress=progress,
            say=say,
        )
    say(
        "a scenario uses it with `device: PROFILE` and `costs: table`, or `costs: predictor` for block-sparse attention"
    )
    print(quoted(str(written.profile)))


def _sustain(minutes: float, folder: Path, model: str | None, **settings: Any) -> None:
    from kvferry.api.calibration import sustained
    from kvferry.cli.progress import counted, say
    from kvferry.specs.errors import quoted

    with counted("decoding without a break", " s") as progress:
        found = sustained(minutes, folder, model=model or "byte-large", progress=progress, say=say, **settings)
    say(f"interrupted; kept {len(found.seconds):,} s: {found.in_words}" if found.interrupted else found.in_words)
    print(quoted(str(found.path)))
    if found.interrupted:
        raise typer.Exit(130)


def _option(key: str) -> str:
    return "--from" if key == "from_files" else f"--{key.replace('_', '-')}"


def _given(command: typer.Context, key: str) -> bool:
    source = command.get_parameter_source(key)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def _kept(output: Path) -> Iterator[None]:
    from kvferry.cli.progress import say

    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; what was measured is kept in {output}, and the same command goes on from there")
        raise
