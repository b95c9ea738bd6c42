"""``kvferry schema``: the JSON schema of scenario files, for editors."""

from kvferry.cli.options import PluginOption


def schema(plugins: PluginOption = None) -> None:
    """Print the JSON schema of a scenario file, for completion and checks in an editor."""
    import json

    from kvferry.api.schema import schema as named_schema

    print(json.dumps(named_schema(), indent=2))
