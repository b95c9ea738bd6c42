"""``kvferry schema``: the JSON schema of scenario files, for editors."""


def schema() -> None:
    """Print the JSON schema of a scenario file, for completion and checks in an editor."""
    import json

    from kvferry.scenarios.loader import scenario_schema

    print(json.dumps(scenario_schema(), indent=2))
