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
        typer.Option(
            "--systems", "--system", help="Encode with these systems' codecs. Default: the scenario's system."
        ),
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
) -> None:
    """Encode the contexts of a scenario for `kvferry serve`, so that `live.cloud` finds them there.

    Prints the stores' paths. Existing stores are kept.
    """
    from kvferry.api.encode import encode as encoded
    from kvferry.cli.progress import say
    from kvferry.specs.errors import quoted

    def show(path: Path) -> None:
        print(quoted(str(path)), flush=True)

    with as_options("systems"):
        encoded(
            scenario,
            output,
            None if systems is None else listed(systems),
            overrides(settings, seed),
            each=show,
            say=say,
        )
