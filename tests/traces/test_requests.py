"""Requests over time: drawn, recorded, about shared contexts."""

import re
import shlex

import numpy as np
import pytest
import yaml

from kvferry.specs.errors import InputError
from kvferry.specs.workload import ContextReuseSpec, DecodeSpec
from kvferry.traces.request import Request
from kvferry.traces.request_log import read_log, read_requests
from kvferry.traces.requests import context_requests, decode_log, decode_requests

OURS = "arrival,context,question,output\n10.5,1000,20,5\n12.0,500,30,7\n"
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""


def reuse(**values):
    return ContextReuseSpec(kind="context-reuse", context=values.pop("context", 1000), **values)


def written(tmp_path, text):
    path = tmp_path / "requests.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        (OURS, [Request(0.0, 1000, 5, 20), Request(1.5, 500, 7, 30)]),
        ("arrival_s,context,output\n3,7,1\n", [Request(0.0, 7, 1, 64)]),
        (AZURE, [Request(0.0, 4808, 10, 64), Request(0.052, 3180, 8, 64)]),
        # A request without an answer failed.
        (BURST, [Request(0.0, 472, 18, 64), Request(113.0, 417, 276, 64)]),
        ("arrival,context,output\n0,7,1\n1e-05,8,1\n", [Request(0.0, 7, 1, 64), Request(1e-5, 8, 1, 64)]),
        # In order of arrival, whatever the order in the file.
        ("arrival,context,output\n9,1,1\n7,2,2\n", [Request(0.0, 2, 2, 64), Request(2.0, 1, 1, 64)]),
    ],
)
def test_recorded_requests_of_every_format(tmp_path, text, requests):
    found = read_requests(written(tmp_path, text), most=10, question=64)
    assert [(r.context, r.output, r.question) for r in found] == [(r.context, r.output, r.question) for r in requests]
    assert [r.arrival_s for r in found] == pytest.approx([r.arrival_s for r in requests])


@pytest.mark.parametrize(
    ("text", "question", "notes"),
    [
        (OURS, 64, ()),
        (AZURE, 64, ("ContextTokens became the context, and 64 question tokens were added to each",)),
        (AZURE, 0, ("ContextTokens became the context",)),
        (
            BURST,
            0,
            (
                "Request tokens became the context",
                "1 of 3 rows have no tokens to read or none to answer; left out",
            ),
        ),
    ],
)
def test_what_a_log_was_taken_for_is_said(tmp_path, text, question, notes):
    found = read_log(written(tmp_path, text), first=1, most=10, question=question)
    assert found.notes == tuple(f"requests.csv: {one}" for one in notes)


@pytest.mark.parametrize("prompt", [DecodeSpec(kind="decode", context=1, trace="x"), reuse(trace="x")])
def test_runs_say_what_their_log_was_taken_for(tmp_path, prompt):
    asked = prompt.model_copy(update={"trace": str(written(tmp_path, BURST))})
    found = decode_log(asked, None, 0) if asked.kind == "decode" else context_requests(asked, 0)
    assert any("1 of 3 rows" in one for one in found.notes)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[{"id": "a", "conversations": []}]', "ShareGPT's conversations"),
        ('[\n{"id": "a"}]', "ShareGPT's conversations"),
        ('{"conversation": 1}', "JSON lines"),
    ],
)
def test_logs_of_conversations_are_refused_by_name(tmp_path, text, what):
    said = f"requests.csv:1: {what}, which a session reads: kvferry run session/day --set .*; single requests are read"
    with pytest.raises(InputError, match=said):
        read_requests(written(tmp_path, text), most=1, question=0)


def test_hints_can_be_typed(tmp_path):
    path = tmp_path / "it's, {a} log.json"
    path.write_text("[]")
    with pytest.raises(InputError) as error:
        read_requests(path, most=1, question=0)
    typed = re.search(r"kvferry run (.*); single", str(error.value))
    assert typed is not None
    _, _, setting = shlex.split(typed[1])
    assert yaml.safe_load(setting.removeprefix("workload=")) == {"kind": "session", "trace": str(path), "turns": 10}


def test_mooncakes_requests_by_themselves(tmp_path):
    """Milliseconds; what requests share is said to count elsewhere; one answers nothing."""
    line = '{"timestamp": %d, "input_length": %d, "output_length": %d, "hash_ids": [0]}\n'
    text = line % (3000, 6755, 500) + "\n" + line % (500, 7319, 490) + line % (4000, 5, 0)
    found = read_log(written(tmp_path, text), most=10, question=64)
    assert [(one.arrival_s, one.context, one.output, one.question) for one in found.requests] == [
        (0.0, 7319, 490, 64),
        (2.5, 6755, 500, 64),
    ]
    assert found.notes == (
        "requests.csv: input_length became the context, and 64 question tokens were added to each",
        "requests.csv: each request is by itself; a session (workload.kind) knows what they share (hash_ids)",
        "requests.csv: 1 of 3 rows have no tokens to read or none to answer; left out",
    )
    with pytest.raises(InputError, match=r"requests.csv:2: timestamp 'x' is no number"):
        read_log(written(tmp_path, line % (0, 1, 1) + line.replace("%d", '"x"')), most=10, question=0)


