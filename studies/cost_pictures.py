"""Draws docs/pictures/costs-*.png and prints the tables of docs/cost-models.md: python studies/cost_pictures.py"""

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.analysis.style import BLUE, GREEN, GREY, ORANGE, SERIES, VERMILION, new_figure, render
from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.block_sparse import BlockSparseKernel
from kvferry.sim.costs.grid import Grid
from kvferry.sim.costs.predictor import Predictor
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.samples import Samples, measure
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks, generate_chunks

ROOT = Path(__file__).resolve().parents[1]
Estimate = Callable[[Samples], np.ndarray]


def estimates(kernel: BlockSparseKernel, training: Samples, device: str, model_name: str) -> dict[str, Estimate]:
    """What each cost model makes of samples; the ones that learn do so from `training`."""
    processor, model = load_device(device).processors["gpu"], load_model(model_name)
    ideal = processor.model_copy(update={"efficiency": {}, "default_efficiency": 1.0})
    at_peak = Roofline(ideal, model)

    def roofline(samples: Samples) -> np.ndarray:
        works = at_peak.arithmetic
        return at_peak.price_arrays(
            [("sparse_attention", samples.active_blocks * works.block_flop, samples.active_blocks * works.block_bytes)]
        )

    slowness = float(np.median(training.seconds / roofline(training)))
    # A lookup table, each grid point measured once on the idle device.
    contexts, densities = CHUNK_TOKENS * np.array([0, 4, 8, 16, 24, 32, 39]), np.array([0.02, 0.1, 0.3, 0.6, 1.0])
    blocks = densities * causal_blocks(CHUNK_TOKENS, contexts)[:, None]
    noise = np.random.default_rng(2).normal(0, kernel.spec.noise, blocks.shape)
    grid = Grid("prefill_head", ("context", "density"), (contexts, densities), kernel.seconds(CHUNK_TOKENS, blocks))
    grid.seconds *= np.exp(noise)

    def table(samples: Samples) -> np.ndarray:
        context = CHUNK_TOKENS * (samples.token_chunk - 1)
        return grid({"context": context, "density": samples.active_blocks / causal_blocks(CHUNK_TOKENS, context)})

    predictor = Predictor.trained(training, seed=0)
    return {
        "roofline at peak rates": roofline,
        "roofline, one fitted efficiency": lambda samples: slowness * roofline(samples),
        "measured table": table,
        "perceptron": lambda samples: predictor.predict_s(samples.token_chunk, samples.active_blocks, samples.load),
    }


def compare_predictors(device: str = "jetson-orin-nx-sparkv", model_name: str = "llama-3.1-8b") -> Callable[[], Any]:
    """SparKV's Figure 8 on the modelled kernel."""
    kernel = BlockSparseKernel(load_device(device).processors["gpu"], load_model(model_name))
    model = load_model(model_name)
    print(f"\n### Errors on {device}, {model_name}: mean |predicted / measured - 1| on 1,200 held-out samples\n")
    print("| cost model | text | video | text, idle |\n|---|---|---|---|")
    held_out, errors = {}, {}
    for name, content, load in (("text", "text", 0.6), ("video", "vlm", 0.6), ("text, idle", "text", 0.0)):
        samples = measure(kernel, model, seed=1, content=content, most_load=load)
        training, held_out[name] = samples.split(0.8, np.random.default_rng(0))
        models = estimates(kernel, training, device, model_name)
        errors[name] = {
            k: float(np.abs(f(held_out[name]) / held_out[name].seconds - 1).mean()) for k, f in models.items()
        }
        if name == "text":
            shown = models
    for row in shown:
        print(f"| {row} | " + " | ".join(f"{100 * errors[name][row]:.1f} %" for name in errors) + " |")
    for row in list(shown)[:3]:
        ratios = " | ".join(f"{errors[name][row] / errors[name]['perceptron']:.1f}" for name in errors)
        print(f"| {row}: error over the perceptron's | {ratios} |")

    def draw() -> Any:
        figure = new_figure(8.4, 3.4)
        scatter, bars = figure.subplots(1, 2, width_ratios=[1.15, 1])
        sample = held_out["text"]
        for (label, estimate), colour, marker in zip(
            shown.items(), (VERMILION, ORANGE, GREEN, BLUE), "sD^o", strict=True
        ):
            scatter.plot(
                1e3 * sample.seconds, 1e3 * estimate(sample), marker, ms=2, mew=0, alpha=0.6, color=colour, label=label
            )
        ends = [1e3 * sample.seconds.min(), 1e3 * sample.seconds.max()]
        scatter.plot(ends, ends, color=GREY, lw=1)
        scatter.set(
            xscale="log", yscale="log", xlabel="measured [ms]", ylabel="predicted [ms]", title="Text, loaded up to 60 %"
        )
        scatter.legend(markerscale=3, handletextpad=0.2, loc="upper left", fontsize=7.5)
        for number, (label, colour) in enumerate(zip(shown, (VERMILION, ORANGE, GREEN, BLUE), strict=True)):
            places = np.arange(len(errors)) + 0.2 * (number - 1.5)
            heights = [100 * errors[name][label] for name in errors]
            bars.bar(places, heights, 0.19, color=colour, label=label)
            for place, height in zip(places, heights, strict=True):
                bars.text(place, height, f"{height:.0f}", ha="center", va="bottom", fontsize=7.5)
        bars.set(xticks=range(len(errors)), xticklabels=list(errors), ylabel="mean error [%]", title="Held-out samples")
        return figure

    return draw


