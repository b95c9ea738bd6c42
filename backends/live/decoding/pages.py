"""KV in memory, in pages: sequences of any length share one pool."""

import torch

from kvferry.policies.decode.pages import PAGE_TOKENS, PageTable, pages_of


class Pages(PageTable):
    """Holds a pool of pages, each of ``PAGE_TOKENS`` tokens of all layers, and what lies in them. `latent_rank`:
    values are that many first numbers of keys, and do not lie there by themselves."""

    def __init__(
        self,
        pages: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        latent_rank: int | None = None,
    ) -> None:
        super().__init__(pages)
        self._latent_rank = latent_rank
        shape = (layers, pages, 2 if latent_rank is None else 1, kv_heads, PAGE_TOKENS, head_dim)
        self._pool = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def peak_bytes(self) -> int:
        """The most that taken pages ever had."""
        return self._pool[:, : self.peak_pages].nbytes

    def put(self, layer: int, sequence: int, position: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """KV of a layer from a position on, each [KV heads, tokens, head_dim]; there is room for it."""
        pool, table, tokens = self._pool[layer], self.of(sequence), keys.shape[1]
        done = 0
        while done < tokens:
            page, inside = divmod(position + done, PAGE_TOKENS)
            n = min(PAGE_TOKENS - inside, tokens - done)
            for side, one in enumerate((keys, values)[: pool.shape[1]]):
                pool[table[page], side, :, inside : inside + n] = one[:, done : done + n]
            done += n

    def kv(self, layer: int, sequence: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a sequence's first tokens, each [KV heads, tokens, head_dim]."""
        table = torch.tensor(self.of(sequence)[: pages_of(tokens)], device=self._pool.device)
        sides = self._pool[layer].index_select(0, table).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :tokens]
        return sides[0], sides[1] if self._latent_rank is None else sides[0, ..., : self._latent_rank]
