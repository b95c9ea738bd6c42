"""Stores whose bytes were changed, also where every checksum fits: they are read, or refused as damaged."""

import zlib
from pathlib import Path
from random import Random

import numpy as np
from damage import damaged
from seeds import blocks, check_each

from kvferry.cloud.store import Store, StoredModel, StoreHeader, StoreWriter
from kvferry.codecs.codec import decode, encode
from kvferry.specs.errors import KvferryError

HERE = "tests/fuzz/test_stores.py"
MODEL = StoredModel(name="tiny", fingerprint="f", tokenizer="bytes", layers=2, kv_heads=2, head_dim=4)
TRAILER_BYTES = 28


def store(path: Path, codec: str) -> None:
    header = StoreHeader.at_all_levels(MODEL, [5, 2], codec)
    rng = np.random.default_rng(0)
    with StoreWriter(path, header, range(7)) as writer:
        for t, tokens in enumerate(header.tokens):
            for place in np.ndindex(MODEL.layers, MODEL.kv_heads, header.levels):
                l, h, level = map(int, place)
                writer.put(t, l, h, encode(codec, *rng.standard_normal((2, tokens, 4)), level=level), level)


def signed(chance: Random, content: bytes) -> bytes:
    """The content with its table damaged and the trailer made to fit, as an attacker would."""
    table_bytes = int.from_bytes(content[-TRAILER_BYTES:][:8], "little")
    chunks, table = content[: -TRAILER_BYTES - table_bytes], content[-TRAILER_BYTES - table_bytes : -TRAILER_BYTES]
    table = damaged(chance, table)
    trailer = len(table).to_bytes(8, "little") + zlib.crc32(table).to_bytes(4, "little") + content[-16:]
    return chunks + table + trailer


@blocks(quick=150, long=6000, size=150)
def test_damaged_stores(seeds: range, tmp_path: Path) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        path = tmp_path / f"{seed}.kvs"
        codec = chance.choice(["fp16", "huffman"])
        store(path, codec)
        content = path.read_bytes()
        path.write_bytes(signed(chance, content) if chance.random() < 0.7 else damaged(chance, content))
        try:
            with Store(path) as opened:
                t, l, h = opened.index.header.shape
                for data in opened.read(range(min(t * l * h, 100))):
                    decode(data)
        except KvferryError as error:
            return None if str(error).isprintable() or "\n" in str(error) else f"control characters: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            path.unlink()
        return None

    check_each(seeds, f"{HERE}::test_damaged_stores", case)
