"""The security page says the bounds that the code has."""

import csv
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "security.md"
KIB, MIB = 2**10, 2**20


def bounds() -> dict[str, str]:
    """What each row of the table bounds, and at what."""
    table = PAGE.read_text().partition("| of | bound |\n|---|---|\n")[2].partition("\n\n")[0]
    return dict(re.fullmatch(r"\| (.+?) \| (.+) \|", row).groups() for row in table.splitlines())  # type: ignore[misc, union-attr]


def test_what_files_may_have() -> None:
    from kvferry.analysis import study_record, table_file
    from kvferry.api import archive
    from kvferry.calibration import journal
    from kvferry.cloud import store
    from kvferry.specs import document

    said = bounds()
    assert said["a store's index"] == f"{store.MOST_TABLE_BYTES // MIB} MiB, {store.MOST_ENTRIES:,} chunks times levels"
    assert said["a file of YAML"] == (
        f"{document.MOST_BYTES / 1e6:g} MB, {document.MOST_VALUES:,} values (an alias counts as all that it repeats), "
        f"{document.MOST_DEPTH} deep, {document.MOST_CHARACTERS:,} characters in one value"
    )
    assert said["a journal of a calibration"] == f"{journal._MOST_BYTES // MIB} MiB"
    most = (f"{one / 1e6:g} MB" for one in (archive.MOST_ENTRY_BYTES, archive.MOST_BYTES))
    assert said["an artefact"] == "{:,} files, {} in one, {} in all; names of {:,} bytes, {} in a part".format(
        archive.MOST_ENTRIES, *most, archive.MOST_NAME_BYTES, archive.MOST_PART_BYTES
    )
    assert said["its manifest, a sweep's provenance"] == f"{archive.MOST_MANIFEST_BYTES / 1e6:g} MB"
    assert archive.MOST_MANIFEST_BYTES == study_record._MOST_PROVENANCE_BYTES
    assert said["a table of results"] == (
        f"{table_file.MOST_ROWS:,} rows, {table_file.MOST_VALUES:,} values, "
        f"{table_file.MOST_TEXT_BYTES / 1e9:g} GB of text"
    )


def test_what_headers_and_conversations_may_have() -> None:
    from kvferry.scenarios import gguf_file
    from kvferry.specs import session

    text = PAGE.read_text().replace("\n  ", " ")
    assert (
        f"GGUF: {gguf_file.MOST_KEYS:,} keys, {gguf_file.MOST_TENSORS:,} tensors, {gguf_file.MOST_ENTRIES:,} " in text
    )
    assert bounds()["blocks of conversations"] == (
        f"{session.MOST_BLOCKS_PER_TURN:,} of a turn, {session.MOST_BLOCKS_PER_RUN:,} of all, with and without answers"
    )


@pytest.mark.torch
def test_what_servers_take() -> None:
    pytest.importorskip("uvicorn")
    from kvferry.cloud import chunk_ids, connections, guard, server

    said = bounds()
    assert said["connections of a server"] == (
        f"{connections.MOST_CONNECTIONS}; the longest idle makes room, else 503; "
        f"closed after {server.IDLE_S} s without a request"
    )
    assert said["head of a request"] == f"{guard.MOST_HEAD_BYTES // KIB} KiB and {connections.HEAD_S:g} s"
    assert said["a client that takes nothing"] == f"cut off after {connections.STALL_S:g} s"
    assert said["chunks in one request of `serve`"] == f"{chunk_ids.MOST_IDS:,}; bodies are refused"


@pytest.mark.torch
def test_what_a_cloud_and_its_devices_take_of_each_other() -> None:
    pytest.importorskip("uvicorn")
    from kvferry.backends.live.wire import caller, channel, event, reception, served_wires
    from kvferry.cloud import asked, messages
    from kvferry.pipelines.assist import verification as drafts
    from kvferry.policies.assist.prompt_mask import MOST_PROMPT_TOKENS

    said = bounds()
    most = f"{event.MOST_EVENT_BYTES // MIB} MiB"
    waiting = f"{channel.MOST_WAITING_BYTES // MIB} MiB"
    assert said["prompts and answers of `serve-cloud`"] == (
        f"{asked._OVER_THE_LONGEST} times the longest of its own scenario, {MOST_PROMPT_TOKENS:,} tokens at most"
    )
    assert said["one message of a device"] == (
        f"{asked._FRAME_BYTES // KIB} KiB, {asked._PROMPT_TOKEN_BYTES} bytes per token of such a prompt, "
        f"{asked._ANSWER_TOKEN_BYTES} per token of such an answer; {most} at most"
    )
    assert said["a message on its way"] == f"{reception.BODY_S:g} s"
    assert said["what waits for a device, and of it"] == (
        f"{reception._WAITING_MESSAGES} such messages each way, {waiting} at most (of it, as in memory); "
        "then its channel ends"
    )
    assert said["devices of `serve-cloud`"].startswith(f"{served_wires.MOST_CHANNELS}; the longest silent makes room")
    assert said["a device that drafts"] == (
        f"{drafts._DRAFTS_S:g} s between rounds; its slot is another's behind {drafts._SLOT_S:g} s of silence until it "
        f"drafts again, its memory behind {drafts._FIRST_DRAFTS_S:g} s before the first round and "
        f"{drafts._NEXT_DRAFTS_S:g} s behind each"
    )
    assert said["a cloud that its device asks"] == (
        f"{caller.ANSWER_S:g} s to let it in or take a message, {caller.SILENCE_S:g} s of silence; "
        f"{most} in one message, {waiting} unread"
    )
    assert said["what goes wrong in a cloud, as its device is told"] == (
        f"{messages._MOST_SAID} characters; {reception._MOST_SAID} of a message that is none"
    )


@pytest.mark.torch
def test_what_all_devices_may_have_at_once() -> None:
    pytest.importorskip("uvicorn")
    from kvferry.backends.live.wire import channel, event, reception, served_wires
    from kvferry.cloud import asked, connections

    # pd_device/live: prompts of 2Ki tokens, answers of 48.
    live_bytes = asked.Served.around(2048, 48).message_bytes
    waiting = (
        served_wires.MOST_CHANNELS * channel.MOST_WAITING_BYTES,
        (served_wires.MOST_CHANNELS * reception._WAITING_MESSAGES * live_bytes),
    )
    coming = connections.MOST_CONNECTIONS * event.MOST_EVENT_BYTES, connections.MOST_CONNECTIONS * live_bytes
    assert (
        f"at the largest scenario {served_wires.MOST_CHANNELS} may have {waiting[0] / 1e9:.1f} GB waiting each way, "
        "and "
        f"{connections.MOST_CONNECTIONS} connections {coming[0] / 1e9:.1f} GB of bodies on their way; at "
        f"`pd_device/live`, with messages up to {live_bytes / MIB:.2f} MiB, {waiting[1] / 1e6:.0f} and "
        f"{coming[1] / 1e6:.0f} MB."
    ) in PAGE.read_text().replace("\n", " ")


def test_no_cell_of_a_csv_file_is_a_formula() -> None:
    """Of those that are written into the documentation. A signed number is one that a spreadsheet may take."""
    for path in sorted(PAGE.parent.rglob("*.csv")):
        with path.open(newline="") as file:
            cells = [cell for row in csv.reader(file) for cell in row if cell.startswith(tuple("=+-@\t\r"))]
        assert [cell for cell in cells if not re.fullmatch(r"[+-][\d.,]+(e[+-]?\d+)? ?%?", cell)] == [], path
