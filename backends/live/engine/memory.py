"""A memory budget, shown beside what the operating system and the device's allocator say."""

import os
import sys
from pathlib import Path

from kvferry.machine.memory import BudgetedPool


class LiveMemory(BudgetedPool):
    """Grants and refuses as in the simulator; what is really held is told beside it, and never refused here."""

    def resident_bytes(self) -> int | None:
        """What this process holds in memory; None where the system does not tell."""
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def device_bytes(self) -> int | None:
        """What the CUDA allocator has given out in this process; None where CUDA is not in use."""
        torch = sys.modules.get("torch")  # looking must not load it
        if torch is None or not torch.cuda.is_initialized():
            return None
        return int(torch.cuda.memory_allocated())