def test_no_more_are_read_than_asked_for(tmp_path):
    assert len(read_requests(written(tmp_path, OURS), first=1, most=1, question=0)) == 1


def test_more_than_a_run_may_have_are_never_cut_in_silence(tmp_path):
    with pytest.raises(InputError, match="2 requests; say with workload.requests how many to take, at most 1"):
        read_requests(written(tmp_path, OURS), most=1, question=0)
    path = written(tmp_path, "arrival,context,output\n" + "0,1,1\n" * 10_001)
    with pytest.raises(InputError, match="at most 10,000"):
        decode_requests(DecodeSpec(kind="decode", context=1, trace=str(path)), None, 0)


def test_a_header_of_no_format_is_shown_all_that_are_known(tmp_path):
    with pytest.raises(InputError, match="TIMESTAMP,ContextTokens.*; Timestamp,Request tokens,Response tokens$"):
        read_requests(written(tmp_path, "a,b\n1,2\n"), most=1, question=0)


def test_questions_end_prompts_and_are_asked_of_contexts(tmp_path):
    path = str(written(tmp_path, "arrival,context,question,output\n0,10,0,1\n1,10,5,1\n"))
    prompts = decode_requests(DecodeSpec(kind="decode", context=1, trace=path), None, 0)
    assert [one.context for one in prompts] == [10, 15]
    with pytest.raises(InputError, match="a question of 0 tokens"):
        context_requests(reuse(trace=path), seed=0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "requests.csv:1: '' is no header of recorded requests"),
        ("a,b\n1,2\n", "is no header of recorded requests; known are arrival,context,question,output"),
        ("arrival,context,output\n", "holds no request with tokens"),
        ("arrival,context,output\n1,2\n", "requests.csv:2: 2 columns"),
        ("arrival,context,output\n1,2,x\n", "requests.csv:2: output 'x' is not a number"),
        ("arrival,context,output\n1,2.5,3\n", "requests.csv:2: context 2.5 is no whole number"),
        ("arrival,context,output\nyesterday,2,3\n", "requests.csv:2: arrival 'yesterday' is neither"),
        ("arrival,context,output\nnan,2,3\n", "requests.csv:2: arrival 'nan' is neither"),
        ("arrival,context,output\n-1,2,3\n", "requests.csv:2: arrival '-1' is neither"),
        ("arrival,context,output\n1,2,3\n1e6,\x00,3\n", "requests.csv:3:"),
        ("arrival,context,output\n0,2,3\n99999999,2,3\n", "at most 10,000,000 s"),
    ],
)
def test_recorded_requests_that_are_wrong(tmp_path, text, fault):
    with pytest.raises(InputError) as error:
        read_requests(written(tmp_path, text), most=10, question=0)
    assert fault in str(error.value)


def test_a_workload_without_further_words_is_as_it_says():
    asked = context_requests(reuse(question=9, output=3, requests=2), seed=1)
    assert asked.contexts == (1000, 1000)
    assert asked.requests == (Request(0.0, 1000, 3, 9, 0), Request(0.0, 1000, 3, 9, 1))
    assert asked.closed


def test_contexts_are_chosen_by_zipfs_law():
    asked = context_requests(reuse(requests=20_000, contexts=4, zipf=1.0), seed=3)
    shares = np.bincount([one.source for one in asked.requests], minlength=4) / 20_000
    assert shares == pytest.approx(np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12), abs=0.01)
    # All requests about one context read the same one.
    spread = context_requests(reuse(requests=200, contexts=3, spread=0.8), seed=3)
    assert {(one.source, one.context) for one in spread.requests} == set(enumerate(spread.contexts))
    assert len(set(spread.contexts)) == 3


def test_lengths_are_lognormal_around_their_medians():
    asked = context_requests(reuse(requests=4001, spread=0.5, question=100, output=50), seed=5)
    for medians, lengths in ((1000, asked.contexts), (100, [r.question for r in asked.requests])):
        assert np.median(lengths) == pytest.approx(medians, rel=0.05)
        assert np.log(lengths).std() == pytest.approx(0.48, abs=0.02)  # 0.5, clipped at two deviations
    assert asked == context_requests(reuse(requests=4001, spread=0.5, question=100, output=50), seed=5)


def test_recorded_requests_stand_in_for_described_ones(tmp_path):
    path = str(written(tmp_path, OURS))
    asked = context_requests(reuse(trace=path), seed=0)
    assert asked.contexts == (1000, 500)
    assert [(one.source, one.output) for one in asked.requests] == [(0, 5), (1, 7)]
    assert not asked.closed
    decode = DecodeSpec(kind="decode", context=1, trace=path)
    assert [(one.context, one.output) for one in decode_requests(decode, None, 0)] == [(1020, 5), (530, 7)]
    assert len(decode_requests(decode, 1, 0)) == 1
