"""Pages of KV in memory: what a sequence takes of them (vLLM)."""

# Tokens per page, as vLLM has it by default.
PAGE_TOKENS = 16


def pages_of(tokens: int) -> int:
    """Pages that a sequence of so many tokens takes."""
    return -(-tokens // PAGE_TOKENS)
