"""Where KV can lie."""

from typing import Literal, get_args

# `device`: the memory that the processor computes from; `host`: the memory beside it, on a device whose memory is not
# unified; `storage`: a file.
Tier = Literal["device", "host", "storage"]
TIERS: tuple[Tier, ...] = get_args(Tier)
