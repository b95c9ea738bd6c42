"""``kvferry scenarios``, ``systems``, ``models``, ``runtimes``: what is there by name."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from kvferry.cli.options import JsonOption, PluginOption


def printed(kind: str, rows: Sequence[Any], json: bool) -> bool:
    """Prints the rows as one JSON object where that is asked for; returns whether it was."""
    from kvferry.analysis.envelope import to_json

    if json:
        listed = [row if isinstance(row, dict) else row.model_dump(mode="json") for row in rows]
        print(to_json({kind: listed}), end="")
    return json


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
    if printed("scenarios", rows, json):
        return
    from kvferry.cli.table import print_table

    known = set(names("model"))
    for row in rows:
        # --set model= knows it by no name.
        if row["model"] not in known:
            row["model"] = f"{row['model']} (its own)"
    print_table(("scenario", "system", "device", "model", "context", "workload"), [tuple(row.values()) for row in rows])


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


def models(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="A model by name, or a file.")] = None,
    json: JsonOption = False,
) -> None:
    """List the models, or show one with the source of its dimensions."""
    from kvferry.cli.table import print_table
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_model
    from kvferry.specs import human
    from kvferry.specs.errors import quoted

    found = [load_model(model) for model in ([name] if name else names("model"))]
    if printed("models", found, json):
        return
    rows = []
    for model in found:
        heads = f"{model.query_heads}/{model.kv_heads} x {model.head_dim}"
        weights, per_token = human.size(model.weight_bytes), human.size(model.kv_bytes_per_token)
        size = f"{model.parameters / 1e9:.3g} G" if model.parameters > 1e8 else f"{model.parameters / 1e6:.3g} M"
        rows.append((model.name, size, model.layers, heads, weights, per_token))
    print_table(("model", "parameters", "layers", "query/KV heads", "weights", "KV per token"), rows)
    if name:
        print(quoted(f"source: {found[0].source}"))


def runtimes(
    name: Annotated[str | None, typer.Argument(metavar="[RUNTIME]", help="A runtime by name, or a file.")] = None,
    json: JsonOption = False,
) -> None:
    """List the runtimes, or show one with the source of each number.

    A runtime is what a program takes beside its kernels to decode from KV that lies on storage or on the host. A
    scenario names one (runtime: NAME); else it is the one that was fitted on the device, or, assumed and scaled by the
    hosts' clocks, the prototype of the system's paper.
    """
    from kvferry.cli.table import print_table
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_runtime
    from kvferry.specs import human

    found = [load_runtime(runtime) for runtime in ([name] if name else names("runtime"))]
    if printed("runtimes", found, json):
        return
    rows = []
    for one in found:
        taken = (one.layer_s, one.block_s, one.slot_s, one.unexplained_score_s)
        times = [human.seconds(value) if value else "0" for value in taken]
        if one.floor_s:
            times[0] = f"at least {human.seconds(one.floor_s)}"
        clock = None if one.host_clock_hz is None else f"{one.host_clock_hz / 1e9:.3g} GHz"
        slowdowns = [f"{many:.3g}x" for many in (one.kernel_slowdown, one.storage_slowdown)]
        rows.append((one.name, *times, *slowdowns, clock, ", ".join(one.devices) or None))
    columns = (
        "runtime",
        "per layer",
        "per KV block",
        "per slot",
        "per score",
        "kernels",
        "beside reads",
        "clock",
        "fitted on",
    )
    print_table(columns, rows)
    if name:
        print_table(("figure", "source"), [*found[0].sources.items()])
