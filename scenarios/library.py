"""Where named things lie: the bundled scenarios, devices, storage devices and models, and the user's own files."""

import re
from functools import lru_cache
from pathlib import Path

from kvferry.specs.document import regular_file
from kvferry.specs.errors import InputError, unknown_name

BUNDLED = Path(__file__).resolve().parent
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
# What is more likely a file's path than a name.
PATH = r"[/\\]|\.(ya?ml|json|csv|parquet|up|down|txt|gguf)$"
# Folders that hold something else than scenarios. Studies and searches vary a scenario.
_NOT_SCENARIOS = ("devices", "engines", "models", "runtimes", "storage", "studies", "searches", "uses")

# What people call things that have another name here.
_MEANT = {("storage", "ssd"): "nvme", ("storage", "ufs"): "ufs-4.0", ("storage", "sd"): "emmc"}


def names(kind: str) -> list[str]:
    """The bundled names of a kind (scenario, device, storage, model, runtime), sorted."""
    return list(_bundled(kind))


@lru_cache(maxsize=32)
def _bundled(kind: str) -> tuple[str, ...]:
    # A sweep asks for each name of each point, and walking the folders takes longer than reading what is named.
    if kind != "scenario":
        return tuple(sorted(path.stem for path in _folder(kind).glob("*.yaml")))
    paths = [path.relative_to(BUNDLED).with_suffix("") for path in BUNDLED.glob("**/*.yaml")]
    return tuple(sorted(path.as_posix() for path in paths if path.parts[0] not in _NOT_SCENARIOS))


def looks_like_a_path(reference: str) -> bool:
    return bool(re.search(PATH, reference))


def locate(kind: str, reference: str, folder: Path) -> Path:
    """The file that a name or path means; paths are relative to `folder`. Raises InputError, without a place."""
    if _NAME.fullmatch(reference) and reference in names(kind):
        return _folder(kind) / f"{reference}.yaml"
    problem = regular_file(folder / reference)
    if problem is None:
        return (folder / reference).resolve()
    if kind == "model" and reference.strip() and (folder / reference).is_dir():
        raise InputError(f"{reference!r:.200} has no config.json; name a Hugging Face folder, a YAML or a GGUF file")
    is_name = _NAME.fullmatch(reference) and Path(reference).suffix not in (".yaml", ".gguf")
    if not reference.strip() or is_name:
        if kind == "model" and "/" in reference:
            raise InputError(f"{reference!r:.200} is not there; a Hugging Face folder or a bundled name would do")
        if kind == "scenario" and (folder / reference / "points.parquet").is_file():
            raise InputError(f"{reference!r:.200} is a sweep's folder; --point KEY runs one of its points")
        likely = _MEANT.get((kind, reference))
        if likely is not None:
            raise InputError(f"unknown {kind} {reference!r}; did you mean {likely!r}? known: {', '.join(names(kind))}")
        # Only scenarios have names in folders.
        if "/" not in reference or kind == "scenario":
            raise unknown_name(kind, reference, names(kind))
    # A file's name, or words as data sheets write them: RTX 4060.
    meant = (Path(reference).stem, "-".join(reference.lower().split()))
    bundled = next((name for name in meant if name in names(kind)), None)
    hint = "" if bundled is None else f"; the bundled {kind} of that name is called {bundled!r}"
    if kind == "model" and not hint:
        hint = "; a GGUF file, a Hugging Face folder, a YAML file or a bundled name would do"
    raise InputError(f"{reference!r:.200} {problem}{hint}")


def _folder(kind: str) -> Path:
    folders = {"scenario": BUNDLED, "storage": BUNDLED / "storage"}
    return folders.get(kind, BUNDLED / f"{kind}s")
