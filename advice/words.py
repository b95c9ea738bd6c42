"""Words of a shell."""

from shlex import quote

# Control characters as bash reads them back.
_ESCAPED = {n: f"\\x{n:02x}" for n in (*range(0x20), 0x7F)}


def word(text: str) -> str:
    """The text as one word of a shell, in one line and with nothing that a terminal obeys."""
    if text.isprintable():
        return quote(text)
    return "$'{}'".format(text.replace("\\", r"\\").replace("'", r"\'").translate(_ESCAPED))
