"""Where named things lie: the bundled scenarios, devices, storage devices and models, and the user's own files."""

import re
from pathlib import Path

from kvferry.specs.document import regular_file
from kvferry.specs.errors import InputError, unknown_name

BUNDLED = Path(__file__).resolve().parent
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
# What is more likely a file's path than a name.
PATH = r"[/\\]|\.(ya?ml|json|csv|parquet|up|down|txt|gguf)$"
# Folders that hold something else than scenarios. Studies and searches vary a scenario.
_NOT_SCENARIOS = ("devices", "engines", "models", "runtimes", "storage", "studies", "searches", "uses")


def names(kind: str) -> list[str]:
    """The bundled names of a kind (scenario, device, storage, model, runtime), sorted."""
    if kind != "scenario":
        return sorted(path.stem for path in _folder(kind).glob("*.yaml"))
    paths = [path.relative_to(BUNDLED).with_suffix("") for path in BUNDLED.glob("**/*.yaml")]
    return sorted(path.as_posix() for path in paths if path.parts[0] not in _NOT_SCENARIOS)


def looks_like_a_path(reference: str) -> bool:
    return bool(re.search(PATH, reference))


def locate(kind: str, reference: str, folder: Path) -> Path:
    """The file that a name or path means; paths are relative to `folder`. Raises InputError, without a place."""
    if _NAME.fullmatch(reference) and reference in names(kind):
        return _folder(kind) / f"{reference}.yaml"
    problem = regular_file(folder / reference)
    if problem is None:
        return (folder / reference).resolve()
    is_name = _NAME.fullmatch(reference) and Path(reference).suffix not in (".yaml", ".gguf")
    # Only scenarios have names in folders.
    if not reference.strip() or (is_name and ("/" not in reference or kind == "scenario")):
        raise unknown_name(kind, reference, names(kind))
    stem = Path(reference).stem
    hint = f"; the bundled {kind} of that name is called {stem!r}" if stem in names(kind) else ""
    raise InputError(f"{reference!r:.200} {problem}{hint}")


def _folder(kind: str) -> Path:
    folders = {"scenario": BUNDLED, "storage": BUNDLED / "storage"}
    return folders.get(kind, BUNDLED / f"{kind}s")
