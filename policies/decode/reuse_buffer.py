"""The reuse buffer: slots that keep units read from storage, so that the next steps need not read them again."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Where a selection is: parallel to the ids asked for, ``slots`` [sequences, k], all in memory once what is
    ``missing`` (bool [sequences, k]) was read into its slot."""

    slots: np.ndarray
    missing: np.ndarray

    @property
    def hits(self) -> int:
        return self.missing.size - int(np.count_nonzero(self.missing))


class ReuseBuffer:
    """One layer's slots for a lock-step batch (KVSwap 3.4.3): a slot table, filled first in, first out.

    A slot whose unit the present selection needs is passed over, and its turn comes in the next round. The mapping
    table goes both ways: ``slot_of`` unit, and ``unit_in`` slot; whatever has no slot lies on storage, where the
    layout says.
    """

    def __init__(self, sequences: int, units: int, slots: int) -> None:
        """ValueError without slots."""
        if slots < 1:
            raise ValueError(f"a reuse buffer has a slot at least, got {slots}")
        self.sequences, self.units, self.slots = sequences, units, slots
        # Flat [sequences * units] and [sequences * slots]; -1: none.
        self._slot_of = np.full(sequences * units, -1, np.int32)
        self._unit_in = np.full(sequences * slots, -1, np.int64)
        self._first_unit = (np.arange(sequences) * units)[:, None]
        self._first_slot = (np.arange(sequences) * slots)[:, None]
        self._next = np.zeros((sequences, 1), np.int64)

    def slot_of(self, sequence: int, unit: int) -> int | None:
        slot = int(self._slot_of[sequence * self.units + unit])
        return slot if slot >= 0 else None

    def unit_in(self, sequence: int, slot: int) -> int | None:
        unit = int(self._unit_in[sequence * self.slots + slot])
        return unit - sequence * self.units if unit >= 0 else None

    def look_up(self, ids: np.ndarray) -> Lookup:
        """Find the units `ids` [sequences, k], distinct along k, and give a slot to each that has none.

        The caller reads what is missing before it is used. ValueError when a selection has more units than there are
        slots: they would push each other out.
        """
        if ids.shape[1] > self.slots:
            raise ValueError(f"{ids.shape[1]} units are selected, {self.slots} slots cannot hold them")
        wanted = ids + self._first_unit
        slots = self._slot_of[wanted]
        missing = slots < 0
        counts = missing.sum(axis=1, keepdims=True)
        if counts.any():
            victims = self._victims(slots, missing, counts)
            evicted = self._unit_in[victims]
            self._slot_of[evicted[evicted >= 0]] = -1
            entering = wanted[missing]
            taken = victims % self.slots
            self._unit_in[victims] = entering
            self._slot_of[entering] = taken
            slots[missing] = taken
        return Lookup(slots, missing)

    def forget(self, ids: np.ndarray) -> None:
        """Give up units [sequences, k] whose read failed: they lie on storage only."""
        units = (ids + self._first_unit).ravel()
        slots = self._slot_of[units]
        held = slots >= 0
        rows = np.repeat(np.arange(self.sequences), ids.shape[1])[held]
        self._unit_in[rows * self.slots + slots[held]] = -1
        self._slot_of[units[held]] = -1

    def check(self) -> None:
        """Both tables agree, and no slot holds two units."""
        held = np.flatnonzero(self._slot_of >= 0)
        rows = held // self.units
        assert (self._unit_in[rows * self.slots + self._slot_of[held]] == held).all()
        assert np.count_nonzero(self._unit_in >= 0) == len(held)

    def _victims(self, slots: np.ndarray, missing: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Flat indices of the slots to fill, sequence by sequence, `counts` [sequences, 1] of each."""
        needed = np.zeros(self.sequences * self.slots, bool)
        needed[(slots + self._first_slot)[~missing]] = True
        most = int(counts.max())
        # As many as may be needed are looked at: those passed over are few, as a buffer holds several selections.
        width = min(self.slots, 2 * most + 16)
        while True:
            turn = (self._next + np.arange(width)) % self.slots + self._first_slot
            free = ~needed[turn]
            order = np.cumsum(free, axis=1)
            if width == self.slots or (order[:, -1:] >= counts).all():
                break
            width = min(self.slots, 2 * width)
        taken = free & (order <= counts)
        passed = np.where(counts > 0, width - np.argmax(taken[:, ::-1], axis=1)[:, None], 0)
        self._next = (self._next + passed) % self.slots
        victims: np.ndarray = turn[taken]
        return victims
