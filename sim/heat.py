"""Heat in a device: the temperature of its chip, and the clock that a governor leaves its processors."""

from array import array
from bisect import bisect_right
from collections.abc import Callable
from math import inf, nextafter

import numpy as np

from kvferry.machine.warmth import Warmth
from kvferry.specs.errors import InputError
from kvferry.specs.heat import HeatSpec

# A clock that has been set to a time may show a little less than that.
_ROUNDING = 1e-12
# What thermal sensors show as no change: Linux gives temperatures in thousandths of a degree.
_STILL_K = 1e-3
# A run of more takes minutes, and gigabytes.
MOST_LOOKS = 2_000_000


class ThermalChain:
    """A chip, and a body where there is one, between the power of the device and the air (an RC chain).

    Of each node, C dT/dt is what flows in minus what flows out, a flow being a difference of temperatures over the
    resistance between. Under constant power that has a closed form: what is left to the temperatures at which nothing
    changes any more decays as a sum of exponentials, one per node.
    """

    def __init__(self, spec: HeatSpec) -> None:
        nodes = [(spec.capacity_j_per_k, spec.resistance_k_per_w)]
        if spec.body is not None:
            nodes.append((spec.body.capacity_j_per_k, spec.body.resistance_k_per_w))
        capacities, resistances = np.array(nodes).T
        self._ambient_c = spec.ambient_c
        # The chip's power passes every resistance from a node outwards.
        self._k_per_w = np.cumsum(resistances[::-1])[::-1]
        conductances = np.diag(1 / resistances + np.concatenate(([0.0], 1 / resistances[:-1])))
        conductances -= np.diag(1 / resistances[:-1], 1) + np.diag(1 / resistances[:-1], -1)
        # Scaled by the roots of the capacities the matrix is symmetric, so that its rates are real.
        self._roots = np.sqrt(capacities)
        self._rates, self._modes = np.linalg.eigh(conductances / np.outer(self._roots, self._roots))
        self._above_k = np.full(len(nodes), (spec.ambient_c if spec.start_c is None else spec.start_c) - spec.ambient_c)

    @property
    def chip_c(self) -> float:
        """The chip's temperature."""
        return self._ambient_c + float(self._above_k[0])

    def draw(self, power_w: float, lasting_s: float) -> None:
        """The device draws this power for so long."""
        settled_k = power_w * self._k_per_w
        left = self._modes.T @ (self._roots * (self._above_k - settled_k))
        self._above_k = settled_k + self._modes @ (np.exp(-self._rates * lasting_s) * left) / self._roots


class Heat:
    """A device's temperatures, and the clock of its processors, a share of the full one.

    All energy of the device heats its chip. The governor looks at the chip's temperature every `look_s` while
    processors work, and sets the clock by it (as the proportional part of Linux's power allocator does); from one look
    to the next the clock is constant, and of the power its mean counts. During an op whose temperature stands still it
    looks ever more rarely, and so notices late what begins to draw power beside it. At a lower clock everything on a
    processor takes longer in proportion, and draws less in proportion. Left out: that voltage falls with the clock,
    leakage that grows with temperature, limits of single processors, memory that keeps its clock while the processor
    slows, and what heats the device beside it.

    `joules(from_s, until_s)` says what the device draws.
    """

    def __init__(self, spec: HeatSpec, joules: Callable[[float, float], float]) -> None:
        self._spec, self._joules = spec, joules
        self._chain = ThermalChain(spec)
        # Of each look: its time, the temperature, the clock from then on, and the clock summed over the time before.
        chip_c = self._chain.chip_c
        self._times_s, self._temperatures_c = array("d", (0.0,)), array("d", (chip_c,))
        self._clocks, self._worked_s = array("d", (self._clock_at(chip_c),)), array("d", (0.0,))

    def clock(self, now_s: float) -> float:
        """The clock at this time, for which the governor looks if it is time to."""
        last_s = self._times_s[-1]
        if now_s > last_s and now_s >= (last_s + self._spec.look_s) * (1 - _ROUNDING):
            self._look(now_s)
        return self._clocks[-1]

    def cool(self, now_s: float) -> None:
        """Everything is as cool as at the beginning from now on."""
        self._chain = ThermalChain(self._spec)
        self._note(now_s)

    def next_look_s(self, since_s: float) -> float:
        """When the governor looks during an op under way since then: twice as far apart after each look that saw no
        change, so that an op of days is looked at some dozen times."""
        last_s, apart_s = self._times_s[-1], self._spec.look_s
        if last_s > since_s and self._times_s[-2] >= since_s:
            changed_k = abs(self._temperatures_c[-1] - self._temperatures_c[-2])
            apart_s = max(apart_s, (last_s - self._times_s[-2]) * (2.0 if changed_k < _STILL_K else 0.5))
        # Late in a run the clock has no number for a short time more.
        return max(last_s + apart_s, nextafter(last_s, inf))

    def work_s(self, from_s: float, until_s: float) -> float:
        """The seconds of work at full clock that processors do between the two times if they are always busy."""
        return self._until(until_s) - self._until(from_s)

    def warmth(self, until_s: float) -> Warmth:
        """What happened until then, all that is drawn by then included."""
        if until_s > self._times_s[-1]:
            self._look(until_s)
        return Warmth(tuple(self._times_s), tuple(self._temperatures_c), tuple(self._clocks))

    def _look(self, now_s: float) -> None:
        if len(self._times_s) > MOST_LOOKS:
            what = f"{MOST_LOOKS:,} looks at the temperature, {self._spec.look_s:g} s apart, reach {now_s:.3g} s"
            raise InputError(f"device.heat.look_s: {what}, which is not the end of the run; look more rarely")
        before_s = self._times_s[-1]
        lasting_s = now_s - before_s
        self._chain.draw(self._joules(before_s, now_s) / lasting_s, lasting_s)
        self._note(now_s)

    def _note(self, now_s: float) -> None:
        chip_c = self._chain.chip_c
        self._worked_s.append(self._until(now_s))
        self._times_s.append(now_s)
        self._temperatures_c.append(chip_c)
        self._clocks.append(self._clock_at(chip_c))

    def _until(self, until_s: float) -> float:
        at = bisect_right(self._times_s, until_s) - 1
        return self._worked_s[at] + self._clocks[at] * (until_s - self._times_s[at])

    def _clock_at(self, chip_c: float) -> float:
        spec = self._spec
        hot = (chip_c - spec.throttle_from_c) / (spec.throttle_to_c - spec.throttle_from_c)
        return 1 - (1 - spec.least_clock) * min(1.0, max(0.0, hot))
