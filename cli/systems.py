"""``kvferry systems``: what a scenario can be run under."""

from kvferry.cli.options import JsonOption


def systems(json: JsonOption = False) -> None:
    """List the systems: named compositions of a pipeline and its policies."""
    from kvferry.pipelines.systems import SYSTEMS

    rows = [{"name": name, "about": system.about, "codec": system.codec} for name, system in SYSTEMS.items()]
    if json:
        from kvferry.analysis.envelope import to_json

        print(to_json({"systems": rows}), end="")
        return
    from kvferry.cli.table import print_table

    print_table(("system", "codec", "about"), [(row["name"], row["codec"], row["about"]) for row in rows])
