"""``kvferry scenarios``: lists the bundled scenarios."""

from kvferry.cli.options import JsonOption


def scenarios(json: JsonOption = False) -> None:
    """List the bundled scenarios."""
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_scenario

    rows = []
    for name in names("scenario"):
        found = load_scenario(name)
        rows.append(
            {
                "name": name,
                "system": found.system,
                "device": found.device.name,
                "model": found.model.name,
                "context": found.workload.context,
                "workload": found.workload.kind,
            }
        )
    if json:
        from kvferry.analysis.envelope import to_json

        print(to_json({"scenarios": rows}), end="")
        return
    from kvferry.cli.table import print_table

    print_table(("scenario", "system", "device", "model", "context", "workload"), [tuple(row.values()) for row in rows])
