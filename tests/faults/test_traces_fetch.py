"""Fetching recorded traces from a server of our own on this machine: success, and every way it can fail."""

import hashlib
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import pytest
from typer.testing import CliRunner

from kvferry.cli.traces import app
from kvferry.specs.errors import InputError, KvferryError
from kvferry.traces import catalogue
from kvferry.traces.catalogue import FOLDER_VARIABLE, Entry, Source, fetch, recorded_trace

CONTENT = b"0.0 8\n1.0 16\n2.0 24\n"


class _Server(BaseHTTPRequestHandler):
    """Serves what `pages` holds; "cut" announces more than it sends."""

    def do_GET(self):
        page = self.server.pages.get(self.path)
        if page is None:
            self.send_error(404)
            return
        self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(page) * (2 if "cut" in self.path else 1)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    server.pages, server.asked = {}, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    # A proxy of the machine's must not come between.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


def offer(monkeypatch, server, at="there/log.txt", archive=None, content=CONTENT, address=True, missing=""):
    """A catalogue of one trace on that server."""
    entry = Entry(
        about="x",
        file="deep/log.txt",
        at=at,
        sha256=hashlib.sha256(content).hexdigest(),
        reader="stamped",
        trim_s=(1, None),
    )
    source = Source(
        about="x",
        home="x",
        licence="x",
        address=f"http://127.0.0.1:{server.server_port}/" if address else None,
        archive=archive,
        missing=missing,
        traces={"one": entry},
    )
    monkeypatch.setattr(catalogue, "sources", lambda: {"src": source})
    monkeypatch.setattr(catalogue, "catalogue", lambda: {"one": ("src", entry)})


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_trace_is_fetched_once_and_read_as_the_catalogue_says(monkeypatch, server, folder):
    server.pages["/there/log.txt"] = CONTENT
    offer(monkeypatch, server)
    with pytest.raises(InputError, match="kvferry traces fetch one"):
        recorded_trace("one")
    path = fetch("one")
    assert path == folder / "src" / "deep" / "log.txt"
    assert path.read_bytes() == CONTENT
    assert files(folder) == ["src/deep/log.txt"]
    assert recorded_trace("one").rates.tolist() == [2e6, 3e6]
    fetch("one")
    assert server.asked == ["/there/log.txt"]


def test_one_file_comes_out_of_an_archive(monkeypatch, server, folder):
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("set/Download/log.txt", CONTENT)
        archive.writestr("set/Upload/log.txt", b"another")
        archive.writestr("../../evil.txt", b"evil")
    server.pages["/set.zip"] = buffer.getvalue()
    offer(monkeypatch, server, at="Download/log.txt", archive="set.zip")
    assert fetch("one").read_bytes() == CONTENT
    assert files(folder) == ["src/deep/log.txt"]


@pytest.mark.parametrize("members", [{}, {"a/log.txt": CONTENT, "b/log.txt": CONTENT}, {"a/log.txt": b"other"}])
def test_an_archive_without_just_that_file_is_refused(monkeypatch, server, folder, members):
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    server.pages["/set.zip"] = buffer.getvalue()
    offer(monkeypatch, server, at="log.txt", archive="set.zip")
    with pytest.raises(KvferryError, match=r"could not be fetched"):
        fetch("one")
    assert files(folder) == []


def test_what_has_another_hash_is_not_kept(monkeypatch, server, folder):
    server.pages["/there/log.txt"] = CONTENT + b"3.0 8\n"
    offer(monkeypatch, server)
    with pytest.raises(KvferryError, match="could not be fetched.*hash"):
        fetch("one")
    assert files(folder) == []


def test_an_interrupted_download_leaves_nothing(monkeypatch, server, folder):
    server.pages["/cut/log.txt"] = CONTENT
    offer(monkeypatch, server, at="cut/log.txt")
    with pytest.raises(KvferryError, match="could not be fetched"):
        fetch("one")
    assert files(folder) == []


def test_ctrl_c_leaves_nothing(monkeypatch, server, folder):
    server.pages["/there/log.txt"] = CONTENT
    offer(monkeypatch, server)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("requests.models.Response.iter_content", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("one")
    assert files(folder) == []


def test_a_server_without_the_file_and_one_that_is_gone(monkeypatch, server, folder):
    offer(monkeypatch, server)
    with pytest.raises(KvferryError, match="404.*Or put the file at"):
        fetch("one")
    server.shutdown()
    server.server_close()
    with pytest.raises(KvferryError, match="could not be fetched"):
        fetch("one")
    assert files(folder) == []


def test_one_failure_does_not_keep_the_others(monkeypatch, server, folder):
    server.pages["/there/log.txt"] = CONTENT
    offer(monkeypatch, server)
    (name, entry), good = catalogue.catalogue()["one"], catalogue.sources()["src"]
    entries = {"gone": entry.model_copy(update={"at": "gone", "file": "gone"}), "one": entry}
    monkeypatch.setattr(catalogue, "catalogue", lambda: {key: (name, one) for key, one in entries.items()})
    monkeypatch.setattr(catalogue, "sources", lambda: {name: good})
    with pytest.raises(KvferryError, match="'gone' could not be fetched"):
        CliRunner().invoke(app, ["fetch", "--all"], catch_exceptions=False)
    assert files(folder) == ["src/deep/log.txt"]


def test_a_flood_is_cut_off(monkeypatch, server, folder):
    server.pages["/there/log.txt"] = CONTENT * 10_000
    offer(monkeypatch, server)
    monkeypatch.setattr(catalogue, "_MAX_DOWNLOAD_BYTES", 70_000)
    with pytest.raises(KvferryError, match="more than 70,000 bytes"):
        fetch("one")
    assert files(folder) == []


def test_a_trace_without_an_address_says_why(monkeypatch, server, folder):
    offer(monkeypatch, server, at=None, address=False, missing="It is a transcript.")
    with pytest.raises(InputError, match="no address .* It is a transcript. Put the file at"):
        fetch("one")


def test_another_file_of_that_name_is_not_used(monkeypatch, server, folder):
    offer(monkeypatch, server)
    path = folder / "src" / "deep" / "log.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0 1\n1 1\n")
    for use in (fetch, recorded_trace):
        with pytest.raises(InputError, match="not the file that the catalogue means"):
            use("one")
    assert path.read_bytes() == b"0 1\n1 1\n"
