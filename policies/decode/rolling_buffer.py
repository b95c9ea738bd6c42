"""The rolling buffer: new KV entries that stay in memory until they make a full group (KVSwap 3.4.1)."""


class RollingBuffer:
    """Counts for a lock-step batch: every sequence gains one entry per step.

    ``tokens`` entries are in memory, which attention reads besides what was selected; ``first_unit`` is the group that
    they will be. The context's own last, incomplete group starts in here.
    """

    def __init__(self, context_tokens: int, group_tokens: int) -> None:
        if group_tokens < 1:
            raise ValueError(f"a group has a token at least, got {group_tokens}")
        self.group_tokens = group_tokens
        self.first_unit, self.tokens = divmod(context_tokens, group_tokens)

    def append(self) -> int | None:
        """One new entry per sequence; the group to write to storage when it is complete, else None."""
        self.tokens += 1
        if self.tokens < self.group_tokens:
            return None
        complete = self.first_unit
        self.first_unit, self.tokens = complete + 1, 0
        return complete
