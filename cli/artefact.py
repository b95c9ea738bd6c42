"""``kvferry pack`` and ``kvferry unpack``: a sweep or a search as one file that others rerun."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.options import JobsOption
from kvferry.cli.output import results_file, results_folder


def pack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a sweep or a search.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=results_file, help="Default: NAME.kvferry.zip"),
    ] = None,
) -> None:
    """Write the folder of a sweep or a search as one archive: its text, files, plugins, rows, pictures and versions."""
    from kvferry.api.artefact import pack as packed
    from kvferry.cli.progress import say
    from kvferry.specs import human

    file, manifest = packed(folder, output)
    print(f"{file}: {manifest.rows:,} rows and {len(manifest.files):,} files, {human.size(file.stat().st_size)}")
    for name, one in manifest.absent.items():
        say(f"{name} is left out ({human.size(one['bytes'])}): named by its sha256, {one['sha256'][:12]}...")
    code = " --run-plugins, which runs the code that it brings along" if manifest.plugins else ""
    say(f"it is rerun by: kvferry unpack {shlex.quote(str(file))} --check{code}")


def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Of kvferry pack, or a folder that was unpacked.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", parser=results_folder, help="A new folder. Default: FILE's name."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Run it again and say what differs.")] = False,
    run_plugins: Annotated[
        bool,
        typer.Option("--run-plugins", help="With --check: run the Python code that it brings along. Read it first."),
    ] = False,
    jobs: JobsOption = None,
) -> None:
    """Unpack an archive of others; with --check, run its study or search and hold the rows against it.

    Exit code 1 where any figure differs. Names and sizes are checked before anything is written.
    """
    from kvferry.api.artefact import check as checked
    from kvferry.api.artefact import unpack as unpacked
    from kvferry.cli.progress import counted, say
    from kvferry.specs.errors import quoted

    folder, manifest = unpacked(file, output)
    say(f"{manifest.study}: {manifest.rows:,} rows by KVFerry {manifest.code}, in {folder}")
    if not check:
        return
    with counted(manifest.study, " points") as progress:
        found = checked(folder, run_plugins=run_plugins, jobs=jobs, progress=progress)
    for note in found.notes:
        say(note)
    for line in found.differences:
        print(quoted(line))
    if found.differences:
        raise typer.Exit(1)
    print(f"{found.rows:,} rows: {'same bytes' if found.same else 'same figures'}")
