"""The reference of keys that the documentation has: every record once, every link to one that is there."""

import re

from kvferry.scenarios.schema import scenario_schema
from kvferry.scenarios.schema_page import schema_page

PAGE = schema_page()


def _row(section: str, key: str) -> list[str]:
    part = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    (line,) = [line for line in part.splitlines() if line.startswith(f"| `{key}` |")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_rows_by_hand() -> None:
    assert _row("link", "on_end")[1:3] == ["`loop`, `hold`, `end`", "none"]
    assert _row("link", "instance")[2] == '`"own"`'
    assert _row("load", "share")[1:] == [
        "number, at least 0, below 1",
        "none",
        "The share of the processor's time that other programs use: 0.3 leaves 70 %.",
    ]
    assert _row("scenario", "system")[2] == "required"
    assert _row("scenario", "precision")[1] == "[precision](#precision)"
    assert _row("device", "processors")[1] == "by name: [device.processors](#deviceprocessors)"
    assert _row("link", "outages")[1] == "list of [link.outages](#linkoutages)"
    assert _row("link", "rate")[1] == "text such as `850 Mbit/s`"


def test_every_record_has_a_section_of_its_own_and_every_link_leads_to_one() -> None:
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert len(headings) == len(set(headings))
    named = set(scenario_schema()["$defs"])
    assert len(headings) >= len(named) - 1
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#(.*?)\)", PAGE)) <= anchors


def test_comments_of_fields_are_what_editors_show() -> None:
    properties = scenario_schema()["properties"]
    assert properties["coupling"]["description"].startswith("per_head: SparKV's Eq. 4-5.")
    parts = scenario_schema()["$defs"]
    # Of a record that extends another one, and under the name that a file has.
    assert "by name, or the path" in parts["LinkSpec"]["properties"]["trace"]["description"]
    assert parts["AssistSpec"]["properties"]["duration"]["description"].startswith("For how long requests come")


def test_every_key_of_a_scenario_file_is_explained() -> None:
    """Keys of a device or a model are a data sheet's; what a scenario says is explained, each key by itself."""
    not_explained = {"device", "engine", "model", "runtime"}
    for section in PAGE.split("\n## ")[1:]:
        title, *lines = section.splitlines()
        if title.split(".")[0] not in not_explained:
            rows = [line for line in lines if line.startswith("| `")]
            assert [row for row in rows if re.search(r"\| (a [a-z ]+ with its unit )?\|$", row)] == [], title


def test_what_is_none_in_python_is_absent_in_a_file() -> None:
    assert _row("scenario", "engine")[3].endswith("; absent: as the device says.")
    assert _row("scenario", "slo")[3].endswith("; absent: they are not.")
    assert _row("workload (assist)", "fault")[3] == "Absent: nothing goes wrong."
