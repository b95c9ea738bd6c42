"""Sequences that teach copying and retrieval: repeats, key-value recall, needles and lines to copy in text.

A task is bytes and, per byte, a weight in the loss: 0 for bytes drawn at random, 1 for bytes that repeat earlier ones.
Text between needles counts as text. Sequences have many questions each: one question at the end teaches too slowly.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LOWER, DIGITS = b"abcdefghijklmnopqrstuvwxyz", b"0123456789"
ALPHABETS = (
    bytes(range(256)),
    bytes(range(32, 127)),
    LOWER,
    LOWER.upper(),
    DIGITS,
    b"0123456789abcdef",
    LOWER + DIGITS,
)


@dataclass(frozen=True)
class Template:
    """The words of a fact and of its question; the answer follows the question, then `end`."""

    name: str
    fact: bytes
    question: bytes
    end: bytes = b"\n"


# Asked in the fact's own words: copying what followed the same words is enough.
SAME_WORDS = (
    Template("secret", b"The secret code of %(key)s is %(value)s.", b"The secret code of %(key)s is ", b"."),
    Template("assign", b"%(key)s = %(value)s", b"%(key)s = "),
    Template("remember", b"Remember this: %(key)s lives in %(value)s.", b"Remember this: %(key)s lives in ", b"."),
    Template("comment", b"# NOTE %(key)s: %(value)s", b"# NOTE %(key)s: "),
    Template("json", b'"%(key)s": "%(value)s",', b'"%(key)s": "', b'"'),
    Template("function", b"def get_%(key)s():\n    return %(value)s", b"def get_%(key)s():\n    return "),
)
# Asked in other words: the key alone leads back to the fact.
OTHER_WORDS = (
    Template(
        "question", b"The secret code of %(key)s is %(value)s.", b"Question: which code has %(key)s? Answer: ", b"."
    ),
    Template("assert", b"%(key)s = %(value)s", b"assert %(key)s == "),
    Template("lookup", b'"%(key)s": "%(value)s",', b'lookup("%(key)s") -> "', b'"'),
    Template("where", b"Remember this: %(key)s lives in %(value)s.", b"Where lives %(key)s? In ", b"."),
)
TEMPLATES = SAME_WORDS + OTHER_WORDS


class Writer:
    """Collects bytes and their weights in the loss."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.weights: list[np.ndarray] = []
        self.size = 0

    def add(self, piece: bytes, weight: float) -> None:
        self.pieces.append(piece)
        self.weights.append(np.full(len(piece), weight, np.float32))
        self.size += len(piece)

    def cut(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        ids = np.frombuffer(b"".join(self.pieces), np.uint8)[:size]
        return ids.astype(np.int64), np.concatenate(self.weights)[:size]


def word(random: np.random.Generator, shortest: int, longest: int, alphabet: bytes) -> bytes:
    letters = np.frombuffer(alphabet, np.uint8)
    return letters[random.integers(len(letters), size=int(random.integers(shortest, longest + 1)))].tobytes()


def fact(random: np.random.Generator) -> tuple[bytes, bytes]:
    """A key and a value, as identifiers, words or numbers."""
    key = word(random, 4, 9, LOWER)
    if random.random() < 0.3:
        key += b"_" + word(random, 2, 6, LOWER + DIGITS)
    value = word(random, 4, 8, (DIGITS, LOWER, b"0123456789abcdef")[random.integers(3)])
    return key, value


def repeats(random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random bytes, repeated later from a random place in them."""
    writer = Writer()
    while writer.size < size:
        alphabet = ALPHABETS[random.integers(len(ALPHABETS))]
        length = int(np.exp(random.uniform(np.log(8), np.log(max(16, min(size // 3, 700))))))
        said = word(random, length, length, alphabet)
        writer.add(said, 0.0)
        for _ in range(int(random.integers(1, 5))):
            begin = int(random.integers(0, length // 2)) if random.random() < 0.5 else 0
            # The starting place cannot be known, and the next two bytes hardly.
            lead = 0 if begin == 0 else 3
            writer.add(said[begin : begin + lead], 0.0)
            writer.add(said[begin + lead :], 1.0)
    return writer.cut(size)


def recall(random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """A list of facts in one template, then questions about them in any order, over and over."""
    writer = Writer()
    while writer.size < size:
        template = TEMPLATES[random.integers(len(TEMPLATES))]
        facts = [fact(random) for _ in range(int(np.exp(random.uniform(np.log(2), np.log(max(4, size / 100))))))]
        for key, value in facts:
            writer.add(template.fact % {b"key": key, b"value": value} + b"\n", 0.0)
        for n in random.integers(len(facts), size=int(random.integers(len(facts), 4 * len(facts) + 1))):
            _ask(writer, template, *facts[n])
    return writer.cut(size)


def needles(random: np.random.Generator, size: int, text: Callable[[int], bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Text with facts of several templates at random places; questions come in between and at the end."""
    writer = Writer()
    stated: list[tuple[Template, bytes, bytes]] = []
    share = random.uniform(0.3, 0.85)  # where the facts end and only questions follow
    stretch = random.uniform(20, max(60, size / 8))
    while writer.size < share * size:
        writer.add(text(int(random.exponential(stretch)) + 1) + b"\n", 0.5)
        template = TEMPLATES[random.integers(len(TEMPLATES))]
        key, value = fact(random)
        stated.append((template, key, value))
        writer.add(template.fact % {b"key": key, b"value": value} + b"\n", 0.0)
        if random.random() < 0.3:
            _ask(writer, *stated[random.integers(len(stated))])
    while writer.size < size:
        if random.random() < 0.15:
            writer.add(text(int(random.exponential(60)) + 1) + b"\n", 0.5)
        _ask(writer, *stated[random.integers(len(stated))])
    return writer.cut(size)


def copies(random: np.random.Generator, size: int, text: Callable[[int], bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Text with lines of random letters at random places; later a line's beginning comes, and its end bears loss."""
    writer = Writer()
    stated: list[bytes] = []
    share = random.uniform(0.3, 0.95)  # where the lines end and only copies follow
    stretch = random.uniform(20, max(60, size / 8))
    while not stated or writer.size < share * size:
        writer.add(text(int(random.exponential(stretch)) + 1), 0.5)
        alphabet = LOWER if random.random() < 0.6 else ALPHABETS[random.integers(len(ALPHABETS))]
        stated.append(word(random, 16, 60, alphabet))
        writer.add(b"\n" + stated[-1] + b"\n", 0.0)
    while writer.size < size:
        line = stated[random.integers(len(stated))]
        shown = int(random.integers(6, 2 * len(line) // 3 + 1))
        writer.add(line[:shown], 0.0)
        writer.add(line[shown:] + b"\n", 1.0)
    return writer.cut(size)


def _ask(writer: Writer, template: Template, key: bytes, value: bytes) -> None:
    writer.add(template.question % {b"key": key}, 0.0)
    writer.add(value + template.end, 1.0)
    if template.end != b"\n":
        writer.add(b"\n", 0.0)
