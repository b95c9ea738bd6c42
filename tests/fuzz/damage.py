"""Bytes and texts damaged as disks, editors and strangers do it."""

from random import Random

# What stands in files where something else should.
ODD_TEXTS = (
    "",
    "~",
    "true",
    "-1",
    "0",
    "1e400",
    ".nan",
    "-.inf",
    "0x",
    "0b",
    "1:30",
    "2020-13-40",
    "9" * 5000,
    "9" * 30,
    "1_000",
    "[]",
    "{}",
    "[[[[[[",
    "&a [*a]",
    "*a",
    "!!python/name:os.system",
    "'\x1b[31m'",
    '"\\e]0;title\\a"',
    "\u202e4 ms",
    "{? [a]: b}",
    "{1: 2}",
    "{~: 1}",
    "a\tb",
    "%",
    "4 ms",
    "-4 ms",
    "850 Mbit/s",
    "../../etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "~nobody/x",
    "x" * 300,
    "x" * 20_000,
    "\u0661\u0662",
)


def damaged(chance: Random, content: bytes) -> bytes:
    """The content cut, overwritten, repeated or filled, once or several times."""
    found = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(found) + 1)
        how = chance.randrange(6)
        if how == 0:
            del found[at:]
        elif how == 1:
            found[at : at + chance.randint(1, 40)] = chance.randbytes(chance.randint(0, 40))
        elif how == 2 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif how == 3:
            found[at:at] = found[at : at + chance.randint(1, 200)]
        elif how == 4:
            del found[at : at + chance.randint(1, 40)]
        else:
            found[at:at] = chance.choice(ODD_TEXTS).encode("utf-8", "surrogatepass")
    return bytes(found)


def damaged_lines(chance: Random, text: str) -> str:
    """A text of KEY: VALUE or comma-separated lines with some of its values odd, or lines moved."""
    lines = text.split("\n")
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at = chance.randrange(len(lines))
        line, how = lines[at], chance.randrange(5)
        separator = next((mark for mark in (": ", ",", " ") if mark in line), "")
        if how < 3 and separator:
            cells = line.split(separator)
            cells[chance.randrange(len(cells))] = chance.choice(ODD_TEXTS)
            lines[at] = separator.join(cells)
        elif how == 3:
            lines.insert(chance.randrange(len(lines) + 1), line)
        else:
            lines[at] = " " * chance.randint(0, 6) + line.lstrip()
    return "\n".join(lines)
