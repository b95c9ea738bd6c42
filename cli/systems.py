"""``kvferry systems``: lists the systems."""

from kvferry.cli.options import JsonOption


def systems(json: JsonOption = False) -> None:
    """List the systems: named compositions of a pipeline and its policies."""
    from kvferry.pipelines.workloads import WORKLOADS

    rows: list[dict[str, str | None]] = [
        {"name": name, "workload": workload, "paper": system.paper, "about": system.about, "codec": system.codec}
        for workload, kind in WORKLOADS.items()
        for name, system in kind.systems.items()
    ]
    if json:
        from kvferry.analysis.envelope import to_json

        print(to_json({"systems": rows}), end="")
        return
    from kvferry.cli.table import print_table

    shown = [(row["name"], row["workload"], row["paper"], row["codec"], row["about"]) for row in rows]
    print_table(("system", "workload", "paper", "codec", "about"), shown)
