"""Modelled devices that come and go: there are as many machines as work at once."""

from collections import Counter, defaultdict
from collections.abc import Callable

from kvferry.backends.sim.machine import SimMachine
from kvferry.specs.link import LinkSpec


class SimCrowd:
    """A Crowd. A machine of devices that have nothing to do serves another one on the same network, or in the same
    cell; `another` makes one by its number, link and cell."""

    private = False

    def __init__(
        self,
        first: SimMachine,
        cell_of: Callable[[int], int | None],
        another: Callable[[int, LinkSpec | None, int | None], SimMachine],
    ) -> None:
        self.devices = [first]
        self._cell_of, self._another = cell_of, another
        # Of devices that have something to do, and since when; machines of others, and how long each had had.
        self._staying: dict[int, tuple[SimMachine, list[SimMachine]]] = {}
        self._arrived_s: dict[int, float] = {}
        self._spare: dict[tuple[int, int | None], list[SimMachine]] = {}
        self._stayed_s: defaultdict[SimMachine, float] = defaultdict(float)

    def device(self, n: int, link: LinkSpec | None = None) -> SimMachine:
        if n not in self._staying:
            cell = self._cell_of(n)
            spare = self._spare.setdefault((id(link), cell), [])
            machine = self.devices[0]
            if n and spare:
                machine = spare.pop()
            elif n:
                machine = self._another(len(self.devices), link, cell)
                self.devices.append(machine)
            if n and machine.heat is not None:
                # Another device's, or the same one's after a while.
                machine.heat.cool(machine.env.now)
            self._staying[n] = machine, spare
            self._arrived_s[n] = machine.env.now
        return self._staying[n][0]

    def leave(self, n: int) -> None:
        machine, spare = self._staying.pop(n)
        self._stayed_s[machine] += machine.env.now - self._arrived_s.pop(n)
        if n:
            spare.append(machine)

    def stays_j(self) -> dict[str, float]:
        found, now_s = Counter[str](), self.devices[0].env.now
        for machine, stayed_s in self._stayed_s.items():
            # All its work was within its stays.
            found.update(machine.energy.energy_j(now_s))
            found.subtract({name: idle_w * (now_s - stayed_s) for name, idle_w in machine.energy.idle_w.items()})
        return dict(found)
