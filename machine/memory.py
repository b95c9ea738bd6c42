"""Memory budgets: the only place that decides whether memory may be held."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from kvferry.machine.machine import Lease, MemoryPool, Refused
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.tier import Tier


class BudgetedLease:
    """Memory that is held until released; releasing twice is harmless."""

    __slots__ = ("_pool", "n_bytes", "tag")

    def __init__(self, pool: "BudgetedPool", n_bytes: int, tag: str) -> None:
        self.n_bytes: float = n_bytes
        self.tag = tag
        self._pool = pool

    def release(self) -> None:
        self._pool._release(self)


class BudgetedPool:
    """Grants what fits and refuses what does not; never holds more than its capacity.

    Whole bytes: a fraction is rounded up, so that sums stay exact. Left out: fragmentation.
    """

    def __init__(self, capacity_bytes: float) -> None:
        self.capacity_bytes: float = capacity_bytes if math.isinf(capacity_bytes) else math.floor(capacity_bytes)
        self._used_bytes = 0
        self._peak_bytes = 0
        self._used_by_tag: Counter[str] = Counter()
        self._used_by_group: Counter[str] = Counter()
        self._peak_by_group: Counter[str] = Counter()
        # What was held by tag when most was.
        self._at_peak: Counter[str] = Counter()
        # Insertion-ordered, by identity: what is held now.
        self._held: dict[int, BudgetedLease] = {}

    @property
    def used_bytes(self) -> float:
        return self._used_bytes

    @property
    def free_bytes(self) -> float:
        return self.capacity_bytes - self._used_bytes

    @property
    def peak_bytes(self) -> float:
        return self._peak_bytes

    @property
    def at_peak(self) -> Mapping[str, float]:
        """What was held by tag when most was, the largest first."""
        return dict(Counter({tag: n for tag, n in self._at_peak.items() if n > 0}).most_common())

    def peak_of(self, group: str) -> float:
        """The most that tags of a group ever held together; 0 for a group never seen. A tag's group is what stands
        before its colon, or all of it."""
        return self._peak_by_group[group]

    def hold(self, n_bytes: Mapping[str, float]) -> Refused | None:
        """Holds bytes by tag for good, up to the first tag that does not fit: returns its refusal."""
        for tag, size in n_bytes.items():
            if isinstance(refused := self.reserve(size, tag), Refused):
                return refused
        return None

    def reserve(self, n_bytes: float, tag: str) -> BudgetedLease | Refused:
        """Returns a lease, or a refusal that says why. Raises ValueError for a negative size or NaN."""
        if not n_bytes >= 0:
            raise ValueError(f"cannot reserve {n_bytes} bytes for {tag}")
        if n_bytes > self.capacity_bytes - self._used_bytes:
            return Refused(tag, n_bytes, self.free_bytes)
        lease = BudgetedLease(self, math.ceil(n_bytes), tag)
        self._held[id(lease)] = lease
        self._hold(lease.n_bytes, tag)
        return lease

    def check(self) -> None:
        """Asserts that the used bytes are those of the leases, by tag and in total, and within the capacity."""
        by_tag: Counter[str] = Counter()
        for lease in self._held.values():
            by_tag[lease.tag] += int(lease.n_bytes)
        assert +self._used_by_tag == +by_tag, (self._used_by_tag, by_tag)
        assert self._used_bytes == by_tag.total() <= self.capacity_bytes, (self._used_bytes, self.capacity_bytes)
        assert self._used_bytes <= self._peak_bytes <= self.capacity_bytes

    def _release(self, lease: BudgetedLease) -> None:
        if self._held.pop(id(lease), None) is not None:
            self._hold(-lease.n_bytes, lease.tag)

    def _hold(self, n_bytes: float, tag: str) -> None:
        whole = int(n_bytes)
        self._used_bytes += whole
        self._used_by_tag[tag] += whole
        group = tag.partition(":")[0]
        self._used_by_group[group] = used = self._used_by_group[group] + whole
        if whole <= 0:
            return
        if self._used_bytes > self._peak_bytes:
            self._peak_bytes, self._at_peak = self._used_bytes, self._used_by_tag.copy()
        if used > self._peak_by_group[group]:
            self._peak_by_group[group] = used


class GrowingLeases:
    """Memory of several tiers that grows and shrinks by name, as a ledger says."""

    def __init__(self, memory_of: Callable[[Tier], MemoryPool]) -> None:
        self._memory_of = memory_of
        self._leases: dict[tuple[Tier, str], Lease] = {}

    def hold(self, n_bytes: Mapping[Tier, Mapping[str, float]]) -> None:
        """Hold this many bytes from now on, of each tier by name, in whole ones. What shrinks is released before
        anything is reserved. Raises OutOfMemory."""
        wanted = {(tier, name): math.ceil(n) for tier, held in n_bytes.items() for name, n in held.items()}
        now = {key: lease.n_bytes for key, lease in self._leases.items()}
        changed = {key: n for key, n in wanted.items() if n != now.get(key, 0)}
        for key in changed.keys() & now.keys():
            self._leases.pop(key).release()
        for (tier, name), size in changed.items():
            if size:
                lease = self._memory_of(tier).reserve(size, name)
                if isinstance(lease, Refused):
                    raise OutOfMemory(f"{tier}: {lease}")
                self._leases[tier, name] = lease

    @property
    def n_bytes(self) -> float:
        """The bytes that are held."""
        return sum(lease.n_bytes for lease in self._leases.values())

    def release(self) -> None:
        """Gives all of it back."""
        for lease in self._leases.values():
            lease.release()
        self._leases.clear()
