"""How far the queue model is off the measured curves, and the picture of docs/storage.md.

python studies/storage_models.py
"""

from pathlib import Path
from typing import Any

import numpy as np

from kvferry.analysis.style import BLACK, GREY, INK, LINES, MARKERS, new_figure, render
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_storage
from kvferry.sim.flash_curve import random_rate
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.storage import StorageSpec

ROOT = Path(__file__).resolve().parents[1]
DEPTHS = (1, 8, 32)
BLOCKS_BYTES = [512 << doubling for doubling in range(12)]


def errors() -> None:
    """The queue model at every point of a measured curve."""
    print("queue model over measured bandwidth, %")
    for name in names("storage"):
        storage = load_storage(name)
        if storage.queue is None:
            continue
        for label, rows in (("read", storage.read), ("write", storage.write)):
            for row in rows:
                found = []
                for block, measured in zip(row.block_bytes, row.bytes_per_s, strict=True):
                    half_duplex = storage.duplex == "half"
                    rate = random_rate(storage.queue, int(block), row.depth, half_duplex, label == "write")
                    found.append(f"{block / 1024:g} KiB {100 * (rate / measured - 1):+.1f}")
                print(f"{name:8} {label:5} depth {row.depth:3}: {', '.join(found)}")


def picture() -> None:
    """Bandwidth over block size: lines are the curve, marks the queue model."""

    def draw() -> Any:
        figure = new_figure(8.2, 5.6)
        axes = figure.subplots(2, 2, sharex=True).ravel()
        for axis, name in zip(axes, ("nvme", "emmc", "ufs-4.0", "ufs-3.1"), strict=True):
            draw_profile(axis, name, load_storage(name))
        for axis in axes[2:]:
            axis.set_xlabel("block size")
        for axis in axes[::2]:
            axis.set_ylabel("MB/s")
        axes[0].legend(loc="lower right")
        return figure

    path = ROOT / "docs/pictures/storage-curves.png"
    path.write_bytes(render(draw)["png"])
    print(f"\n{path.relative_to(ROOT)}")


def draw_profile(axis: Any, name: str, storage: StorageSpec) -> None:
    curves = StorageCurves(storage)
    assert storage.queue is not None
    half_duplex = storage.duplex == "half"
    for depth, line, mark, colour in zip(DEPTHS, LINES, MARKERS, (GREY, INK, BLACK), strict=False):
        by_curve = [depth_rate(curves, block, depth) for block in BLOCKS_BYTES]
        by_queue = [random_rate(storage.queue, block, depth, half_duplex) / 1e6 for block in BLOCKS_BYTES]
        axis.loglog(BLOCKS_BYTES, by_curve, linestyle=line, color=colour, label=f"curve, depth {depth}")
        axis.loglog(
            BLOCKS_BYTES,
            by_queue,
            linestyle="none",
            marker=mark,
            markersize=5,
            color=colour,
            markerfacecolor="white",
            label=f"queue, depth {depth}",
        )
    axis.set_title(name)
    axis.set_xticks([512, 4096, 32768, 262144, 1 << 20], ["512 B", "4 KiB", "32 KiB", "256 KiB", "1 MiB"])
    axis.minorticks_off()
    axis.grid(True)


def depth_rate(curves: StorageCurves, block: int, depth: int) -> float:
    return block / float(curves.read.command_s(np.array([block]), depth)[0]) / 1e6


if __name__ == "__main__":
    errors()
    picture()
