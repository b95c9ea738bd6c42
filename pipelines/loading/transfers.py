"""The transfers of a load that are under way: on the link, or being decoded and put in place."""

from collections.abc import Sequence

from kvferry.machine.ticket import Ticket


class Transfers:
    """Which transfer each unit is in, and how many bytes are on the link. `decoders`: of the device."""

    def __init__(self, decoders: int) -> None:
        self._decoders = decoders
        # By unit the transfer, all its units, and its bytes.
        self._of: dict[int, tuple[Ticket, tuple[int, ...], float]] = {}
        self._under_way = 0
        self._on_link = 0
        self._on_link_bytes = 0.0

    def __len__(self) -> int:
        """How many units are in one."""
        return len(self._of)

    def begin(self, ticket: Ticket, units: tuple[int, ...], n_bytes: float) -> None:
        self._under_way += 1
        self._on_link += 1
        self._on_link_bytes += n_bytes
        for unit in units:
            self._of[unit] = (ticket, units, n_bytes)

    def left_link(self, n_bytes: float) -> None:
        self._on_link -= 1
        self._on_link_bytes -= n_bytes

    def end(self, units: tuple[int, ...]) -> None:
        self._under_way -= 1
        for unit in units:
            self._of.pop(unit, None)

    @property
    def _are_few(self) -> bool:
        """Returns whether the decoders have less than a piece at work and one that waits each."""
        return self._under_way < 2 + 2 * self._decoders

    @property
    def link_runs_dry(self) -> bool:
        """Returns whether the link has no transfer behind the one that it carries, and the decoders would take one."""
        return self._on_link < 2 and self._are_few

    def has_room(self, window_bytes: float, streaming_bytes: float) -> bool:
        """Returns whether another may begin on a link that does not run dry: it carries less than a window, and the
        decoders would take one or less than four windows are on the way."""
        if self._on_link >= 2 and self._on_link_bytes >= window_bytes:
            return False
        return self._are_few or streaming_bytes < 4 * window_bytes

    def drop(self, unit: int, present: Sequence[int]) -> None:
        """Another path won this race: stop the unit's transfer if nothing else in it is wanted."""
        if unit in self._of:
            ticket, units, _ = self._of[unit]
            if all(present[u] for u in units):
                ticket.cancel()

    def call_off(self) -> list[float]:
        """Stop all; returns the bytes of each that is past the bottleneck: it arrives, and is not needed."""
        each = {ticket: n_bytes for ticket, _, n_bytes in self._of.values()}
        for ticket in each:
            ticket.cancel()
        return [n_bytes for ticket, n_bytes in each.items() if not ticket.cancelled]