def compare_orin() -> Callable[[], Any]:
    """The Orin profiles beside the page that they were fitted on."""
    rows = list(csv.DictReader((ROOT / "tests/data/tensorrt_edge_llm.csv").open()))
    print("\n### Orin: predicted and published, batch 1, 2,048 tokens in\n")
    print("| device | model | prefill ms | published | error | decode tokens/s | published | error |")
    print("|---|---|---|---|---|---|---|---|")
    ratios: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        device = load_device(row["device"])
        costs = Roofline(device.processors[device.main], load_model(row["model"]))
        prefill, decode = 1e3 * costs.cost(Prefill(2048, 0)).duration_s, 1 / costs.cost(DecodeStep(1, 2048)).duration_s
        real_prefill, real_decode = float(row["prefill_ms"]), float(row["decode_tokens_per_s"])
        ratios.setdefault(row["device"], []).append((prefill / real_prefill - 1, decode / real_decode - 1))
        errors = [f"{100 * error:+.1f} %" for error in ratios[row["device"]][-1]]
        cells = [row["device"], row["model"], f"{prefill:.0f}", real_prefill, errors[0], f"{decode:.1f}", real_decode]
        print("| " + " | ".join(map(str, [*cells, errors[1]])) + " |")
    names = list(dict.fromkeys(row["model"] for row in rows))

    def draw() -> Any:
        figure = new_figure(7.2, 2.6)
        for axis, column, title in zip(
            figure.subplots(1, 2, sharey=True), (0, 1), ("Prefill time", "Decode rate"), strict=True
        ):
            for number, (device, pairs) in enumerate(ratios.items()):
                places = np.arange(len(pairs)) + 0.26 * (number - 1)
                axis.bar(places, [100 * pair[column] for pair in pairs], 0.25, color=SERIES[number], label=device)
            axis.axhline(0, color=GREY, lw=0.8)
            axis.set(xticks=range(len(names)), xticklabels=names, title=title)
        figure.axes[0].set_ylabel("predicted / published - 1 [%]")
        figure.axes[1].legend(fontsize=7)
        return figure

    return draw


def show_chunks() -> Callable[[], Any]:
    """Heterogeneity of generated chunks: SparKV's Figures 3 and 4."""
    model = load_model("qwen3-4b")
    kernel = BlockSparseKernel(load_device("jetson-agx-orin-sparkv").processors["gpu"], model)
    traces = {
        title: generate_chunks(content, 24 * CHUNK_TOKENS, model.layers, model.kv_heads, seed=1)
        for title, content in (("text", "text"), ("video", "vlm"))
    }
    print("\n### Chunks of 24K tokens of Qwen3-4B, attention on jetson-agx-orin-sparkv\n")
    print("| content | bits per value: 5 %, median, 95 %, mean | active blocks | attention ms: least, most, ratio |")
    print("|---|---|---|---|")
    for title, trace in traces.items():
        low, middle, high = np.percentile(trace.entropy_bits, [5, 50, 95])
        seconds = kernel.seconds(CHUNK_TOKENS, trace.active_blocks[:, :-1])
        share = trace.active_blocks.sum() / (trace.causal_blocks.sum() * model.layers * model.kv_heads)
        print(
            f"| {title} | {low:.2f}, {middle:.2f}, {high:.2f}, {trace.entropy_bits.mean():.2f} | {share:.2f} "
            f"| {1e3 * seconds.min():.2f}, {1e3 * seconds.max():.2f}, {seconds.max() / seconds.min():.1f} |"
        )

    def draw() -> Any:
        figure = new_figure(8.4, 4.6)
        for row, (title, trace) in zip(figure.subplots(2, 3), traces.items(), strict=True):
            density = (trace.active_blocks / trace.causal_blocks[:, None, None]).reshape(trace.shape[0], -1)[:, :96]
            picture = row[0].imshow(density.T, aspect="auto", cmap="cividis", vmin=0, vmax=1, interpolation="nearest")
            figure.colorbar(picture, ax=row[0])
            row[0].set(xlabel="token chunk", ylabel="head (12 layers x 8)", title=f"{title}: active share of blocks")
            row[1].hist(trace.entropy_bits.ravel(), np.linspace(0, 4, 41), color=BLUE)
            row[1].set(xlabel="bits per value", ylabel="chunks", title="entropy")
            milliseconds = 1e3 * kernel.seconds(CHUNK_TOKENS, trace.active_blocks[:, :-1])
            row[2].hist(milliseconds.ravel(), np.geomspace(0.1, 4, 41), color=ORANGE)
            row[2].set(xscale="log", xlabel="attention [ms]", ylabel="chunks", title="compute time")
        return figure

    return draw


def pictures() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "costs-predictor", compare_predictors()
    yield "costs-orin", compare_orin()
    yield "costs-chunks", show_chunks()


def main() -> None:
    for name, draw in pictures():
        (ROOT / f"docs/pictures/{name}.png").write_bytes(render(draw)["png"])


if __name__ == "__main__":
    main()
