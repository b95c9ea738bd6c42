"""Recorded conversations: who goes on with whom, and what is refused with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.specs.errors import InputError
from kvferry.specs.session import SessionSpec
from kvferry.traces import format as on_disk
from kvferry.traces.json_lines import objects
from kvferry.traces.request_log import read_log
from kvferry.traces.turn import Turns
from kvferry.traces.turn_logs import read_recorded
from kvferry.traces.turns import turns_of


def written(folder: Path, *rows: Any, name: str = "log.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def asked(stamp_ms: int, prompt: int, output: int, *ids: int) -> dict[str, Any]:
    return {"timestamp": stamp_ms, "input_length": prompt, "output_length": output, "hash_ids": list(ids)}


def turns(path: Path, n: int, **more: Any) -> Turns:
    return turns_of(SessionSpec(kind="session", trace=str(path), turns=n, **more), seed=1)


# Block 0 is common to all. The second goes on with the first, whose own last whole block is 1; the fourth with nobody:
# the third consists of the common block alone.
MOONCAKE = (
    asked(1000, 1100, 100, 0, 1, 2),
    asked(3000, 1700, 10, 0, 1, 3, 4),
    asked(4000, 600, 5, 0, 9),
    asked(5000, 1030, 5, 0, 7, 8),
)


def test_turns_are_told_by_hash_ids(tmp_path: Path) -> None:
    found = turns(written(tmp_path, *MOONCAKE), 4)
    assert [[turn.prompt for turn in stream] for stream in found.streams] == [[1100, 1700], [600], [1030]]
    assert found.block == 512
    (first, second), *_ = found.streams
    assert (first.due_s, second.due_s) == (0.0, 2.0)
    # Whole blocks: 2 of the prompt, and with its answer 2 of 1,200 tokens; the next prompt has them.
    assert (first.blocks, first.leaves, second.blocks) == ((0, 1), (0, 1), (0, 1, 3))


def test_conversations_are_drawn_whole(tmp_path: Path) -> None:
    found = turns(written(tmp_path, *MOONCAKE), 2)
    assert len(found) == 2
    assert found == turns(tmp_path / "log.jsonl", 2)


def test_rows_of_its_own_share_documents(tmp_path: Path) -> None:
    table = written(
        tmp_path,
        "arrival,conversation,document,context,question,output",
        "0,a,manual,600,20,30",
        "5,b,manual,600,10,10",
        "9,a,,,40,10",
        name="log.csv",
    )
    first, second = turns(table, 3, block=100).streams
    assert [(turn.prompt, turn.output, turn.due_s) for turn in first] == [(620, 30, 0.0), (690, 10, 9.0)]
    assert second[0].blocks[:6] == first[0].blocks[:6]
    assert first[1].blocks == first[0].leaves
    lines = written(tmp_path, {"arrival": 0, "conversation": "a", "question": 20, "output": 30})
    assert turns(lines, 1).numbered[0].prompt == 20


def test_requests_are_conversations_of_one_turn(tmp_path: Path) -> None:
    azure = written(
        tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46,374,44", "2023-11-16 18:15:50,396,109"
    )
    assert [(t.prompt, t.output, t.due_s) for t in turns(azure, 2).numbered] == [(374, 44, 0.0), (396, 109, 4.0)]


def test_burstgpts_sessions_are_conversations(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "\ufeffTimestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,one,2,ChatGPT,100,20,120,Conversation log",
        "9,two,2,ChatGPT,300,10,310,Conversation log",
        "20,one,2,ChatGPT,150,30,180,Conversation log",
        "25,one,2,ChatGPT,0,0,0,Conversation log",
        "30,one,2,ChatGPT,179,10,189,Conversation log",
        "40,,2,GPT-4,50,5,55,API log",
        "41,,2,GPT-4,60,5,65,API log",
        "50,one,2,ChatGPT,189,1,190,Conversation log",
        name="burst.csv",
    )
    # The fifth row is a token shorter than what the third one left, and the last goes on with it.
    found = [
        [(one.arrival_s, one.prompt) for one in conversation] for conversation in read_recorded(path).conversations
    ]
    assert found == [[(5, 100), (20, 150)], [(9, 300)], [(30, 179), (50, 189)], [(40, 50)], [(41, 60)]]
    first, second = turns(path, 7).streams[0]
    assert (first.due_s, second.due_s, second.conversation) == (0.0, 15.0, first.conversation)


@pytest.mark.parametrize("indent", [None, 2])
def test_a_large_log_is_read_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None
) -> None:
    """ShareGPT's file has 670 MB: the conversations that are whole in what is read."""
    said = [{"from": "human", "value": "a\u2028b" * 4}, {"from": "gpt", "value": "a" * 40}]
    whole = json.dumps([{"conversations": said}] * 3, indent=indent, ensure_ascii=False)
    path = written(tmp_path, whole, name="share.json")
    three, n_bytes = read_recorded(path), len(whole.encode())
    assert len(three.conversations) == 3 and not three.notes
    for most in range(n_bytes // 2, n_bytes - 4):
        monkeypatch.setattr(on_disk, "MAX_BYTES", most)
        found = read_recorded(path)
        assert found.conversations == three.conversations[: len(found)], most
        assert found.notes and turns(path, 1).notes == found.notes
    assert len(found) == 2
    path.write_text(whole.replace("human", 'human" "', 1))
    with pytest.raises(InputError, match="not JSON"):
        read_recorded(path)


def test_a_large_table_is_read_from_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{n},100,10" for n in range(100)]
    path = written(tmp_path, "Timestamp,Request tokens,Response tokens", *rows, name="burst.csv")
    monkeypatch.setattr(on_disk, "MAX_BYTES", 41 + 9 * 5 + 4)
    assert len(read_recorded(path)) == 5
    assert read_log(path, first=3, most=100, question=1).notes[-1].startswith("burst.csv: of this large log the first")
    with pytest.raises(InputError, match="say with workload.requests how many to take of its beginning"):
        read_log(path, most=100, question=1)


def test_texts_have_lengths_and_no_times(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 20}]
    log = written(tmp_path, [{"conversations": [*said, *said]}, {"conversations": said}], name="sharegpt.json")
    found = turns(log, 3, think_s=7.0, pause_s=0.0)
    assert [(t.prompt, t.output, t.due_s, t.after_s) for t in found.numbered] == [
        (10, 5, None, 0.0),
        (25, 5, None, 7.0),
        (10, 5, None, 0.0),
    ]


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ((asked(0, 1100, 1, 0, 1),), ":1: 2 hash ids for 1,100 tokens; 3 would do, as a block has 512"),
        ((asked(0, 0, 1),), ":1: input_length of 0 tokens; a whole number from 1 on would do"),
        ((asked(0, 600, 0, 0, 1),), ":1: output_length of 0 tokens"),
        ((asked(9, 9, 1, 0), asked(5, 9, 1, 1)), ":2: timestamp 5 ms comes before that of the line before"),
        (
            (asked(0, 1024, 1, 0, 1), asked(1, 1024, 1, 2, 1)),
            ":2: hash id 1 stands behind 2 here, and behind 0 in line 1",
        ),
        ((asked(0, 1024, 1, 0, 0),), ":1: hash id 0 stands behind 0 here, and first in line 1"),
        ((asked(0, 9, 1, -4),), r":1: hash_ids \[-4\] is no list of whole numbers"),
        (
            ({"timestamp": "x", "input_length": 9, "output_length": 1, "hash_ids": [0]},),
            ":1: timestamp 'x' is no number",
        ),
        (('{"hash_ids": [', "}"), ":1: not JSON"),
        ((f'{{"hash_ids": [{"1" * 5000}]}}', ""), ":1: not JSON: a number of thousands of digits"),
        ((f"[{'1' * 5000}]", ""), ":1: not JSON: a number of thousands of digits"),
        (("[1]", ""), ": entry 1: has no list of `conversations`"),
        (("arrival,conversation,question,output", "0,a,5"), ":2: no output; a turn has arrival, conversation"),
        (
            ("arrival,conversation,question,output", "5,a,5,5", "1,a,5,5"),
            ":3: turn 2 of conversation 'a' comes before turn 1, in line 2",
        ),
        (("arrival,conversation,question,output", "0,a,0,5"), ":2: question of 0 tokens"),
    ],
)
def test_a_log_is_refused_with_its_line(tmp_path: Path, rows: tuple[Any, ...], what: str) -> None:
    with pytest.raises(InputError, match=what):
        read_recorded(written(tmp_path, *rows))


def test_a_log_of_too_few_turns_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds 4 turns, workload\.turns asks for 5"):
        turns(written(tmp_path, *MOONCAKE), 5)
    with pytest.raises(InputError, match="its hash ids are of blocks of 512 tokens; leave workload.block out"):
        turns(tmp_path / "log.jsonl", 4, block=256)


def test_a_mark_of_byte_order_is_no_part_of_the_first_line() -> None:
    assert list(objects(Path("log.jsonl"), ["\ufeff{}"])) == [(1, {})]
