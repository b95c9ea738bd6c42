"""What the folder of a sweep or a search says of itself: its text, the files and plugins behind it, and where its
numbers come from.

study.yaml       the study by itself, with all that it extends; search.yaml: a search
files/           files that it names by path, by digest, where they are small
plugins/         the text of plugins in use
provenance.json  versions, digests, sources of devices, and what pictures need beside the rows
order.parquet    the keys of its points, in their order
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from kvferry.analysis.code_version import code_version
from kvferry.analysis.envelope import provenance_of, to_json, versions
from kvferry.analysis.folder import parquet_bytes, write_plugins
from kvferry.analysis.study import Study, load_study
from kvferry.analysis.study_plots import chance_of, devices_of
from kvferry.analysis.study_spec import PlotSpec, StudySpec
from kvferry.analysis.study_text import files_of, with_files
from kvferry.analysis.table_file import table_of
from kvferry.pipelines.plugins import used
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.faults import complaints_of, input_error
from kvferry.scenarios.loader import Check, scenario_hash
from kvferry.scenarios.named_files import content_digest, counted, portable_name
from kvferry.specs.document import read_document, read_text
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.system.whole_file import write_file
from kvferry.traces.resolve import trace_file

STUDY, SEARCH, PROVENANCE, ORDER = "study.yaml", "search.yaml", "provenance.json", "order.parquet"
# What a search found.
FRONT = "search.json"
# What else a folder may be of, by a file that it has, and what makes it again.
_OTHERS = {
    "advice.json": "is of advice, which a clock cuts: kvferry advise asks again, kvferry run {}/scenario.yaml tries it",
    FRONT: "is of a search that says too little of itself: kvferry search FILE adds the rest, and runs nothing again",
    "comparison.json": "is of a comparison: as a sweep with axes: {{system: [...]}} it can be packed",
    "metrics.json": "is of a run: kvferry run {}/scenario.yaml makes it again",
    "points.parquet": "is of a sweep that says too little of itself: kvferry sweep STUDY adds the rest, and runs "
    "nothing again",
}
Kind = Literal["study", "search"]
_TEXTS: Mapping[Kind, str] = {"study": STUDY, "search": SEARCH}
# Files up to this size are kept, as long as all together have no more than that.
MOST_FILE_BYTES, MOST_FILES_BYTES = 4_000_000, 40_000_000
_MOST_PROVENANCE_BYTES = 5_000_000


@dataclass(frozen=True)
class Recorded:
    """What is written of a study or a search: its points, its text, the keys that vary and overrides of policies."""

    kind: Kind
    name: str
    points: Sequence[Scenario]
    axes: Sequence[str]
    settings: Sequence[str]
    text: Mapping[str, Any]


@dataclass(frozen=True)
class NamedFile:
    """A file or folder that a study names: the digest and size of what is in it, and whether the folder holds it."""

    sha256: str
    bytes: int
    kept: bool


@dataclass(frozen=True)
class Provenance:
    """``provenance.json``. ``study``: its name, or the search's; ``settings``: what holds for all systems; ``axes``,
    ``about``, ``chance``: of pictures."""

    study: str
    code: str
    versions: Mapping[str, str]
    computer: Mapping[str, str]
    settings: Sequence[str]
    axes: Sequence[str]
    about: str
    chance: str
    headlines: Sequence[str]
    backends: Sequence[str]
    plugins: Mapping[str, str]
    files: Mapping[str, NamedFile]
    devices: Mapping[str, Any]
    # SHA-256 of traces that are named, not given by a path.
    traces: Mapping[str, str] = field(default_factory=dict)
    # Whether points have ends of intervals; None: where their runtime is assumed.
    intervals: bool | None = None
    kind: Kind = "study"

    @property
    def text_file(self) -> str:
        """The file that says what was run."""
        return _TEXTS[self.kind]


def write_record(folder: Path, of: Recorded, keys: Sequence[str], intervals: bool | None = None) -> list[str]:
    """Writes all of it; `keys` are those of the points, `intervals`: which points were asked for theirs. Returns lines
    to say, of another study that lay there. Raises KvferryError."""
    named: dict[str, str] = {}
    files: dict[str, NamedFile] = {}
    left = MOST_FILES_BYTES
    for path in files_of(of.text):
        place = f"files/{portable_name(path)}"
        n_bytes = sum(file.stat().st_size for file in counted(path))
        kept = n_bytes <= min(MOST_FILE_BYTES, left)
        files[place] = NamedFile(content_digest(path), n_bytes, kept)
        if kept:
            left -= n_bytes
            named[str(path)] = place
            for file in counted(path):
                write_file(
                    folder / place / file.relative_to(path) if path.is_dir() else folder / place, file.read_bytes()
                )
    text = yaml_bytes(with_files(of.text, named))
    said = _kept_before(folder / _TEXTS[of.kind], text)
    write_file(folder / _TEXTS[of.kind], text)
    write_plugins(folder)
    write_file(folder / PROVENANCE, to_json(asdict(_provenance(of, files, intervals))).encode())
    import pyarrow as pa

    write_file(folder / ORDER, parquet_bytes({"key": pa.array(keys, pa.string())}))
    return said


def _kept_before(path: Path, text: bytes) -> list[str]:
    """Keeps the text of another study or search under a name of its own."""
    try:
        before = path.read_bytes()
    except OSError:
        return []
    if before == text:
        return []
    kept = path.with_name(f"{path.stem}-{hashlib.sha256(before).hexdigest()[:8]}.yaml")
    write_file(kept, before)
    return [f"{path.parent} held another {path.stem}, which is kept there as {kept.name}"]


def _provenance(of: Recorded, files: Mapping[str, NamedFile], intervals: bool | None) -> Provenance:
    by_name = {point.device.name: point for point in of.points}
    return Provenance(
        kind=of.kind,
        study=of.name,
        code=code_version(),
        versions=versions_behind(of.kind),
        computer={"system": platform.system(), "processor": platform.machine()},
        settings=of.settings,
        axes=of.axes,
        about=devices_of(of.points),
        chance=chance_of(of.points),
        headlines=sorted({WORKLOADS[point.workload.kind].headline for point in of.points}),
        traces=_traces(of.points),
        intervals=intervals,
        backends=sorted({point.backend for point in of.points}),
        plugins={plugin.name: plugin.sha256 for plugin in used()},
        files=files,
        devices={name: provenance_of(point.device, point.model)["device"] for name, point in sorted(by_name.items())},
    )


def versions_behind(kind: Kind) -> dict[str, str]:
    """Returns the versions of what results depend on: which points a search tries, on its sampler."""
    return versions() | ({"optuna": version("optuna")} if kind == "search" else {})


def _traces(points: Sequence[Scenario]) -> dict[str, str]:
    links = [link for point in points for link in (point.link, *(one.link for one in point.machines.values())) if link]
    named = {way.trace for link in links for way in (link, link.up) if way is not None and way.trace is not None}
    found = {name: trace_file(name) for name in sorted(named)}
    return {name: content_digest(path) for name, path in found.items() if path is not None and path.is_file()}


def yaml_bytes(text: Any) -> bytes:
    import yaml

    dumped: str = yaml.safe_dump(text, sort_keys=False, allow_unicode=True, width=120)
    return dumped.encode()


def read_provenance(folder: Path) -> Provenance:
    """Raises InputError where there is none, or it is damaged."""
    path = folder / PROVENANCE
    if not path.is_file():
        raise InputError(f"{folder}: {_other(folder)}")
    try:
        found = json.loads(read_text(path, _MOST_PROVENANCE_BYTES))
        provenance = Provenance(**found | {"files": {name: NamedFile(**one) for name, one in found["files"].items()}})
        _check(provenance)
        return provenance
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: is damaged: {str(error)[:200]}") from None


def _other(folder: Path) -> str:
    """Returns what a folder is that holds no provenance."""
    if not folder.is_dir():
        return "there is no such folder; give that of a sweep or a search"
    found = next((what for name, what in _OTHERS.items() if (folder / name).is_file()), None)
    return f"holds no {PROVENANCE}; give the folder of a sweep or a search" if found is None else found.format(folder)


def _check(found: Provenance) -> None:
    """Raises ValueError for a value of another kind than a sweep or a search writes."""
    if found.kind not in get_args(Kind):
        raise ValueError(f"kind is {found.kind!r:.40}")
    for key in ("study", "code", "about", "chance"):
        check_texts("it", {key: getattr(found, key)})
    for key in ("settings", "axes", "headlines", "backends"):
        if not isinstance(getattr(found, key), list):
            raise ValueError(f"{key} is {getattr(found, key)!r:.40} and no list")
        check_texts(key, dict(enumerate(getattr(found, key))))
    for key in ("versions", "computer", "plugins", "traces"):
        check_texts(key, getattr(found, key))
    for setting in found.settings:
        if setting.partition("=")[0].strip().split(".")[0] != "policies":
            raise ValueError(f"settings has {setting!r:.60}, which is not of policies")
    for name, file in found.files.items():
        check_texts(f"files.{name:.60}", {"sha256": file.sha256})
        if type(file.bytes) is not int or not 0 <= file.bytes < 2**63 or not isinstance(file.kept, bool):
            raise ValueError(f"files.{name:.60} has {file.bytes!r:.40} bytes, kept: {file.kept!r:.40}")
    if not isinstance(found.devices, dict) or not all(isinstance(one, dict) for one in found.devices.values()):
        raise ValueError(f"devices is {found.devices!r:.60} and no mapping of mappings")
    if not isinstance(found.intervals, bool | None):
        raise ValueError(f"intervals is {found.intervals!r:.40}")


def check_texts(key: str, found: Any) -> None:
    """Raises ValueError for what is no mapping to texts."""
    if not isinstance(found, dict):
        raise ValueError(f"{key} is {found!r:.40} and no mapping")
    for name, one in found.items():
        if not isinstance(one, str):
            raise ValueError(f"{key}.{name!s:.60} is {one!r:.40} and no text")


def plots_in(path: Path) -> tuple[PlotSpec, ...]:
    """Returns the plots that a study's file asks for; its points are not made. Raises InputError."""
    tree = read_document(path)
    try:
        return StudySpec.model_validate(tree.plain()).plots
    except ValidationError as error:
        raise input_error(complaints_of(error, StudySpec), tree) from None


