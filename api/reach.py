"""What a study of others may reach when it is run: files of its own folder, and no address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from kvferry.analysis.study_record import Provenance, read_provenance
from kvferry.scenarios.library import looks_like_a_path
from kvferry.scenarios.loader import dump_scenario
from kvferry.scenarios.named_files import named_files
from kvferry.specs.document import parse_document, read_document
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Of `live`: where a run writes.
_WRITTEN = ("record_selections", "record_keys", "kv_file", "kv_folder")
# What stands below these is read by people alone.
_PROSE = ("source", "sources", "plots")


def check_text(folder: Path) -> None:
    """Raises InputError where the study or search of an unpacked folder would have files from elsewhere read before its
    points are known. One that was packed extends nothing, and names files below its folder."""
    provenance = read_provenance(folder)
    file = folder / provenance.text_file
    tree = read_document(file).plain()
    if not isinstance(tree, dict) or not isinstance(tree.get("base"), dict):
        raise _refused(provenance, file, "base", "is no scenario that stands there by itself")
    for key, value in _texts(tree):
        if key.split(".")[-1] == "extends":
            raise _refused(provenance, file, key, f"{value!r:.60} is another file")
        if _leads_out(value):
            raise _refused(provenance, file, key, f"{value!r:.60} leads out of its folder")
    for setting in provenance.settings:
        key_of, _, text = setting.partition("=")
        values = parse_document(text, "settings", folder).plain() if text.strip() else None
        # Its relative paths would begin where the command is run.
        if any(_leads_out(value) or looks_like_a_path(value) for _, value in _texts(values)):
            raise _refused(provenance, folder / "provenance.json", "settings", f"{key_of[:60]} names a file")


def check_points(folder: Path, points: Sequence[Scenario]) -> None:
    """Raises InputError for points of an unpacked folder that write to a place of their choice, ask an address, or name
    files that lie elsewhere."""
    within, provenance = folder.resolve(), read_provenance(folder)
    file = folder / provenance.text_file
    for point in points:
        for key in _WRITTEN:
            if (named := getattr(point.live, key, None)) is not None:
                what = f"{named!r:.60} is a place that a run writes to"
                raise _refused(provenance, file, f"live.{key}", what)
        cloud = getattr(point.live, "cloud", None)
        if isinstance(cloud, str) and "://" in cloud:
            raise _refused(provenance, file, "live.cloud", f"{cloud!r:.60} is an address that a run asks")
        for where, path in named_files(dump_scenario(point)).items():
            if not path.resolve().is_relative_to(within):
                raise _refused(provenance, file, ".".join(where), f"{str(path)!r:.60} lies elsewhere")


def _refused(of: Provenance, file: Path, key: str, what: str) -> InputError:
    how = (
        f"a {of.kind} of others reaches its own folder alone; read it, change this, and run it as a {of.kind} of yours"
    )
    command = {"study": "sweep", "search": "search"}[of.kind]
    return InputError(f"{file}: {key[:100]}: {what}; {how}: kvferry {command}")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each text in a tree by its key, but prose."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name not in _PROSE:
                yield from _texts(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, key)
    elif isinstance(value, str):
        yield key, value


def _leads_out(text: str) -> bool:
    return (
        Path(text).is_absolute()
        or PureWindowsPath(text).is_absolute()
        or text.startswith("~")
        or ".." in re.split(r"[/\\]", text)
    )
