"""The cloud of a scenario, served to devices of other processes.

As a program it is the cloud of a real run in a process of its own, which ends with the run (``cloud.child_server``).
"""

import sys
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from kvferry.backends.needs import Needs
from kvferry.backends.world import Say
from kvferry.cloud.child_server import settings_from_owner
from kvferry.machine.channel import ChannelBroken
from kvferry.machine.machine import Machine
from kvferry.pipelines.checks import check_names
from kvferry.pipelines.workload import Process
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import dumped_scenario
from kvferry.specs.errors import InputError, KvferryError, MissingExtra
from kvferry.specs.scenario import Scenario

# A role of the cloud for one device, by the names of the machine that it has come to and its own: from its first
# request until the channel has ended.
CloudRole = Callable[[str, str], Process]


@runtime_checkable
class ServedFlow(Protocol):
    """A Flow whose cloud can be in another process than its device."""

    @property
    def needs(self) -> Needs: ...

    @property
    def most_message_bytes(self) -> int:
        """What one message of a device may have."""
        ...

    def cloud_role(self, machines: Mapping[str, Machine]) -> CloudRole:
        """What these machines do for the devices that come."""
        ...


def serve_cloud(
    scenario: Scenario,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    tell: Callable[[str], None] = lambda url: None,
    say: Say = lambda what: None,
) -> None:
    """Serve the further machines of a scenario until interrupted; then raises KeyboardInterrupt. Calls `tell` with the
    URL. What becomes of a device harms no other one.

    Raises InputError, KvferryError as ``served_world`` does; MissingExtra without torch.
    """
    # Imported when asked for: torch is an extra, and takes seconds to load.
    try:
        from kvferry.backends.live.served_world import served_world
    except ImportError as error:
        raise MissingExtra(f"serving needs {error.name}: pip install '.[torch]'") from None

    check_names(scenario)
    kind = WORKLOADS[scenario.workload.kind]
    system = kind.systems[scenario.system].with_policies(scenario.policy_values)
    flow = kind.flow(scenario, system, lambda done, of: None)
    if not isinstance(flow, ServedFlow):
        raise InputError(f"workload.kind: {scenario.workload.kind} has no cloud that serves devices; assist has")

    def arrived(machine: str, device: str) -> None:
        world.env.process(served(machine, device))

    def served(machine: str, device: str) -> Process:
        try:
            yield from role(machine, device)
        except ChannelBroken:
            # It is gone: nobody is left to hear of it.
            pass
        except KvferryError as error:
            say(f"{device}: {error}")
        except Exception as error:
            # A fault of ours with one device is not the end of the others.
            say(f"{device}: a fault of its own: {type(error).__name__}: {error}")
        finally:
            world.reception.leave(machine, device)

    with served_world(
        scenario,
        flow.needs,
        arrived,
        host=host,
        port=port,
        token=token,
        most_message_bytes=flow.most_message_bytes,
        say=say,
    ) as world:
        role = flow.cloud_role(world.machines)
        tell(world.reception.url)
        for_ever = world.env.event()
        with world.env.lock:
            world.env.expect()
        world.env.run(until=for_ever)


def main() -> None:
    settings = settings_from_owner()
    try:
        serve_cloud(
            dumped_scenario(settings["scenario"]),
            token=settings["token"],
            tell=lambda url: print(url, flush=True),
            say=lambda what: print(what, file=sys.stderr, flush=True),
        )
    except KeyboardInterrupt:
        pass
    except KvferryError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
