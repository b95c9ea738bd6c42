"""Recorded conversations: Mooncake's traces with their hash ids, ShareGPT, request logs, and this project's own files.

Nothing read is trusted: files and numbers are bounded, and an error names file and line. Where a log does not say which
requests are turns of one conversation, each is a conversation of its own.
"""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from kvferry.specs.errors import InputError
from kvferry.traces.format import MAX_DURATION_S, first_line, note_of_cut, read_beginning
from kvferry.traces.json_lines import number_at, objects, tokens_at, why_not_json
from kvferry.traces.request_log import MOST_RECORDED, log_seconds, read_requests

# Mooncake's hash ids are of blocks of this many tokens (FAST '25, its traces' README).
MOONCAKE_BLOCK = 512
# Without a tokenizer: bytes of text per token, as in English.
_BYTES_PER_TOKEN = 4
_OWN = ("arrival", "conversation", "question", "output")
# BurstGPT's releases from 2.0 on name the session of each request of a conversation.
_BURSTGPT_SESSION = "Session ID"
_BLANK = re.compile(r"\s*")


class Logged(NamedTuple):
    """A turn as a log has it. ``ids``: hash ids of its prompt's whole blocks; None: it has none. ``shared``: what its
    conversation begins with, by name, and how many tokens that are."""

    line: int
    arrival_s: float | None
    prompt: int
    output: int
    ids: tuple[int, ...] | None = None
    shared: tuple[str, int] = ("", 0)


Conversation = list[Logged]


@dataclass(frozen=True)
class Recorded:
    """Conversations of a log, in the order of their first turns. ``block``: of its hash ids; None: it has none."""

    conversations: tuple[Conversation, ...]
    block: int | None
    timed: bool
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.conversations))


def read_recorded(path: Path) -> Recorded:
    """Returns a log's conversations, whichever format it has. Raises InputError."""
    lines, cut = read_beginning(path)
    found = _conversations(path, lines, cut=cut)
    return replace(found, notes=(note_of_cut(path),)) if cut else found


def _conversations(path: Path, lines: Sequence[str], *, cut: bool) -> Recorded:
    first = first_line(lines)
    if first.startswith("["):
        return _sharegpt(path, lines, cut=cut)
    if first.startswith("{"):
        return _mooncake(path, lines) if "hash_ids" in first else _own_lines(path, lines)
    if "conversation" in first.split(","):
        return _own_table(path, lines)
    if _BURSTGPT_SESSION in first.split(","):
        return _burstgpt(path, lines)
    found = read_requests(path, first=MOST_RECORDED, most=MOST_RECORDED, question=0)
    alone = ([Logged(0, one.arrival_s, one.context + one.question, one.output)] for one in found)
    return Recorded(tuple(alone), None, timed=True)


# --- formats ---------------------------------------------------------------------------------------------------------


