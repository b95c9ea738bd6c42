"""Traces of arrays: whatever their bytes are, they are read, or refused with the file's name and a reason."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.arrays import (
    FORMAT,
    VERSION,
    check_replaced,
    check_writable,
    load_arrays,
    packed_arrays,
    peek_arrays,
    save_arrays,
)

TAG = np.array(json.dumps({"format": FORMAT, "version": VERSION, "kind": "keys"}))


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, array)
    return content.getvalue()


def with_header(header: str, version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + bytes(64)


def archive(path: Path, vectors: bytes, name: str = "vectors.npy", method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("tag.npy", npy(TAG))
        made.writestr(name, vectors)
    return path


def claiming(shape: str, dtype: str = "<f8") -> bytes:
    return with_header(f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}")


@pytest.mark.parametrize(
    ("vectors", "what"),
    [
        (claiming("(1000000000000,)"), "claims 1,000,000,000,000 values of 8 bytes and has 64 bytes"),
        (claiming(f"({2**70}, {2**70})"), "claims"),
        (claiming("(-8,)"), "claims"),
        (claiming("(8,)", "<f9"), "f9"),
        (claiming("(8,)", "|O"), "values of type object"),
        (claiming("(8,)", "<U0"), "values of type"),
        (claiming("8"), "shape"),
        (with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (8,"), ""),
        (with_header("\x00\x01\x02"), ""),
        (with_header("(" * 110), ""),
        (with_header("7"), "Header is not a dictionary"),
        (claiming("(8,)")[:6] + b"\x09\x00" + claiming("(8,)")[8:], "format (9, 0)"),
        (b"plain bytes, and no array", "magic string"),
        (b"", ""),
    ],
)
def test_what_is_no_array_is_refused_before_memory_is_taken(tmp_path: Path, vectors: bytes, what: str) -> None:
    path = archive(tmp_path / "x.npz", vectors)
    for read in (lambda: load_arrays(path, "keys", ["vectors"], lambda found: found), lambda: peek_arrays(path)):
        with pytest.raises(InputError) as error:
            read()
        assert str(path) in str(error.value)
        assert what in str(error.value)
        assert len(str(error.value)) < 400


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_what_numpy_does_not_pack_is_refused(tmp_path: Path, method: int) -> None:
    path = archive(tmp_path / "x.npz", npy(np.zeros(8)), method=method)
    with pytest.raises(InputError, match="packed in a way that numpy does not use"):
        load_arrays(path, "keys", ["vectors"], lambda found: found)


def test_an_entry_that_is_no_array_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="vectors.npy"):
        load_arrays(archive(tmp_path / "x.npz", b"bytes", "vectors"), "keys", ["vectors"], lambda found: found)


def test_no_damaged_byte_is_a_fault(tmp_path: Path) -> None:
    whole = packed_arrays("keys", vectors=np.arange(50.0))
    path = tmp_path / "x.npz"
    messages = []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        for read in (lambda: load_arrays(path, "keys", ["vectors"], np.sum), lambda: peek_arrays(path)):
            try:
                read()
            except InputError as error:
                messages.append(str(error))
    assert len(messages) > 100
    assert all(message.startswith(str(path)) for message in messages)


def test_the_same_arrays_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_arrays(tmp_path / name, "keys", vectors=np.arange(3))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert load_arrays(tmp_path / "a", "keys", ["vectors"], np.sum) == 3
    assert peek_arrays(tmp_path / "a") == ("keys", {"vectors": "int64[3]"})


def test_only_an_earlier_recording_of_the_kind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    check_replaced(path, "key", "keys")
    save_arrays(path, "keys", vectors=np.zeros(3))
    check_replaced(path, "key", "keys")
    with pytest.raises(InputError, match=r"key: .*x\.npz is no recording of selections, and would be lost"):
        check_replaced(path, "key", "selections")
    for foreign in (b"", b"mine", b"PK\3\4"):
        path.write_bytes(foreign)
        with pytest.raises(InputError, match=r"x\.npz is no recording of keys"):
            check_replaced(path, "key", "keys")


def test_a_look_whether_a_file_can_be_written_leaves_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "x.npz.part").write_text("mine")
    check_writable(tmp_path / "x.npz", "key")
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz.part"]
    assert (tmp_path / "x.npz.part").read_text() == "mine"
