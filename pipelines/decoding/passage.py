"""Progress of a lock-step run, for people who wait."""

from kvferry.pipelines.workload import Progress
from kvferry.policies.decode.upkeep import Ahead

# Tokens between which nothing is told.
_EVERY_TOKENS = 16


class Passage:
    """Counts rounds of clustering of the prompts' keys, then tokens, those that are skipped too; tells `progress`."""

    def __init__(self, progress: Progress, output: int) -> None:
        self._progress, self._output = progress, output
        self._rounds = self._skipped = self._decoded = 0

    def watch(self, keys: Ahead | None) -> None:
        """Hear of the clustering of these."""
        if keys is not None:
            keys.watch(self.clustered)

    def clustered(self, rounds: int, of: int) -> None:
        """Notes that this many rounds are done."""
        self._rounds = of
        self._progress(rounds, of + self._output)

    def decoded(self, tokens: int) -> None:
        """Notes the tokens that there are by now, besides skipped ones."""
        self._decoded = tokens
        if tokens % _EVERY_TOKENS == 0 or tokens + self._skipped == self._output:
            self._tell()

    def skipped(self, tokens: int) -> None:
        """Notes that this many tokens more were skipped."""
        self._skipped += tokens
        self._tell()

    def _tell(self) -> None:
        self._progress(self._rounds + self._skipped + self._decoded, self._rounds + self._output)
