"""Memory of a device, or of its host, that torch has none left of: an outcome of the run, whatever was under way."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvferry.specs.errors import OutOfMemory

# What torch's errors say, whose own class is for a device's memory alone: not for pinned memory, nor for the host's.
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def lack_of_memory(error: BaseException, what: str) -> OutOfMemory | None:
    """Returns the outcome that an error stands for, told as `what`; None: it stands for something else."""
    said = str(error)
    if not isinstance(error, RuntimeError) or not any(one in said for one in _NO_MEMORY):
        return None
    return OutOfMemory(f"{what}: {said.partition('. ')[0].partition(chr(10))[0]}")


@contextmanager
def told_as_out_of_memory(what: str) -> Iterator[None]:
    """Raises OutOfMemory, told as `what`, where the block lacks memory."""
    try:
        yield
    except RuntimeError as error:
        if lack := lack_of_memory(error, what):
            raise lack from None
        raise
