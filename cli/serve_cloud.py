"""``kvferry serve-cloud``: serves the cloud of a scenario to devices."""

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.options import PluginOption, ScenarioArgument, SeedOption, SetOption, one_of, overrides
from kvferry.cli.serve import HostOption, PortOption, token_of


def serve_cloud(
    scenario: ScenarioArgument,
    system: Annotated[
        str | None, typer.Option("--system", "--systems", help="Serve what this system needs of a cloud.")
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8200,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="File with the token that devices must send; or set KVFERRY_TOKEN."),
    ] = None,
) -> None:
    """Serve the cloud of a scenario to devices, over HTTP with server-sent events. Ctrl-C stops it.

    Prints the URL on standard output once it lets devices in: for them, --set live.cloud=URL.
    """
    from kvferry.api import serving
    from kvferry.api.scenario import load
    from kvferry.cli.progress import say

    token = token_of(token_file)
    loaded = load(scenario, overrides(settings, seed), system=one_of(system, "kvferry compare"))

    def tell(url: str) -> None:
        print(url, flush=True)
        say(f"serving the cloud of {loaded.name}{', to devices with the token' if token else ''}; Ctrl-C stops")

    serving.serve_cloud(loaded, host=host, port=port, token=token, tell=tell, say=say)
