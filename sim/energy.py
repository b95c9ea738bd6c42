"""Power states integrated over time, component by component."""

from collections.abc import Callable
from dataclasses import dataclass

from kvferry.machine.busy import Busy


@dataclass(frozen=True, slots=True)
class _Component:
    idle_w: float
    active_w: float
    resources: tuple[Busy, ...]
    waiting_w: float
    waits_for: Busy | None
    work_s: Callable[[float, float], float] | None


class EnergyMeter:
    """A component draws `active_w` while at least one of its resources is busy, and `idle_w` otherwise.

    `base_w` is drawn throughout, and appears as the component "base". Left out: the energy of changing states.
    """

    def __init__(self, base_w: float = 0.0) -> None:
        self._components: dict[str, _Component] = {}
        self.add("base", base_w, base_w)

    def add(
        self,
        name: str,
        idle_w: float,
        active_w: float,
        *resources: Busy,
        waiting_w: float | None = None,
        waits_for: Busy | None = None,
        work_s: Callable[[float, float], float] | None = None,
    ) -> None:
        """Add a component; one without resources is idle throughout. Otherwise idle, it draws `waiting_w` (None:
        `idle_w`) while `waits_for` is busy. `work_s(from_s, until_s)`: of the time between, in which its one resource
        is busy, what it comes to at full clock; what it draws above `idle_w` falls with its clock. None: all of it."""
        assert name not in self._components, name
        waiting_w = idle_w if waiting_w is None else waiting_w
        self._components[name] = _Component(idle_w, active_w, resources, waiting_w, waits_for, work_s)

    @property
    def idle_w(self) -> dict[str, float]:
        """What each component draws when nothing is at work."""
        return {name: component.idle_w for name, component in self._components.items()}

    def energy_j(self, until_s: float, from_s: float = 0.0) -> dict[str, float]:
        """Joules by component, from `from_s` to `until_s`; unfinished work counts up to `until_s`."""
        energy_j = {}
        for name, component in self._components.items():
            active_s = active_within_s(component.resources, from_s, until_s)
            engaged_s = active_s
            if component.waits_for is not None:
                engaged_s = active_within_s((*component.resources, component.waits_for), from_s, until_s)
            idle_s = until_s - from_s - engaged_s
            waiting_j = component.waiting_w * (engaged_s - active_s)
            active_j = component.active_w * active_s
            if component.work_s is not None:
                (busy,) = component.resources
                spans = busy.intervals(from_s, until_s)
                lost_s = active_s - sum(component.work_s(start_s, end_s) for start_s, end_s in spans)
                active_j -= (component.active_w - component.idle_w) * lost_s
            energy_j[name] = active_j + waiting_j + component.idle_w * idle_s
        return energy_j


def active_within_s(resources: tuple[Busy, ...], from_s: float, until_s: float) -> float:
    """Seconds during which at least one of the resources was busy; overlaps count once."""
    if len(resources) == 1:
        # Its intervals are disjoint.
        return sum([end_s - start_s for start_s, end_s in resources[0].intervals(from_s, until_s)], start=0.0)
    active_s, covered_to_s = 0.0, from_s
    for start_s, end_s in sorted(span for busy in resources for span in busy.intervals(from_s, until_s)):
        active_s += max(0.0, end_s - max(start_s, covered_to_s))
        covered_to_s = max(covered_to_s, end_s)
    return active_s
