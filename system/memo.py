"""Results that are remembered by what they depend on."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Memo(Generic[Result]):
    """The last `most` results of a function, those that were asked for first leaving first: where all that it depends
    on is the same, it is asked once. Results are shared, and not to be changed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found = OrderedDict[Hashable, Result]()

    def of(self, depends: Hashable, make: Callable[[], Result]) -> Result:
        """Returns what `make` gives for all that it `depends` on."""
        found = self._found.get(depends)
        if found is None:
            found = make()
            self.keep(depends, found)
        return found

    def known(self, depends: Hashable) -> Result | None:
        """Returns the result that is remembered; None: there is none."""
        return self._found.get(depends)

    def keep(self, depends: Hashable, result: Result) -> None:
        self._found[depends] = result
        if len(self._found) > self._most:
            self._found.popitem(last=False)
