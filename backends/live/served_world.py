"""The machines of a scenario that devices of other processes come to."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.backends.live.machine_parts import made_machine
from kvferry.backends.live.parts import check_needs, parts_for
from kvferry.backends.live.wire.reception import Arrived, Reception
from kvferry.backends.needs import Needs
from kvferry.backends.world import Say, described
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario


class ServedWorld:
    """All machines that a flow needs but the device, and the reception where devices come. Use ``served_world``."""

    def __init__(self, env: WallClockEnvironment, machines: Mapping[str, LiveMachine], reception: Reception) -> None:
        self.env, self.machines, self.reception = env, machines, reception


@contextmanager
def served_world(
    scenario: Scenario,
    needs: Needs,
    arrived: Arrived,
    *,
    host: str,
    port: int,
    token: str | None,
    most_message_bytes: int,
    say: Say,
) -> Iterator[ServedWorld]:
    """The scenario's cloud for as long as the block lasts; `arrived` is told of devices as ``Reception`` says. It
    accepts devices once its models are there.

    Raises InputError for what cannot be had here, and where it cannot listen; KvferryError for a model that does not
    fit.
    """
    check_needs(needs)
    others = [one for one in described(scenario, needs) if one.name != DEVICE]
    if not others:
        raise InputError(f"machines: {scenario.name} has no cloud to serve under system {scenario.system}")
    env = WallClockEnvironment()
    with ExitStack() as stack:
        # Listen first: an address that is refused is told before models take minutes to load.
        reception = Reception(
            env,
            host=host,
            port=port,
            token=token,
            arrived=arrived,
            known=[one.name for one in others],
            most_message_bytes=most_message_bytes,
        )
        stack.enter_context(closing(reception))
        parts = {one.name: parts_for(one.scenario, one.need, say, stack) for one in others}
        machines: dict[str, LiveMachine] = {}
        for one in others:
            machine, refused = made_machine(one, parts[one.name], env, reception, lambda span: None)
            if refused is not None:
                raise KvferryError(f"{one.name}: {refused}")
            machines[one.name] = stack.enter_context(machine)
        for name in machines:
            parts[name].warm_up(machines[name])
        reception.begin()
        yield ServedWorld(env, machines, reception)
