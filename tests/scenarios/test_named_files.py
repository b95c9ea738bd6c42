"""Files that scenarios name by path, and what tables call them."""

from pathlib import Path

from kvferry.scenarios.named_files import portable, portable_name


def test_files_are_called_by_content_and_other_texts_stay(tmp_path: Path) -> None:
    file = tmp_path / "walk.csv"
    file.write_text("0,1\n")
    texts = ["walk.csv", "/" + "a" * 5000, "/no/such/file", "/\0", f"{file}/below"]
    assert portable({"link": [str(file), *texts], "seed": 1}) == {"link": [portable_name(file), *texts], "seed": 1}
