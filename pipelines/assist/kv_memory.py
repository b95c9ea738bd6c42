"""Memory of an instance for the KV of requests, and of the beginnings that their prompts share."""

from kvferry.machine.machine import Lease, MemoryPool, Refused


class KvMemory:
    def __init__(self, memory: MemoryPool, bytes_per_token: float) -> None:
        self._memory, self._bytes_per_token = memory, bytes_per_token
        # By scene, the least recently used first.
        self._beginnings: dict[int, Lease] = {}
        # Requests whose KV is here, or is to be.
        self._leases = 0

    def n_bytes(self, tokens: int) -> float:
        return tokens * self._bytes_per_token

    @property
    def is_used(self) -> bool:
        """Whether there is KV of any request."""
        return self._leases > 0

    def reserve(self, tokens: int) -> Lease | Refused:
        """Memory for the KV of this many tokens, which `free` gives back. Beginnings that are kept make room."""
        while isinstance(lease := self._memory.reserve(self.n_bytes(tokens), "kv"), Refused) and self._beginnings:
            self._beginnings.pop(next(iter(self._beginnings))).release()
        self._leases += not isinstance(lease, Refused)
        return lease

    def free(self, lease: Lease) -> None:
        lease.release()
        self._leases -= 1

    def has_beginning(self, scene: int) -> bool:
        """Whether the KV of what prompts of this scene begin with is here."""
        if (lease := self._beginnings.pop(scene, None)) is not None:
            self._beginnings[scene] = lease
        return lease is not None

    def keep_beginning(self, scene: int, tokens: int) -> None:
        """Keep a copy of its KV, which a prompt has brought, where there is memory for it."""
        if scene not in self._beginnings:
            lease = self._memory.reserve(self.n_bytes(tokens), "kv")
            if not isinstance(lease, Refused):
                self._beginnings[scene] = lease

    def lose_beginnings(self) -> None:
        while self._beginnings:
            self._beginnings.popitem()[1].release()
