"""The query, key and value of the token under way in a layer."""

from typing import NamedTuple

import torch


class Projected(NamedTuple):
    """Holds what a layer makes of the token under way, with its rotary embedding."""

    layer: int
    queries: torch.Tensor
    # None: they have not been projected.
    keys_values: tuple[torch.Tensor, torch.Tensor] | None
