"""Grouped prediction of critical KV entries: its four parameters."""

from dataclasses import dataclass

from kvferry.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """KVSwap's parameters (Sections 3.2 to 3.5). ValueError for any that cannot be.

    ``group_tokens`` G: consecutive tokens that are selected, read and kept together. ``compression`` sigma: full key
    width over the width of the key cache that is scored. ``groups`` M: how many each layer selects per sequence.
    ``slots`` C: how many a layer's reuse buffer holds per sequence, also fewer than M; 0: nothing is reused.
    """

    group_tokens: int
    compression: float
    groups: int
    slots: int = 0

    def __post_init__(self) -> None:
        if self.group_tokens < 1 or self.groups < 1:
            raise ValueError(f"a selection has 1 group of 1 token at least, got {self.groups} of {self.group_tokens}")
        if not self.compression >= 1:
            raise ValueError(f"compression is 1 or more, got {self.compression}")
        check_slots(self.slots)

    @property
    def selected_tokens(self) -> int:
        return self.groups * self.group_tokens


def check_slots(slots: int) -> None:
    """Raises ValueError for a negative number of slots."""
    if slots < 0:
        raise ValueError(f"a reuse buffer has 1 slot or more, or 0 for no reuse, not {slots}")


def rank_of(compression: float, model: ModelSpec) -> int:
    """Returns the width of the compressed key cache: at least 1."""
    return max(1, round(model.key_width / compression))


def room_tokens(context: int, output: int, group_tokens: int) -> int:
    """Returns the tokens that a sequence has room for once `output` are decoded: whole groups."""
    return -(-(context + output) // group_tokens) * group_tokens
