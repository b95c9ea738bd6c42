"""A model's dimensions and the bits of its weights from the header of a GGUF file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.specs.document import regular_file, shown
from kvferry.specs.errors import InputError, quoted_name
from kvferry.specs.node import Node, Place, node_of

if TYPE_CHECKING:
    from gguf import GGUFReader

# One of so many layers attends to all tokens, the others to a window (llama.cpp's set_swa_pattern of them).
_FULL_EVERY = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}
# Decoders of the kind that KVFerry models: attention over earlier tokens, a gated feed-forward network.
ARCHITECTURES = (
    "llama", "qwen2", "qwen3", "qwen3moe", "mistral3", "smollm3", "granite", "olmo2", "phi3", *_FULL_EVERY
)  # fmt: skip
# Numbers and texts in all lists of a header: a vocabulary of a quarter of a million with its merges has a million.
MOST_ENTRIES = 4_000_000
# Keys of a header, and tensors: the largest models have hundreds and thousands.
MOST_KEYS, MOST_TENSORS = 2_000, 20_000
_DIMENSIONS = {
    "layers": "block_count",
    "hidden": "embedding_length",
    "query_heads": "attention.head_count",
    "ffn": "feed_forward_length",
}


def gguf_at(path: Path) -> Path | None:
    """The GGUF file that a path means; None for anything else."""
    return path if path.suffix == ".gguf" and regular_file(path) is None else None


def gguf_node(file: Path) -> Node:
    """The model that a GGUF file holds, by its header alone. Raises InputError for a damaged file, or a model of a kind
    that KVFerry does not describe."""
    name = shown(file)
    reader = _opened(file)
    architecture = _text(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise InputError(f"{name}: general.architecture: {architecture!r} is not modelled; known: {known}")
    keys = {key.removeprefix(f"{architecture}."): key for key in reader.fields}
    if "attention.sliding_window" in keys and architecture not in _FULL_EVERY:
        what = f"attention within a sliding window is not modelled for {architecture}"
        raise InputError(f"{name}: {keys['attention.sliding_window']}: {what}; a model without one would do")

    def number(key: str) -> int | None:
        value = _contents(reader, f"{architecture}.{key}")
        return value if isinstance(value, int) else None

    dimensions = {own: number(theirs) for own, theirs in _DIMENSIONS.items()}
    vocabulary = reader.fields.get("tokenizer.ggml.tokens")
    dimensions["vocabulary"] = number("vocab_size") or (len(vocabulary.data) if vocabulary else None)
    experts = _experts(number)
    if experts:  # the dense network of a mixture without dense layers is nowhere used
        dimensions["ffn"] = dimensions["ffn"] or experts["ffn"]
    missing = next((key for key, value in dimensions.items() if not value), None)
    if missing is not None:
        theirs = _DIMENSIONS.get(missing, "vocab_size")
        raise InputError(f"{name}: {architecture}.{theirs}: is missing or not one whole number for all layers")
    heads, hidden = dimensions["query_heads"] or 1, dimensions["hidden"] or 1
    kv_heads = number("attention.head_count_kv") if "attention.head_count_kv" in keys else heads
    if not kv_heads:
        theirs = f"{architecture}.attention.head_count_kv"
        what = "is not one whole number for all layers" if kv_heads is None else "is 0"
        raise InputError(f"{name}: {theirs}: {what}; one whole number above 0 for all layers would do")
    model: dict[str, Any] = {
        **dimensions,
        "name": quoted_name(file.stem),
        "kv_heads": kv_heads,
        "head_dim": number("attention.key_length") or hidden // heads,
        **_bits(reader, name),
        "kv_value_bytes": 2.0,
        "stored": {"format": "GGUF"},
        "source": f"header of {quoted_name(file.name)}",
    }
    if experts:
        model["experts"] = experts
    if window := number("attention.sliding_window"):
        every, layers = _FULL_EVERY[architecture], dimensions["layers"] or 0
        model |= {"window": window, "full_layers": list(range(every - 1, layers, every))}
    return node_of(model, Place(name, None, file.parent))


def gguf_context(file: Path) -> int | None:
    """Returns the longest context, in tokens, that a GGUF file says; None: it says none. Raises InputError."""
    reader = _opened(file)
    longest = _contents(reader, f"{_text(reader, 'general.architecture')}.context_length")
    return longest if isinstance(longest, int) else None


def _opened(file: Path) -> "GGUFReader":
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError:
        raise InputError(f"{shown(file)}: GGUF files are read with: pip install '.[gguf]'") from None

    class Bounded(GGUFReader):  # type: ignore[misc]
        """A reader that gives up on lists that no model has, before it goes through them."""

        entries = 0

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY:
                self.entries += int(self._get(orig_offs + 4, "uint64")[0])
                if self.entries > MOST_ENTRIES:
                    raise ValueError(f"its lists have {self.entries:,} entries, more than {MOST_ENTRIES:,}")
            return super()._get_field_parts(orig_offs, raw_type)

        def _build_fields(self, offs: int, count: int) -> int:
            if count > MOST_KEYS:
                raise ValueError(f"its header has {count:,} keys, more than {MOST_KEYS:,}")
            return int(super()._build_fields(offs, count))

        def _build_tensor_info(self, offs: int, count: int) -> Any:
            if count > MOST_TENSORS:
                raise ValueError(f"it has {count:,} tensors, more than {MOST_TENSORS:,}")
            return super()._build_tensor_info(offs, count)

    problem = _head_of(file)
    if problem:
        raise InputError(f"{shown(file)}: {problem}")
    try:
        return Bounded(file)
    except (ValueError, IndexError, KeyError, OverflowError, RecursionError, OSError, MemoryError) as error:
        # It may have names of keys and tensors.
        what = quoted_name(str(error))[:120] or type(error).__name__
        if str(error).startswith(_PAST_THE_END):
            raise InputError(f"{shown(file)}: {_cut_short(file)}") from None
        raise InputError(f"{shown(file)}: not a whole GGUF file of version 2 or 3: {what}; download it again") from None


# How numpy and Python say that a file ends before what its header says it holds.
_PAST_THE_END = (
    "When changing to a larger dtype", "cannot reshape array", "index 0 is out of bounds", "cannot mmap",
    "not enough values to unpack",
)  # fmt: skip
_AGAIN = "convert the model again with llama.cpp's convert_hf_to_gguf.py"


def _cut_short(file: Path) -> str:
    return f"not a whole GGUF file: it is cut short ({file.stat().st_size:,} bytes): download it again"


def _head_of(file: Path) -> str | None:
    """Returns what is wrong with the file's mark, version and byte order, and what to do; None if nothing."""
    try:
        with file.open("rb") as opened:
            head = opened.read(8)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not b"GGUF".startswith(head[:4]):
        return "not a whole GGUF file: its magic is another; name the .gguf file of a model"
    if len(head) < 8:
        return _cut_short(file)
    version = int.from_bytes(head[4:], "little")
    if not version & 0xFFFF:
        return f"its numbers are big-endian, which is not read: {_AGAIN}"
    return None if version in (2, 3) else f"is GGUF version {version}; 2 and 3 are read: {_AGAIN}"


