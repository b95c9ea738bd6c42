"""The version of the code that computed a result."""

import hashlib
from functools import cache
from pathlib import Path

from kvferry.pipelines.plugins import used
from kvferry.specs.version import VERSION

_HOUSE = Path(__file__).resolve().parents[1]
# The rooms that a run is carried out in, by the floors of the house; a test looks that none is missing.
_ROOMS = (
    *("specs", "system", "policies", "layouts", "machine", "codecs", "traces", "scenarios", "sim", "disk", "model"),
    *("cloud", "backends", "pipelines", "sessions"),
)
# Files that a run's figures depend on. A scenario's hash has bundled traces by name only, so their content is here.
_SOURCES = (
    *(f"{room}/**/*.py" for room in _ROOMS),
    *(
        f"analysis/{name}.py"
        for name in ("metrics", "assisted", "decoding", "occupancy", "sessions", "settings", "arrow_columns")
    ),
    *("traces/bundled/*", "traces/*.yaml", "codecs/*.csv", "model/bundled/**/*"),
)


def code_version() -> str:
    """ "0.1.0+3f2a91bc": the version, and a digest of the code and bundled data that results come from; of each plugin
    in use, its name and the beginning of its file's SHA-256 behind that, as in "0.1.0+3f2a91bc+my_policy-5f1c09aa37e2",
    whatever the order in which they came.

    It tells apart two checkouts with the same version that compute differently; plots do not count.
    """
    return _of_the_house() + plugins_version()


def plugins_version() -> str:
    """What plugins in use add to a version, as in "+my_policy-5f1c09aa37e2"; "" without any."""
    return "".join(f"+{name}" for name in sorted(f"{plugin.name}-{plugin.sha256[:12]}" for plugin in used()))


@cache
def _of_the_house() -> str:
    digest = hashlib.sha256()
    for path in _sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_HOUSE).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return f"{VERSION}+{digest.hexdigest()[:8]}"


def _sources() -> list[Path]:
    return sorted({path for pattern in _SOURCES for path in _HOUSE.glob(pattern) if path.is_file()})
