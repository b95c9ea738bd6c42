"""The text that the bundled models learn from: Python's sources and documentation, without third-party parts.

Weights trained on a text are shipped with the project, so every text must allow it. Both sources stand under the
Python Software Foundation licence (the documentation's examples under the zero-clause BSD licence too). Files with
another party's notice are left out, and so is data from other sources.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# A copyright notice. Lines that name the foundation as owner or licensee do not count.
_NOTICE = re.compile(
    r"copyright|\(c\) *(19|20)\d\d|permission (to use|is hereby)|licen[sc]ed? (under|to)|redistribut|rights reserved|"
    r"spdx-|public domain|author: ",
    re.IGNORECASE,
)
_FOUNDATION = re.compile(r"python software foundation|licensed to psf", re.IGNORECASE)
# Folders and files that Debian's copyright file lists under other licences, vendored packages, tables made from other
# people's data (Unicode, HTML entities), and test data.
_LEFT_OUT = re.compile(
    r"(^|/)(tests?|idle_test|site-packages|dist-packages|_bundled|ensurepip|lib2to3|encodings|logging|multiprocessing|"
    r"sqlite3|async[^/]*|ctypes|xmlrpc|pydoc_data|turtledemo|msilib|entities\.py|stringprep\.py|_pydecimal\.py|"
    r"profile\.py|pstats\.py|cProfile\.py|uu\.py|_sysconfigdata[^/]*|config-[^/]*|trace\.py|license\.rst\.txt|copyright\.rst\.txt)(/|$)"
)
_HELD_OUT = 20  # one file in this many is held out


@dataclass(frozen=True)
class Corpus:
    """Bytes of the files to learn from and of those held out, and the names of both."""

    learnt: np.ndarray
    held_out: np.ndarray
    learnt_files: tuple[str, ...]
    held_out_files: tuple[str, ...]
    left_out_files: tuple[str, ...]


def corpus(stdlib: Path, documentation: Path) -> Corpus:
    """Read `stdlib` (Lib of CPython) and `documentation` (html/_sources of Debian's python3.11-doc).

    The same files give the same split: by a hash of the name.
    """
    sources = [("Lib", stdlib, "*.py"), ("Doc", documentation, "*.rst.txt")]
    parts: dict[str, list[tuple[str, bytes]]] = {"learnt": [], "held_out": []}
    left_out = []
    for label, folder, pattern in sources:
        for path in sorted(folder.rglob(pattern)):
            name = f"{label}/{path.relative_to(folder)}"
            content = path.read_bytes()
            if _LEFT_OUT.search(name) or not _unencumbered(content):
                left_out.append(name)
                continue
            held = int(hashlib.sha256(name.encode()).hexdigest(), 16) % _HELD_OUT == 0
            parts["held_out" if held else "learnt"].append((name, content))
    if not parts["learnt"]:
        raise SystemExit(f"no text found in {stdlib} and {documentation}")
    return Corpus(
        _joined(parts["learnt"]),
        _joined(parts["held_out"]),
        tuple(name for name, _ in parts["learnt"]),
        tuple(name for name, _ in parts["held_out"]),
        tuple(left_out),
    )


def _unencumbered(content: bytes) -> bool:
    """Whether the text has no copyright notice except the foundation's."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(_NOTICE.search(line) and not _FOUNDATION.search(line) for line in text.splitlines())


def _joined(files: list[tuple[str, bytes]]) -> np.ndarray:
    return np.frombuffer(b"\n".join(content for _, content in files), np.uint8)
