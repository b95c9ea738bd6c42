"""Where results go, looked at before anything is run: an hour's work must not end at a folder that is a file."""

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kvferry.specs.errors import InputError

# Of a folder or file, on the file systems in use.
_MOST_NAME_BYTES = 255
# Letters of one changed value in a folder's name, and of the whole name.
_MOST_CHANGE, MOST_STEM = 40, 120
# matplotlib's method that writes them.
_HELP_TEXTS = "_update_set_signature_and_docstring"


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
        raise InputError(f"--output {text:.200}: there is no folder {path.parent!s:.200}")
    _check(path.parent, f"--output {text:.200}")
    _check_names(path, f"--output {text:.200}")
    return path


def _check(folder: Path, named: str) -> None:
    _check_names(folder, named)
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not there.is_dir():
        raise InputError(f"{named}: {there} is a file, not a folder")
    try:
        # Asking for permissions is not enough: file systems may be read-only, full, or no place for files.
        with tempfile.TemporaryFile(dir=there):
            pass
    except PermissionError:
        raise InputError(f"{named}: no permission to write in {there}") from None
    except OSError as error:
        raise InputError(f"{named}: cannot write in {there}: {error.strerror}") from None


def _check_names(path: Path, named: str) -> None:
    if any(len(os.fsencode(part)) > _MOST_NAME_BYTES or "\0" in part for part in path.parts):
        raise InputError(f"{named}: a part of this path cannot be a name; it has 255 bytes at most, none of them 0")


def own_folder(name: str, settings: Sequence[str], described: Mapping[str, str]) -> Path:
    """A folder below runs/ for results that were given none: its name has what was changed with ``--set``. Where other
    results lie under that name, it gets a number. `described`: the scenarios as written, by the folder inside in which
    each lies; where the same ones lie, results are the same and replace them.

    Raises InputError when nothing can be written there.
    """
    from kvferry.analysis.folder import folder_name

    changes = (setting.partition("=") for setting in settings)
    parts = [name, *(f"{key.rpartition('.')[2]}-{value}"[:_MOST_CHANGE] for key, _, value in changes)]
    stem = folder_name("-".join(parts))[:MOST_STEM].rstrip("-.")
    return numbered_folder(stem, lambda folder: _holds_others(folder, described))


def numbered_folder(stem: str, holds_others: Callable[[Path], bool]) -> Path:
    """The first folder below runs/ of this name, with a number from the second one on, that holds no other results.
    Raises InputError when nothing can be written there."""
    number = 1
    while holds_others(Path("runs") / (stem if number == 1 else f"{stem}-{number}")):
        number += 1
    return results_folder(str(Path("runs") / (stem if number == 1 else f"{stem}-{number}")))


def _holds_others(folder: Path, described: Mapping[str, str]) -> bool:
    found = {str(path.parent.relative_to(folder)): path for path in folder.glob("**/scenario.yaml")}
    try:
        same = {inside: path.read_text(encoding="utf-8") for inside, path in found.items()} == described
    except (OSError, ValueError):
        same = False
    return os.path.lexists(folder) and not (same and described)


def import_matplotlib() -> None:
    """Import it without the help texts that it writes about each of its classes, half the time of its import. Their
    place is an interactive session, which does not come by here."""
    from matplotlib.artist import Artist

    written = Artist.__dict__.get(_HELP_TEXTS)
    if written is None or "matplotlib.figure" in sys.modules:
        return
    setattr(Artist, _HELP_TEXTS, classmethod(lambda cls: None))
    try:
        importlib.import_module("matplotlib.figure")
    finally:
        setattr(Artist, _HELP_TEXTS, written)
