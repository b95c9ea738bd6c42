"""The longest context that a model's file says."""

import json
from pathlib import Path

from gguf import GGUFWriter

from kvferry.scenarios.trained_context import trained_context


def test_a_files_own_context_is_the_longest_and_a_bundled_model_says_none(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "own.gguf", "llama")
    writer.add_context_length(2048)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert trained_context(str(tmp_path / "own.gguf")) == 2048
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 32768}}))
    assert trained_context(str(tmp_path)) == trained_context(str(tmp_path / "config.json")) == 32768
    (tmp_path / "config.json").write_text("{}")
    assert trained_context(str(tmp_path)) is None and trained_context("llama-3.2-1b") is None
