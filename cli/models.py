"""``kvferry models``: the bundled models by their dimensions."""

from typing import Annotated

import typer

from kvferry.cli.options import JsonOption


def models(
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="A model by name, or a file.")] = None,
    json: JsonOption = False,
) -> None:
    """List the models, or show one with the source of its dimensions."""
    from kvferry.analysis import human
    from kvferry.analysis.envelope import to_json
    from kvferry.cli.table import print_table
    from kvferry.scenarios.library import names
    from kvferry.scenarios.loader import load_model
    from kvferry.specs.errors import quoted

    found = [load_model(model) for model in ([name] if name else names("model"))]
    if json:
        print(to_json({"models": [model.model_dump(mode="json") for model in found]}), end="")
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
