"""Machines of devices that come and go, by hand."""

from types import SimpleNamespace

from kvferry.backends.sim.crowd import SimCrowd


class Machine(SimpleNamespace):
    __hash__ = object.__hash__


def test_a_machine_whose_device_left_serves_the_next_one_on_the_same_network() -> None:
    clock = SimpleNamespace(now=0.0)

    def machine(n: int, *_: object) -> Machine:
        energy = SimpleNamespace(idle_w={"board": 2.0}, energy_j=lambda now_s: {"board": 2.0 * now_s})
        return Machine(n=n, env=clock, heat=None, energy=energy)

    crowd = SimCrowd(machine(0), lambda n: n % 2, machine)  # type: ignore[arg-type]
    first, other = crowd.device(1), crowd.device(2)
    assert (first.n, other.n, crowd.device(1)) == (1, 2, first)  # type: ignore[attr-defined]
    clock.now = 5.0
    crowd.leave(1)
    # 4 is in the other cell, 3 in that of 1.
    assert crowd.device(4).n == 3 and crowd.device(3) is first  # type: ignore[attr-defined]
    clock.now = 7.0
    crowd.leave(3)
    # The one machine worked for 5 s and 2 s of its 7 s; what others had is not known until they leave.
    assert crowd.stays_j() == {"board": 2.0 * 7}
    assert len(crowd.devices) == 4
