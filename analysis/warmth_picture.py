"""A device's temperature and clock over time, as a row of a run's picture."""

from typing import Any

from kvferry.analysis.style import BLUE, VERMILION
from kvferry.machine.warmth import Warmth
from kvferry.specs import human


def draw_warmth(axis: Any, warmth: Warmth, *, named: bool = True) -> None:
    """The chip's temperature on the left scale, its processors' clock on the right one. `named`: with a title, and with
    what the scales are."""
    axis.plot(warmth.times_s, warmth.temperatures_c, color=VERMILION, linewidth=1.2)
    axis.tick_params(axis="y", labelcolor=VERMILION)
    axis.grid(axis="y")
    clock = axis.twinx()
    clock.step(
        warmth.times_s,
        [100 * share for share in warmth.clocks],
        where="post",
        color=BLUE,
        linestyle="--",
        linewidth=1.2,
    )
    clock.set_ylim(0, 105)
    clock.tick_params(axis="y", labelcolor=BLUE)
    if not named:
        return
    axis.set_ylabel("chip, °C", color=VERMILION)
    clock.set_ylabel("clock, % (dashed)", color=BLUE)
    first_s = warmth.first_throttled_s
    throttles = "never throttles" if first_s is None else f"throttles after {human.seconds(first_s)}"
    axis.set_title(f"Heat: {max(warmth.temperatures_c):.1f} °C at most, {throttles}")
