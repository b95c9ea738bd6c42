"""Where results go, looked at before anything is run: an hour's work must not end at a folder that is a file."""

import os
from pathlib import Path

from kvferry.specs.errors import InputError


def results_folder(text: str) -> Path:
    """The folder that --output names; it need not exist yet. Raises InputError when nothing can be written there."""
    if not text:
        raise InputError("--output '': names no folder; write . for this one")
    _check(Path(text), f"--output {text}")
    return Path(text)


def results_file(text: str) -> Path:
    """The file that --output names. Raises InputError when its folder does not exist, or cannot be written to."""
    path = Path(text)
    if not text or path.is_dir():
        raise InputError(f"--output {text!r}: is a folder; name a file")
    if not path.parent.exists():
        raise InputError(f"--output {text}: there is no folder {path.parent}")
    _check(path.parent, f"--output {text}")
    return path


def _check(folder: Path, named: str) -> None:
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise InputError(f"{named}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{named}: no permission to write in {there}")