def _mooncake(path: Path, lines: Sequence[str]) -> Recorded:
    """`timestamp` in ms, `input_length`, `output_length` and `hash_ids`. A request goes on with the latest one whose
    last whole block it has, if that block was that one's own, and it is as long as prompt and answer together."""
    found: list[Logged] = []
    behind: dict[int, tuple[int | None, int]] = {}
    ends: dict[int, int] = {}
    conversation_of: list[Conversation] = []
    conversations: list[Conversation] = []
    taken: set[int] = set()
    for line, row in objects(path, lines):
        stamp_ms = number_at(path, line, row, "timestamp", MAX_DURATION_S * 1e3)
        prompt, output = (tokens_at(path, line, row, key) for key in ("input_length", "output_length"))
        ids = row.get("hash_ids")
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**53 for one in ids):
            raise InputError(f"{path}:{line}: hash_ids {ids!s:.40} is no list of whole numbers")
        wanted = -(-prompt // MOONCAKE_BLOCK)
        if len(ids) != wanted:
            what = f"{len(ids):,} hash ids for {prompt:,} tokens; {wanted:,} would do, as a block has {MOONCAKE_BLOCK}"
            raise InputError(f"{path}:{line}: {what}")
        if found and stamp_ms < 1e3 * (found[-1].arrival_s or 0.0) - 1e-6:
            raise InputError(f"{path}:{line}: timestamp {stamp_ms:g} ms comes before that of the line before")
        n, whole = len(found), tuple(ids[: prompt // MOONCAKE_BLOCK])
        own = False
        for before, one in zip((None, *whole), whole, strict=False):
            own = one not in behind
            known, where = behind.setdefault(one, (before, line))
            if known != before:
                here, there = ("first" if one is None else f"behind {one}" for one in (before, known))
                what = f"hash id {one} stands {here} here, and {there} in line {where}"
                raise InputError(f"{path}:{line}: {what}; equal ids are equal beginnings")
        found.append(Logged(line, stamp_ms / 1e3, prompt, output, whole))
        earlier = next((ends[one] for one in reversed(whole) if one in ends and ends[one] not in taken), None)
        if earlier is not None and prompt >= found[earlier].prompt + found[earlier].output:
            taken.add(earlier)
            conversation_of.append(conversation_of[earlier])
        else:
            conversation_of.append([])
            conversations.append(conversation_of[-1])
        conversation_of[-1].append(found[-1])
        if own:
            ends[whole[-1]] = n
    if not found:
        raise InputError(f"{path}: holds no requests")
    return Recorded(tuple(conversations), MOONCAKE_BLOCK, timed=True)


def _sharegpt(path: Path, lines: Sequence[str], *, cut: bool) -> Recorded:
    """A list of {"conversations": [{"from": "human" or "gpt", "value": text}, ...]}. Lengths are bytes of UTF-8 over
    four; a log without times."""
    found: list[Conversation] = []
    for n, row in enumerate(_entries(path, "\n".join(lines), cut=cut), 1):
        said = row.get("conversations") if isinstance(row, dict) else None
        if not isinstance(said, list):
            raise InputError(f"{path}: entry {n}: has no list of `conversations`")
        turns: Conversation = []
        known = asked = 0
        for part in said:
            who, text = (part.get("from"), part.get("value")) if isinstance(part, dict) else (None, None)
            if not isinstance(text, str):
                raise InputError(f"{path}: entry {n}: a part without a `value` of text")
            tokens = -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)
            if who in ("gpt", "chatgpt", "assistant", "bard", "bing"):
                if asked and tokens:
                    turns.append(Logged(n, None, known + asked, tokens))
                    known, asked = known + asked + tokens, 0
            else:
                asked += tokens
        if turns:
            found.append(turns)
    if not found:
        raise InputError(f"{path}: holds no conversation with a question and an answer")
    return Recorded(tuple(found), None, timed=False)


def _entries(path: Path, text: str, *, cut: bool) -> Iterator[Any]:
    """Yields the entries of a list in JSON, without the one that was cut off. Its texts may have any line ends."""
    decoder, at = json.JSONDecoder(strict=False), text.index("[") + 1
    try:
        while True:
            at = _blank_end(text, at)
            if text[at : at + 1] == "]" and not text[at + 1 :].strip():
                return
            entry, at = decoder.raw_decode(text, at)
            at = _blank_end(text, at)
            if text[at : at + 1] == ",":
                at += 1
            elif text[at : at + 1] != "]":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            yield entry
    except (ValueError, RecursionError) as error:
        if cut and isinstance(error, json.JSONDecodeError) and _is_at_the_end(error):
            return
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}:{line}: not JSON: {why_not_json(error)}") from None


def _blank_end(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return at if blank is None else blank.end()


def _is_at_the_end(error: json.JSONDecodeError) -> bool:
    """Whether text only lacks what would come next: a value of at most so many letters, or the end of a string."""
    return error.msg.startswith("Unterminated string") or len(error.doc) - error.pos <= len("false")


def _burstgpt(path: Path, lines: Sequence[str]) -> Recorded:
    """`Timestamp`, `Session ID`, `Request tokens` and `Response tokens`. A request goes on with its session's last one
    if it is as long as prompt and answer together; a shorter one was cut or edited, and begins a conversation, as do
    requests without a session. Requests without tokens failed, and are left out."""
    rows: list[tuple[str, Logged]] = []
    for line, row in _table(path, lines):
        arrival_s = log_seconds(path, line, str(row.get("Timestamp") or ""))
        prompt, output = (tokens_at(path, line, row, f"{one} tokens", least=0) for one in ("Request", "Response"))
        if prompt and output:
            rows.append((str(row[_BURSTGPT_SESSION] or "")[:100], Logged(line, arrival_s, prompt, output)))
        if len(rows) == MOST_RECORDED:
            break
    if not rows:
        raise InputError(f"{path}: holds no request with tokens to read and to answer")
    found: list[Conversation] = []
    last_of: dict[str, Conversation] = {}
    for session, one in sorted(rows, key=lambda each: each[1].arrival_s or 0.0):
        last = last_of.get(session) if session else None
        if last is None or one.prompt < last[-1].prompt + last[-1].output:
            found.append([])
            last = last_of[session] = found[-1]
        last.append(one)
    return Recorded(tuple(found), None, timed=True)


def _own_lines(path: Path, lines: Sequence[str]) -> Recorded:
    return _own(path, objects(path, lines))


def _own_table(path: Path, lines: Sequence[str]) -> Recorded:
    return _own(path, _table(path, lines))


def _table(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, row by the header's names) of a CSV file."""
    reader = csv.DictReader(line.lstrip("\ufeff") for line in lines)
    try:
        for row in reader:
            yield reader.line_num, dict(row)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: {error}") from None


def _own(path: Path, rows: Iterator[tuple[int, dict[str, Any]]]) -> Recorded:
    """A row per turn: `arrival`, `conversation`, `question` and `output`; in a conversation's first row `context`, the
    tokens that it begins with, and `document`, a name by which conversations share them."""
    found: dict[str, Conversation] = {}
    for line, row in rows:
        if missing := next((key for key in _OWN if row.get(key) in (None, "")), None):
            raise InputError(f"{path}:{line}: no {missing}; a turn has {', '.join(_OWN)}")
        name = str(row["conversation"])[:100]
        arrival_s = log_seconds(path, line, str(row["arrival"]))
        question, output = (tokens_at(path, line, row, key) for key in ("question", "output"))
        before = found.setdefault(name, [])
        context = tokens_at(path, line, row, "context", least=0) if row.get("context") not in (None, "") else 0
        if before and context:
            raise InputError(f"{path}:{line}: context stands in the first row of conversation {name!r} alone")
        if before and arrival_s < (before[-1].arrival_s or 0.0):
            what = f"turn {len(before) + 1} of conversation {name!r} comes before turn {len(before)}"
            raise InputError(f"{path}:{line}: {what}, in line {before[-1].line}; sort them by arrival")
        known = before[-1].prompt + before[-1].output if before else context
        shared = before[0].shared if before else (str(row.get("document") or ""), context)
        before.append(Logged(line, arrival_s, known + question, output, None, shared))
    if not found:
        raise InputError(f"{path}: holds no turns")
    ordered = sorted(found.values(), key=lambda turns: (turns[0].arrival_s, turns[0].line))
    return Recorded(tuple(ordered), None, timed=True)
