"""Contexts of a scenario, computed with its real model and written as stores for a cloud."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kvferry.api.scenario import Settings, Source, check_workload, load, under_systems
from kvferry.backends.world import Say
from kvferry.specs.errors import MissingExtra


def encode(
    source: Source,
    output: str | Path,
    systems: Sequence[str] | None = None,
    settings: Settings = (),
    *,
    seed: int | None = None,
    each: Callable[[Path], None] = lambda path: None,
    say: Say = lambda what: None,
) -> list[Path]:
    """Encodes the contexts of a scenario into a folder for ``kvferry serve``; returns the stores' paths.

    `source`, `settings` and `seed` as in ``load``. `systems`: with whose codecs; None: the scenario's system. Stores
    that are there are kept. `each` is called with the path of each store once it is there, `say` with what is made
    ready before.

    Raises InputError as ``load`` does, for a scenario that loads no context, and for systems that there are not;
    MissingExtra where torch is not installed.
    """
    from kvferry.pipelines.loading.systems import SYSTEMS

    loaded = load(source, settings, seed=seed)
    check_workload(loaded, "context-reuse", "kvferry encode", "live/quickstart")
    under = under_systems(source, [loaded.system] if systems is None else systems, settings, seed=seed).systems
    try:
        from kvferry.backends.live.loading.cloud_parts import encode_contexts
    except ImportError as error:
        raise MissingExtra(f"encoding needs {error.name}: pip install '.[torch]'") from None
    codecs = {SYSTEMS[name].with_policies(one.policy_values).codec for name, one in under.items()}
    written = []
    for codec in sorted(codecs):
        for path in encode_contexts(loaded, codec, Path(output), say):
            written.append(path)
            each(path)
    return written
