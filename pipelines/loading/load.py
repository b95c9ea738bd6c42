"""Bring one context's KV in over two paths at once, as a loader says: fetch from the cloud, compute here."""

from collections.abc import Callable

import simpy

from kvferry.machine.machine import Machine
from kvferry.machine.ops import Extents
from kvferry.pipelines.loading.compute_path import ComputePath
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.placing import Placing
from kvferry.pipelines.loading.read_path import ReadPath
from kvferry.pipelines.loading.stream_path import StreamPath
from kvferry.pipelines.loading.under_way import UnderWay
from kvferry.policies.loading.loader import Loader
from kvferry.policies.loading.problem import LoadProblem
from kvferry.specs.errors import KvferryError


class LoaderStuck(KvferryError):
    """Nothing is under way, the load is not complete, and the loader asks for nothing."""


class ContextLoad:
    """A load under way. `done` fires when every unit is present; `arrivals` then tell the story. `loads` tells how
    many are under way on the machine, this one counted.

    `local` says where on local storage the units lie that the problem may read there; None: nothing lies there.

    When the link is down for good, what is missing is computed; and so is what came whole and cannot be used, as it
    does not decode, say: `arrivals` tell of it. Any other error ends the load.
    """

    def __init__(
        self,
        machine: Machine,
        context: Context,
        problem: LoadProblem,
        loader: Loader,
        *,
        request: int,
        outlook: Outlook,
        pace: Pace,
        loads: Callable[[], int] = lambda: 1,
        keep_paths: bool = False,
        local: Callable[[tuple[int, ...]], Extents] | None = None,
    ) -> None:
        load = UnderWay(machine, context, problem, loader, request, outlook, pace, loads, keep_paths)
        load.pump, load.settle = self._pump, self._settle
        self._load, self.progress, self.arrivals, self.done = load, load.progress, load.arrivals, load.done
        placing = Placing(load, two_ways=local is not None)
        self._stream = StreamPath(load, placing)
        self._compute = ComputePath(load, self._stream.drop)
        self._read = None if local is None else ReadPath(load, placing, local, self._stream.drop)
        self._pumping = False
        machine.env.process(self._watch())

    def _watch(self) -> simpy.events.ProcessGenerator:
        """Ask the loader again after every window, as it may wait for time to pass; fail the load when it is stuck."""
        idle_windows = 0
        self._pump()
        while not self.done.triggered:
            yield self._load.next_look(self._compute.busy or self._stream.busy)
            self._pump()
            idle_windows = 0 if self._busy else idle_windows + 1
            if idle_windows > 20 and not self.done.triggered:
                left, unusable = self.progress.remaining, self.arrivals.unusable
                why = f"; what came could not be used: {unusable}" if unusable else ""
                stuck = f"{type(self._load.loader).__name__} asks for nothing with {left} units left{why}"
                self.done.fail(LoaderStuck(stuck))

    @property
    def _busy(self) -> bool:
        return self._compute.busy or self._stream.busy or self.progress.units_reading > 0

    def _pump(self) -> None:
        """Fill all paths as far as the pace allows and the loader wants."""
        if self._pumping or self.done.triggered:
            return
        self._pumping = True
        self._compute.fill()
        self._stream.fill()
        if self._read is not None:
            self._read.fill()
        self._pumping = False
        if self.arrivals.link_down is not None and not self._busy:
            self.done.fail(self.arrivals.link_down)

    def _settle(self) -> None:
        """After a unit arrived: finish, calling off what is still under way, or go on."""
        if self.progress.remaining:
            self._pump()
        elif not self.done.triggered:
            self.done.succeed()
            self._stream.call_off()
            self._compute.call_off()
