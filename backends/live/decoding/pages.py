"""KV in memory, in pages: sequences of any length share one pool."""

import torch

from kvferry.policies.decode.pages import PAGE_TOKENS, pages_of
from kvferry.specs.errors import KvferryError


class Pages:
    """A pool of so many pages, each of ``PAGE_TOKENS`` tokens of all layers; a table of pages per sequence."""

    def __init__(
        self, pages: int, *, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, pages, 2, kv_heads, PAGE_TOKENS, head_dim)
        self._pool = torch.zeros(shape, dtype=dtype, device=device)
        # Popped from the end: pages are taken in the order of memory.
        self._free = list(reversed(range(pages)))
        self._table: dict[int, list[int]] = {}
        self.peak_pages = 0

    @property
    def pages(self) -> int:
        return self._pool.shape[1]

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def peak_bytes(self) -> int:
        """The most that taken pages ever had."""
        return self._pool[:, : self.peak_pages].nbytes

    def make_room(self, sequence: int, tokens: int) -> None:
        """Give a sequence pages for so many tokens. Raises KvferryError, and takes none, when too few are free."""
        table = self._table.setdefault(sequence, [])
        more = pages_of(tokens) - len(table)
        if more > len(self._free):
            raise KvferryError(
                f"sequence {sequence} needs {more} more pages, {len(self._free)} of {self.pages} are free"
            )
        table.extend(self._free.pop() for _ in range(more))
        self.peak_pages = max(self.peak_pages, self.pages - len(self._free))

    def release(self, sequence: int) -> None:
        """Give a sequence's pages back; one that has none is no error."""
        self._free.extend(reversed(self._table.pop(sequence, [])))

    def put(self, layer: int, sequence: int, position: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """KV of a layer from a position on, each [KV heads, tokens, head_dim]; there is room for it."""
        pool, table, tokens = self._pool[layer], self._table[sequence], keys.shape[1]
        done = 0
        while done < tokens:
            page, inside = divmod(position + done, PAGE_TOKENS)
            n = min(PAGE_TOKENS - inside, tokens - done)
            for side, one in enumerate((keys, values)):
                pool[table[page], side, :, inside : inside + n] = one[:, done : done + n]
            done += n

    def kv(self, layer: int, sequence: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a sequence's first tokens, each [KV heads, tokens, head_dim]."""
        table = torch.tensor(self._table[sequence][: pages_of(tokens)], device=self._pool.device)
        keys, values = self._pool[layer].index_select(0, table).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :tokens]
        return keys, values

    def check(self) -> None:
        """Every page is free or in one table."""
        taken = [page for table in self._table.values() for page in table]
        assert sorted([*taken, *self._free]) == list(range(self.pages))
