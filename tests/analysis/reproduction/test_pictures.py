"""What the pictures of claims show."""

from typing import Any

from kvferry.analysis.reproduction.pictures import claims_picture


def claim(name: str, printed: float, ours: float) -> dict[str, Any]:
    ends = {"paper_low": printed, "paper_high": printed, "ours": ours, "ours_range": None}
    return {"id": name, "statistic": "value", "verdict": "miss", "fitted": False, **ends}


def test_what_is_far_off_is_an_arrow_at_the_edge() -> None:
    axis = claims_picture([claim("near", 2.0, 4.0), claim("low", 1e9, 1.0), claim("high", 1.0, 50.0)]).axes[0]
    points = [line for line in axis.lines if len(line.get_xdata()) == 1]
    marks = {line.get_marker(): float(line.get_xdata()[0]) for line in points}
    assert (marks["X"], marks["<"], marks[">"]) == (2.0, 1 / 32, 32.0)
    assert [text.get_text() for text in axis.texts] == ["1e-09", "5e+01"]
    # The axis goes no further.
    left, right = axis.get_xlim()
    assert 1 / 64 < left < 1 / 32 and 32 < right < 64
