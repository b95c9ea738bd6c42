"""What intervals rest on, in words."""

from kvferry.analysis.sureness import how_sure


def test_what_not_all_rest_on_names_its_systems() -> None:
    storage, memory = ({"runtime": {"over": over}} for over in (["ideal", "kvswap-prototype"], ["ideal"]))
    both = {**memory, "runs": {"of": "one board"}}
    (line,) = how_sure([storage, both, both], ["kvswap", "vllm", "quest"])
    assert line == (
        "80 % intervals: kvswap: what it comes to on the known runtimes (ideal, kvswap-prototype);"
        " vllm, quest: what it comes to on the known runtimes (ideal); vllm, quest: errors of one board"
    )
    assert how_sure([memory, memory], ["a", "b"]) == ["80 % intervals: what it comes to on the known runtimes (ideal)"]
