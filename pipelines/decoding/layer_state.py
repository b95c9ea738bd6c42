"""A layer of a batch under way."""

from dataclasses import dataclass

import numpy as np

from kvferry.layouts.pieces import Reads
from kvferry.machine.ticket import Ticket
from kvferry.policies.decode.kept_clusters import Maintenance
from kvferry.policies.decode.rows import Lookup
from kvferry.policies.decode.slot_table import Resident


@dataclass(slots=True)
class LayerState:
    """The present step's state of a layer, and what is kept of it."""

    resident: Resident
    # Moves of its KV to another tier.
    arriving: tuple[Ticket, ...] = ()
    # The machine's choice, where its blocks are (None: all are on their way), and how they are read.
    chosen: Ticket | None = None
    found: Lookup | None = None
    reads: Reads | None = None
    # Tokens of a sequence that they hold, and each of them (None: all are full); entries of them that come from
    # elsewhere.
    tokens: int = 0
    block_tokens: np.ndarray | None = None
    brought: int = 0
    # Reads of blocks that it is likely to want, where these are swapped.
    swapped: Reads | None = None
    # The clusters of its context, and the one that each new key belongs to.
    clustered: Ticket | None = None
    assigned: Ticket | None = None
    # Maintenance of its clusters in this step, the work on them, and reads of those that no query has brought.
    asked: Maintenance = ()
    maintained: Ticket | None = None
    cut: Reads | None = None
