"""What elastic loading moves, for real: python studies/elastic_live.py [--output FILE] [--set KEY=VALUE ...]

`specontext/live` decodes with all layers in the host's memory, by budget: once so that a step copies what the head
chose and the step before had not, once so that it copies all of it. Both must say the same tokens. Bytes are those
that were copied while it decoded, the new tokens' own way to the host left out.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.span import Span
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario


def copied_bytes(spans: Sequence[Span], layer_bytes: float, layers: int, new_tokens_bytes: float) -> float:
    """Bytes that were copied to the processor's memory. The first copies take what prefill leaves in each layer to the
    host; copies come one after the other."""
    copies = sorted((span for span in spans if span.label == "Copy"), key=lambda span: span.start_s)
    assert all(span.n_bytes == layer_bytes for span in copies[:layers])
    return sum(span.n_bytes for span in copies[layers:]) - new_tokens_bytes


def measured(settings: Sequence[str]) -> dict[str, Any]:
    scenario = load_scenario("specontext/live", ["policies.placement=host", *settings])
    run = run_scenario(scenario)
    figures = metrics_for(scenario, run)
    workload, model = scenario.decode.workload, scenario.model
    steps, of_tokens = workload.output - 1, workload.batch * model.kv_entry_bytes
    copied = copied_bytes(run.spans, workload.context * of_tokens, model.layers, steps * model.layers * of_tokens)
    return {
        "bytes_per_step": copied / steps,
        "tokens_per_s": figures["throughput_tokens_per_s"],
        "answers": run.measured["answers"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--budgets", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--output", type=Path, help="a file")
    asked = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    print("| budget | elastic | full reload | share | same tokens |\n|---|---|---|---|---|")
    for budget in asked.budgets:
        elastic, whole = (
            measured([*asked.settings, f"policies.selected_tokens={budget}", f"policies.residency={residency}"])
            for residency in ("elastic", "none")
        )
        share = elastic["bytes_per_step"] / whole["bytes_per_step"]
        same = elastic.pop("answers") == whole.pop("answers")
        rows[str(budget)] = {"elastic": elastic, "full reload": whole, "share": share, "same tokens": same}
        kib = [f"{each['bytes_per_step'] / 1024:.0f} KiB" for each in (elastic, whole)]
        print(f"| {budget} | {kib[0]} | {kib[1]} | {share:.1%} | {'yes' if same else 'no'} |", flush=True)
    if asked.output is not None:
        asked.output.write_text(json.dumps({"settings": asked.settings, "budgets": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