def _text(reader: "GGUFReader", key: str) -> str:
    value = _contents(reader, key)
    return value if isinstance(value, str) else ""


def _contents(reader: "GGUFReader", key: str) -> Any:
    field = reader.fields.get(key)
    try:
        return None if field is None else field.contents()
    except UnicodeDecodeError:
        return None


def _experts(number: Any) -> dict[str, int] | None:
    if not number("expert_count"):
        return None
    return {
        "routed": number("expert_count"),
        "active": number("expert_used_count"),
        "ffn": number("expert_feed_forward_length") or number("feed_forward_length"),
        "shared": number("expert_shared_count") or 0,
        "dense_layers": number("leading_dense_block_count") or 0,
    }


def _bits(reader: "GGUFReader", name: str) -> dict[str, Any]:
    """Mean bits of the layers' weights, and bits of embedding and output head, as the tensors of the file have them."""
    n_bytes = {"layers": 0, "token_embd.weight": 0, "output.weight": 0}
    weights = dict.fromkeys(n_bytes, 0)
    for tensor in reader.tensors:
        part = "layers" if tensor.name.startswith("blk.") else tensor.name
        if part in n_bytes:
            n_bytes[part] += int(tensor.n_bytes)
            weights[part] += int(tensor.n_elements)
    if not weights["layers"] or not weights["token_embd.weight"]:
        raise InputError(f"{name}: holds no weights of layers and embeddings; a whole model's file has them")
    bits = {part: 8 * n_bytes[part] / weights[part] for part in n_bytes if weights[part]}
    tied = "output.weight" not in bits
    return {
        "tied_embeddings": tied,
        "weight_bits": bits["layers"],
        "embedding_bits": bits["token_embd.weight"],
        **({} if tied else {"output_head_bits": bits["output.weight"]}),
    }
