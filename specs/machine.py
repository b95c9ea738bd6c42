"""Further machines of a scenario beside its device: other devices, a cloud."""

import re
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from kvferry.specs.base import BadKey, Part
from kvferry.specs.device import DeviceSpec
from kvferry.specs.link import LinkSpec
from kvferry.specs.live import RealModel
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import Count, Seconds

# The machine that a scenario's `device`, `model` and `link` describe.
DEVICE = "device"
# What spans of all the others are told under that are as the scenario's own.
DEVICES = "devices"
# Of a scenario in all.
MOST_MACHINES = 10_000
# Instances bear the name in channels, which are sockets in a folder: short, and with a number behind a dot in a group.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,23}")

_NUMBER = re.compile(r"\.(0|[1-9][0-9]{0,5})")


def _is_machine_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r:.60} names no machine: at most 24 letters, digits, _ and -, a letter or digit first")
    if name == DEVICE:
        raise ValueError(f"{DEVICE} is the machine that the scenario's own device, model and link describe")
    return name


MachineName = Annotated[str, AfterValidator(_is_machine_name)]


def device_name(n: int) -> str:
    """What the n-th of several devices is called that are all as the scenario's own; the first is that one."""
    return f"{DEVICE}.{n}" if n else DEVICE


class DownSpec(Part):
    """A machine is down from start until start + duration, on the run's clock. What it had in hand is lost."""

    # When it goes down, on the run's clock.
    start_s: Seconds
    # How long it is down.
    duration_s: Seconds = Field(gt=0)
    # The number of the machine in its group. None: all of the group together.
    instance: Annotated[Count, Field(ge=0, lt=MOST_MACHINES)] | None = None


class MachineSpec(Part):
    """A machine, or `count` equal ones, with which the device talks over channels."""

    # Where it runs: a name (kvferry devices), a path, or a mapping.
    device: DeviceSpec
    # What it answers with: a name (kvferry models), a path, Hugging Face's config.json, or a mapping.
    model: ModelSpec
    # Its own way to the network. None: what it sends and is sent costs nothing on its side.
    link: LinkSpec | None = None
    # A group of equal machines, called NAME.0, NAME.1 and so on. None: one machine, called NAME.
    count: Annotated[Count, Field(ge=1, le=MOST_MACHINES)] | None = None
    # How it is made real. None: as the scenario's device.
    live: RealModel | None = None
    # When it, or one of its group, is down.
    outages: tuple[DownSpec, ...] = Field(default=(), max_length=1000)

    @model_validator(mode="after")
    def _outages_in_order(self) -> "MachineSpec":
        for one in self.outages:
            if one.instance is not None and one.instance >= (self.count or 1):
                raise BadKey("outages", f"name instance {one.instance}; the group has {self.count or 1}, from 0 on")
        for number in range(len(self.instances(""))) if self.outages else ():
            of = self.down(number)
            if any(after.start_s < before.start_s + before.duration_s for before, after in pairwise(of)):
                raise BadKey("outages", "overlap or are out of order; list them by start, one after the other")
        return self

    def down(self, number: int) -> tuple[DownSpec, ...]:
        """Returns when the machine of this number in its group is down."""
        return tuple(one for one in self.outages if one.instance in (None, number))

    def instances(self, name: str) -> tuple[str, ...]:
        """The names of its machines, where it stands under `name` in the scenario."""
        return (name,) if self.count is None else tuple(f"{name}.{n}" for n in range(self.count))

    def range_of(self, name: str) -> str:
        """The same for users."""
        return name if self.count is None else f"{name}.0 to {name}.{self.count - 1}"

    def has(self, suffix: str) -> bool:
        """Whether one of its instances ends so behind the name it stands under: ".3", or nothing."""
        if self.count is None:
            return not suffix
        return _NUMBER.fullmatch(suffix) is not None and int(suffix[1:]) < self.count
