"""Fit a phone's heat on one series of decoding without a break, and judge it on the other.

python fits/heat.py fit      # numbers of the device by the series that it is fitted on, errors on all
python fits/heat.py swap     # the same, fitted on each series in turn

Free are the chip's heat capacity, its resistance to the air, the temperature at which the clock is least, and the GPU's
power. A series has its rate over time and its mean power: the first gives ratios of these numbers, the second their
size, and the temperatures of the air and of the first throttling, assumed, the scale of all temperatures. The
processor works without a break; heat, governor and energy are those of runs.
"""

import argparse
from collections.abc import Mapping

import numpy as np
from rounds import Numbers, found

from kvferry.analysis.reproduction.sustained import FOLDER
from kvferry.machine.busy import Busy
from kvferry.scenarios.loader import load_device
from kvferry.sim.energy import EnergyMeter
from kvferry.sim.heat import Heat
from kvferry.specs.device import DeviceSpec
from kvferry.traces.sustained import Rates, SeriesSpec, load_series

START = {"capacity_j_per_k": 16.0, "resistance_k_per_w": 4.0, "throttle_over_k": 15.0, "active_w": 8.0}
BOUNDS = {
    "capacity_j_per_k": (1.0, 1000.0),
    "resistance_k_per_w": (0.1, 50.0),
    "throttle_over_k": (1.0, 60.0),
    "active_w": (0.5, 50.0),
}
Series = Mapping[str, tuple[SeriesSpec, Rates]]


def course(device: DeviceSpec, numbers: Numbers, seconds: int) -> tuple[np.ndarray, float]:
    """The clock of every second, and the mean power, with these numbers."""
    assert device.heat is not None
    of_heat = {key: numbers[key] for key in ("capacity_j_per_k", "resistance_k_per_w")}
    of_heat["throttle_to_c"] = device.heat.throttle_from_c + numbers["throttle_over_k"]
    meter, busy = EnergyMeter(device.base_w + device.network.idle_w), Busy()
    heat = Heat(
        device.heat.model_copy(update=of_heat), lambda from_s, until_s: sum(meter.energy_j(until_s, from_s).values())
    )
    main = device.processors[device.main]
    meter.add(device.main, main.idle_w, numbers["active_w"], busy, work_s=heat.work_s)
    busy.begin(0.0)
    clocks = np.array([heat.clock(float(second)) for second in range(seconds)])
    return clocks, sum(meter.energy_j(float(seconds)).values()) / seconds


def compared(device: DeviceSpec, spec: SeriesSpec, rates: Rates, numbers: Numbers) -> tuple[Rates, float]:
    """Our rates at the measured first one, and our mean power over the measured one."""
    piece = int(rates.piece_s)
    clocks, power_w = course(device, numbers, piece * len(rates.per_s))
    ours = clocks.reshape(-1, piece).mean(axis=1)
    return Rates(rates.piece_s, rates.cold_per_s * ours), power_w / (spec.joules_per_token * rates.per_s.mean())


def fitted(spec: SeriesSpec, rates: Rates) -> Numbers:
    """The numbers with the least squares of differences in the share of the first rate; the mean power weighs as much
    as all of the course."""
    device, weight = load_device(spec.device), np.sqrt(len(rates.per_s))

    def residuals(numbers: Numbers) -> np.ndarray:
        ours, power = compared(device, spec, rates, numbers)
        return np.append((ours.per_s - rates.per_s) / rates.cold_per_s, weight * (power - 1))

    return found(residuals, START, BOUNDS)


def show(series: Series, on: str) -> None:
    numbers = fitted(*series[on])
    print(f"fitted on {on}: " + ", ".join(f"{key} {value:.4g}" for key, value in numbers.items()))
    for name, (spec, rates) in series.items():
        ours, power = compared(load_device(spec.device), spec, rates, numbers)
        errors = (ours.per_s - rates.per_s) / rates.cold_per_s
        rate, after_s, our_after_s = rates.throttled_per_s, rates.throttled_after_s or 0, ours.throttled_after_s or 0
        print(
            f"  {name:14} throttled {ours.throttled_per_s:6.2f} tokens/s, measured {rate:6.2f}"
            f" ({ours.throttled_per_s / rate - 1:+.1%}); throttles after {our_after_s:4.1f} s,"
            f" measured {after_s:4.1f} s ({our_after_s / after_s - 1:+.1%});"
            f" mean power {power - 1:+.1%}; course within {np.sqrt((errors**2).mean()):.1%} (rms)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fit", "swap"))
    what, series = parser.parse_args().what, load_series(FOLDER)
    for name, (spec, _) in series.items():
        if what == "swap" or spec.fitted:
            show(series, name)


if __name__ == "__main__":
    main()