def keys_in_order(folder: Path) -> list[str]:
    """Returns the keys of the points. Raises InputError."""
    if not (folder / PROVENANCE).is_file():
        raise InputError(f"{folder}: {_other(folder)}")
    if not (folder / ORDER).is_file():
        raise InputError(f"{folder / ORDER}: is gone; the sweep or search that made the folder writes it again")
    try:
        keys: list[str] = table_of(folder / ORDER, needed=("key",))["key"].to_pylist()
    except (ValueError, OSError) as error:
        raise InputError(f"{folder / ORDER}: cannot be read: {str(error)[:300]}") from None
    return keys


def recorded_study(folder: Path, check: Check | None = None) -> Study:
    """Returns the study of a sweep's folder, its points made again. Raises InputError: for plugins that it needs,
    too."""
    provenance = read_provenance(folder)
    check_plugins(folder, provenance)
    return load_study(str(folder / STUDY), list(provenance.settings), check)


def check_plugins(folder: Path, provenance: Provenance) -> None:
    """Raises InputError where plugins that a folder needs are not in use."""
    here = {plugin.name: plugin.sha256 for plugin in used()}
    for name, sha256 in provenance.plugins.items():
        if here.get(name) != sha256:
            other = "" if name not in here else f", of other text than the {name} in use"
            file = folder / "plugins" / sha256[:12] / f"{name}.py"
            raise InputError(f"{folder}: was made with the plugin {name}{other}; read {file}, then --plugin {file}")


def recorded_point(folder: Path, key: str, check: Check | None = None) -> tuple[str, Scenario]:
    """Returns the point of a sweep's folder whose key begins so, with its whole key. Raises InputError."""
    if read_provenance(folder).kind == "search":
        what = f"is of a search: {FRONT} says by which settings a point differs from its base, for --set"
        raise InputError(f"{folder}: {what}")
    known = keys_in_order(folder)
    found = sorted({one for one in known if one.startswith(key)})
    if len(found) != 1 or len(key) < 4:
        what = f"{len(found):,} keys of {folder} begin so" if len(key) >= 4 else "is too short"
        raise InputError(f"--point {key!r:.80}: {what}; a key of points.parquet, or its first letters, would do")
    for point in recorded_study(folder, check).points:
        if scenario_hash(point) == found[0]:
            return found[0], point
    raise KvferryError(
        f"{folder / STUDY}: makes no point with the key {found[0][:12]}: this KVFerry reads it otherwise"
    )
