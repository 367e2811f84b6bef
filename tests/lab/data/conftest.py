"""A web server on this machine that can be made to misbehave, and a corpus small enough to serve."""

import hashlib
import io
import re
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from longshort.lab.data import CORPORA, Corpus, download


@dataclass
class Site:
    """What the server holds, how it behaves, and what it was asked for."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    announces: bool = True  # sends Content-Length
    cuts: list[int] = field(default_factory=list)  # bytes after which the next answers break off
    refusals: list[int] = field(default_factory=list)  # status codes of the next answers
    starts: list[int] = field(default_factory=list)  # first byte asked for, one for each request
    sent: int = 0


def handler(site):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            site.starts.append(int(asked[1]) if asked else 0)
            content = site.files.get(self.path)
            if content is None or site.refusals:
                return self.send_error(site.refusals.pop(0) if site.refusals else 404)
            start = site.starts[-1] if site.ranges else 0
            if start > len(content):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if site.announces:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:][: site.cuts.pop(0) if site.cuts else None]
            site.sent += len(body)
            return self.wfile.write(body)

        def log_message(self, *args):
            pass

    return Handler


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(site)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs=dict(poll_interval=0.01))
        thread.start()
        site.address = f"http://127.0.0.1:{server.server_port}"
        yield site
        server.shutdown()
        thread.join()


@pytest.fixture
def content():
    return np.random.default_rng(0).integers(97, 123, 300_001, dtype=np.uint8).tobytes()


@pytest.fixture
def tiny(site, content, monkeypatch):
    """A corpus of 300,001 bytes at the local server."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("tiny", content)
    packed = archive.getvalue()
    site.files["/tiny.zip"] = packed
    md5 = hashlib.md5(content).hexdigest()
    known = Corpus("tiny", f"{site.address}/tiny.zip", packed_size=len(packed), size=len(content), md5=md5)
    monkeypatch.setitem(CORPORA, "tiny", known)
    return known
