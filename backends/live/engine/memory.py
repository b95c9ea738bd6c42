"""A memory budget, and what the process really holds."""

import os
import sys
from pathlib import Path

from kvferry.machine.memory import BudgetedPool


class LiveMemory(BudgetedPool):
    """Grants and refuses reservations as the simulator does. What the process really holds is reported, not limited."""

    def resident_bytes(self) -> int | None:
        """Bytes of this process in memory; None where the system does not report them."""
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE")

    def device_bytes(self) -> int | None:
        """Bytes that the CUDA allocator has given out in this process; None where CUDA is not in use."""
        torch = sys.modules.get("torch")  # this must not import it
        if torch is None or not torch.cuda.is_initialized():
            return None
        return int(torch.cuda.memory_allocated())
