"""The version of the code that computed a result."""

import hashlib
from functools import cache
from pathlib import Path

from kvferry.specs.version import VERSION

_HOUSE = Path(__file__).resolve().parents[1]
# Files that a run's figures depend on. A scenario's hash has bundled traces by name only, so their content is here.
_SOURCES = (
    *(f"{folder}/**/*.py" for folder in ("specs", "policies", "machine", "traces", "sim", "backends", "pipelines")),
    *("analysis/metrics.py", "analysis/occupancy.py", "analysis/settings.py"),
    *("traces/bundled/*", "traces/*.yaml"),
)


@cache
def code_version() -> str:
    """ "0.1.0+3f2a91bc": the version, and a digest of the code and bundled data that results come from.

    It tells apart two checkouts with the same version that compute differently; plots do not count.
    """
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in _HOUSE.glob(pattern) if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_HOUSE).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return f"{VERSION}+{digest.hexdigest()[:8]}"
