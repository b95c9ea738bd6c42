"""``kvferry systems``: lists the systems, and what can stand in for their policies."""

from kvferry.cli.options import JsonOption, PluginOption


def systems(plugins: PluginOption = None, json: JsonOption = False) -> None:
    """List the systems: named compositions of a pipeline and its policies. Below them, by kind, what a scenario can
    name in the place of a policy or cost model."""
    from kvferry.pipelines.plugin_kinds import names_by_kind, table_of
    from kvferry.pipelines.plugins import plugin_of, use_installed
    from kvferry.pipelines.workloads import WORKLOADS

    use_installed()
    rows: list[dict[str, str | None]] = []
    for workload, kind in WORKLOADS.items():
        for name, system in kind.systems.items():
            row = {"name": name, "workload": workload, "paper": system.paper, "about": system.about}
            own = plugin_of(kind.systems, name)
            rows.append(row | {"codec": system.codec} | ({"plugin": own.name} if own else {}))
    policies = names_by_kind()
    if json:
        from kvferry.analysis.envelope import to_json

        print(to_json({"systems": rows, "policies": policies}), end="")
        return
    from kvferry.cli.table import print_table

    def marked(name: str, plugin: str | None) -> str:
        return name if plugin is None else f"{name} ({plugin})"

    shown = [
        (marked(str(row["name"]), row.get("plugin")), row["workload"], row["paper"], row["codec"], row["about"])
        for row in rows
    ]
    print_table(("system", "workload", "paper", "codec", "about"), shown)
    listed = []
    for of, known in policies.items():
        table = table_of(of, None)
        sources = ((name, plugin_of(table, name)) for name in known)
        listed.append((of, ", ".join(marked(name, own.name if own else None) for name, own in sources)))
    print_table(("policy", "names"), listed)
