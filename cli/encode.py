"""``kvferry encode``: computes a scenario's contexts with its real model and writes them as stores for a cloud."""

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.options import PluginOption, ScenarioArgument, SeedOption, SetOption, as_options, listed, overrides


def encode(
    scenario: ScenarioArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the stores.")],
    systems: Annotated[
        str | None,
        typer.Option("--systems", help="Encode with these systems' codecs. Default: the scenario's system."),
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
) -> None:
    """Encode the contexts of a scenario for `kvferry serve`, so that `live.cloud` finds them there.

    Prints the stores' paths. Existing stores are kept.
    """
    from kvferry.api.scenario import check_workload, load, under_systems
    from kvferry.cli.progress import say
    from kvferry.pipelines.loading.systems import SYSTEMS
    from kvferry.specs.errors import MissingExtra

    loaded = load(scenario, overrides(settings, seed))
    check_workload(loaded, "context-reuse", "kvferry encode", "live/quickstart")
    with as_options("systems"):
        under = under_systems(loaded, [loaded.system] if systems is None else listed(systems))
    try:
        from kvferry.backends.live.loading.cloud_parts import encode_contexts
    except ImportError as error:
        raise MissingExtra(f"encoding needs {error.name}: pip install 'kvferry[torch]'") from None
    codecs = {SYSTEMS[name].with_policies(one.policy_values).codec for name, one in under.items()}
    for codec in sorted(codecs):
        for path in encode_contexts(loaded, codec, output, say):
            print(path, flush=True)
