"""``kvferry schema``: the JSON schemas of the files that KVFerry reads, for editors."""

from typing import Annotated

import typer

from kvferry.cli.options import PluginOption


def schema(
    kind: Annotated[
        str,
        typer.Option(
            "--kind", help="Of which files: scenario, study, search, device, storage, model, engine, runtime or use."
        ),
    ] = "scenario",
    plugins: PluginOption = None,
) -> None:
    """Print the JSON schema of scenario files, or those of another kind, for completion and checks in an editor."""
    import json

    from kvferry.api.schema import schema as named_schema
    from kvferry.cli.options import as_options

    with as_options("kind"):
        print(json.dumps(named_schema(kind), indent=2))
