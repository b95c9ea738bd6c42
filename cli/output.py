"""Where results go, looked at before anything is run: an hour's work must not end at a folder that is a file."""

import os
from pathlib import Path

from kvferry.specs.errors import InputError

# Of a folder or file, on the file systems in use.
_MOST_NAME_BYTES = 255


def results_folder(text: str) -> Path:
    """The folder that --output names; it need not exist yet. Raises InputError when nothing can be written there."""
    if not text:
        raise InputError("--output '': names no folder; write . for this one")
    _check(Path(text), f"--output {text:.200}")
    return Path(text)


def results_file(text: str) -> Path:
    """The file that --output names. Raises InputError when its folder does not exist, or cannot be written to."""
    path = Path(text)
    if not text or os.path.isdir(path):
        raise InputError(f"--output {text!r}: is a folder; name a file")
    if not os.path.exists(path.parent):
        raise InputError(f"--output {text:.200}: there is no folder {str(path.parent):.200}")
    _check(path.parent, f"--output {text:.200}")
    _check_names(path, f"--output {text:.200}")
    return path


def _check(folder: Path, named: str) -> None:
    _check_names(folder, named)
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise InputError(f"{named}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{named}: no permission to write in {there}")


def _check_names(path: Path, named: str) -> None:
    if any(len(os.fsencode(part)) > _MOST_NAME_BYTES or "\0" in part for part in path.parts):
        raise InputError(f"{named}: a part of this path cannot be a name; it has 255 bytes at most, none of them 0")
