"""Draws what studies/quality.py clusters found: python studies/cluster_pictures.py QUALITY SWEPT PICTURE, files."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

# Line, marker and how far apart markers are, so that they are told apart in black and white.
STYLES: dict[str, tuple[str, str, str]] = {
    "none": ("0.6", "-", "x"),
    "global": ("0.45", "--", "s"),
    "adaptive": ("black", "-", "o"),
    "local": ("black", "--", "^"),
    "static": ("black", ":", "v"),
}
NAMES = {
    "none": "no clusters",
    "global": "global, every 128 tokens (oracle)",
    "adaptive": "adaptive (DynaKV)",
    "local": "local (ClusterKV)",
    "static": "static (PQCache)",
}
# Steps that a point is the mean of.
SMOOTHED = 7


def over_length(axes: Any, quality: dict[str, Any], figure: str, title: str) -> None:
    for name, (colour, line, marker) in STYLES.items():
        if name not in quality["ways"]:
            continue
        kernel = np.ones(SMOOTHED) / SMOOTHED
        smooth = np.convolve(quality["ways"][name][figure], kernel, "valid")
        decoded = np.convolve(quality["decoded"], kernel, "valid")
        axes.plot(decoded, smooth, color=colour, linestyle=line, marker=marker, markevery=8, label=NAMES[name])
    axes.axvline(4 * quality["settings"]["context"], color="0.5", linewidth=0.8)
    place = axes.get_xaxis_transform()
    axes.text(4 * quality["settings"]["context"], 0.02, " 4 x the prompt", transform=place, fontsize=8)
    axes.set_xlabel("decoded tokens")
    axes.set_title(title)


def over_memory(axes: Any, swept: dict[str, Any], figure: str, title: str) -> None:
    late = np.array(swept["decoded"]) >= 4 * swept["settings"]["context"]
    for way in ("adaptive", "local", "static"):
        colour, line, marker = STYLES[way]
        points = sorted(
            (float(np.mean(np.array(of["memory"])[late])) / 1e3, float(np.mean(np.array(of[figure])[late])))
            for name, of in swept["ways"].items()
            if name.startswith(way)
        )
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, marker=marker, label=NAMES[way])
    axes.set_xlabel("memory of a KV head in a layer, kB: means and tokens kept there")
    axes.set_title(title)


def main() -> None:
    quality, swept = (json.loads(Path(path).read_text()) for path in sys.argv[1:3])
    plt.rcParams["font.size"] = 9
    figure, ((hits, attended), (mass, memory)) = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    share = quality["settings"]["share"]
    over_length(hits, quality, "hits", f"Recall of true top {share:.0%}, as many read")
    over_length(attended, quality, "attended", f"Recall of true top {share:.0%}, as many attended")
    over_length(mass, quality, "mass", "Attention mass on what is attended, as many read")
    over_memory(memory, swept, "attended", "Recall by memory, as many attended, behind 4 x the prompt")
    for axes in (hits, attended, memory):
        axes.set_ylim(bottom=0)
        axes.set_ylabel("recall")
    mass.set_ylabel("share of true attention mass")
    figure.legend(*hits.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    model, context = quality["settings"]["model"], quality["settings"]["context"]
    figure.suptitle(
        f"Clusters of {model}'s keys behind a prompt of {context} tokens, {share:.0%} of all tokens read a step"
    )
    figure.savefig(sys.argv[3], dpi=110)


if __name__ == "__main__":
    main()
