"""The catalogue by itself: complete, consistent, and honest about what was never tried."""

import pytest

from kvferry.specs.errors import InputError
from kvferry.traces.catalogue import FOLDER_VARIABLE, Source, catalogue, folder, path_of, sources
from kvferry.traces.logs import READERS
from kvferry.traces.resolve import bundled


def test_every_entry_can_be_found_read_and_named():
    assert len(catalogue()) == 70 == sum(len(source.traces) for source in sources().values())
    assert len({entry.sha256 for _, entry in catalogue().values()}) == 70
    assert not set(catalogue()) & set(bundled())
    for name, (source_name, entry) in catalogue().items():
        source = sources()[source_name]
        assert entry.reader in READERS, name
        assert entry.near is None or entry.near in bundled(), name
        # Without an address there is a reason; with one, a pinned commit is in it.
        assert (source.address is None) == (entry.at is None) == bool(source.missing), name
        assert source.address is None or f"/{source.commit}/" in source.address, name


def test_no_address_is_called_verified():
    assert not any(source.verified for source in sources().values())


@pytest.mark.parametrize("file", ["../outside", "/etc/passwd", "a/../../b", "a//b", ""])
def test_an_entry_cannot_leave_its_folder(file):
    entry = {"about": "x", "file": file, "sha256": "0" * 64, "reader": "stamped"}
    with pytest.raises(ValueError, match="file"):
        Source.model_validate({"about": "x", "home": "x", "licence": "x", "traces": {"n": entry}})


def test_the_folder_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert path_of("solis-wifi-office-160949") == tmp_path / "solis-wifi" / "wifi_office_231114-160949.txt"
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert folder() == tmp_path / "cache" / "kvferry" / "traces"


def test_an_unknown_name_gets_the_nearest_and_not_all():
    with pytest.raises(InputError, match="Did you mean 'lte-att-driving'") as error:
        path_of("lte-at-driving")
    assert len(str(error.value)) < 200
