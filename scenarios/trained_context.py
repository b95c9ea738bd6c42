"""The longest context that a model was trained for, as the file that it comes from says."""

import json
from pathlib import Path

from kvferry.scenarios.gguf_file import gguf_at, gguf_context
from kvferry.scenarios.hugging_face import config_at
from kvferry.scenarios.library import names
from kvferry.specs.document import expanded, read_text


def trained_context(model: str) -> int | None:
    """Returns the tokens of the longest context of a model by its name or file; None: it is not known."""
    if model in names("model"):
        return None
    given = Path.cwd() / expanded(model)
    if (config := config_at(given)) is not None:
        found = json.loads(read_text(config))
        longest = {**found, **(found.get("text_config") or {})}.get("max_position_embeddings")
        return longest if isinstance(longest, int) else None
    file = gguf_at(given)
    return None if file is None else gguf_context(file)
