"""When devices that come and go are online."""

from collections.abc import Iterator

from kvferry.specs.assist import ChurnSpec
from kvferry.traces.chance import Source, generator


class Coverage:
    """Each device draws from a stream of its own: what the others do changes nothing. Times only go on."""

    def __init__(self, churn: ChurnSpec, seed: int, cells: int | None = None, first_cell: int = 0) -> None:
        """`cells`: a device's stream is that of its number in its cell, of which the first has this number."""
        self._churn, self._seed, self._cells, self._first_cell = churn, seed, cells, first_cell
        # By device: whether it is online, until when, and how it goes on.
        self._now: dict[int, tuple[bool, float]] = {}
        self._course: dict[int, Iterator[tuple[bool, float]]] = {}

    def of(self, device: int, time_s: float) -> tuple[bool, float]:
        """Returns whether a device is online then, and until when it stays so. `time_s` is no earlier than before."""
        course = self._course.get(device)
        if course is None:
            course = self._course[device] = self._drawn(device)
            self._now[device] = next(course)
        while self._now[device][1] <= time_s:
            self._now[device] = next(course)
        return self._now[device]

    def _drawn(self, device: int) -> Iterator[tuple[bool, float]]:
        place: tuple[int, ...] = (device,)
        if self._cells is not None:
            place = self._first_cell + device % self._cells, device // self._cells
        rng, churn = generator(Source.CHURN, self._seed, *place), self._churn
        # As after a long time: how long it has been so already does not matter.
        online = bool(rng.uniform() < churn.online_s / (churn.online_s + churn.offline_s))
        until_s = 0.0
        while True:
            until_s += float(rng.exponential(churn.online_s if online else churn.offline_s))
            yield online, until_s
            online = not online
