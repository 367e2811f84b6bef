"""A download ends with the right file or with none, and never asks twice for what it has."""

import hashlib
import shutil
import sys
import threading
from types import SimpleNamespace

import pytest

from longshort.lab.data import DownloadError, download, fetch


@pytest.fixture
def get(site, content, tmp_path):
    """Fetches the file of the local server; keywords replace what is expected of it."""
    site.files["/file"] = content
    expected = dict(size=len(content), md5=hashlib.md5(content).hexdigest(), progress=False)
    return lambda name="file", **changes: fetch(f"{site.address}/{name}", tmp_path / "to", **expected | changes)


@pytest.fixture
def part(tmp_path):
    return tmp_path / "to.part"


def test_the_file_arrives_and_nothing_is_left_beside_it(get, content, tmp_path):
    assert get() == tmp_path / "to"
    assert (tmp_path / "to").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_a_file_that_is_there_is_not_asked_for(get, site):
    get()
    get()
    assert site.starts == [0]


def test_a_file_of_other_content_is_replaced(get, content, tmp_path):
    (tmp_path / "to").write_bytes(content[::-1])
    assert get().read_bytes() == content


def test_folders_on_the_way_are_made(site, content, tmp_path):
    site.files["/file"] = content
    to = tmp_path / "a" / "b" / "to"
    assert fetch(f"{site.address}/file", to, size=len(content), progress=False).read_bytes() == content


def test_a_partial_file_is_resumed_and_only_the_rest_sent(get, site, content, part):
    part.write_bytes(content[:200_000])
    assert get().read_bytes() == content
    assert site.starts == [200_000] and site.sent == len(content) - 200_000


def test_a_whole_partial_file_needs_no_request(get, site, content, part):
    part.write_bytes(content)
    assert get().read_bytes() == content
    assert site.starts == []


def test_a_partial_file_longer_than_the_whole_starts_anew(get, site, content, part):
    part.write_bytes(content + b"more")
    assert get().read_bytes() == content
    assert site.starts == [0]


def test_without_ranges_it_starts_anew(get, site, content, part):
    site.ranges = False
    part.write_bytes(b"?" * 200_000)
    assert get().read_bytes() == content
    assert site.sent == len(content)


@pytest.mark.parametrize("ranges, sent", [(True, 0), (False, 130_000)])
def test_a_dropped_connection_is_taken_up_again(get, site, content, ranges, sent):
    site.ranges, site.cuts = ranges, [100_000, 30_000]
    assert get().read_bytes() == content
    assert len(site.starts) == 3 and site.sent == len(content) + sent


def test_a_busy_server_is_asked_again(get, site, content):
    site.refusals = [503, 429]
    assert get().read_bytes() == content


def test_without_an_announced_length_it_reads_to_the_end(get, site, content):
    site.announces = False
    assert get().read_bytes() == content


def test_when_all_tries_fail_what_came_is_kept_for_next_time(get, site, content, part):
    site.cuts = [1000] * download.TRIES
    with pytest.raises(DownloadError, match=rf"broke off after 4,000 of 300,001 bytes.*4,000 bytes .* kept in {part}"):
        get()
    site.sent = 0
    assert get().read_bytes() == content
    assert site.sent == len(content) - 4000


def test_an_interrupt_leaves_the_partial_file(get, site, content, part, tmp_path, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    site.cuts = [1000]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(download.time, "sleep", interrupt)
        get()
    assert part.read_bytes() == content[:1000] and not (tmp_path / "to").exists()
    assert get().read_bytes() == content


def test_a_missing_file_is_named_and_not_asked_for_again(get, site):
    with pytest.raises(DownloadError, match=rf"{site.address}/none: the server answered 404 .* by hand and pass"):
        get("none")
    assert site.starts == [0]


def test_a_wrong_checksum_names_both_and_removes_the_partial_file(get, content, part, tmp_path):
    right = hashlib.md5(content).hexdigest()
    with pytest.raises(DownloadError, match=f"has md5 {right}, expected {'0' * 32}"):
        get(md5="0" * 32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("announces", [True, False])
@pytest.mark.parametrize("size", [300_000, 300_002])
def test_a_wrong_size_names_both_and_removes_the_partial_file(get, site, part, tmp_path, size, announces):
    site.announces = announces
    part.write_bytes(b"old")
    with pytest.raises(DownloadError, match=rf"has 300,00\d bytes, expected {size:,}"):
        get(size=size)
    assert not part.exists() and not (tmp_path / "to").exists()


def test_a_partial_file_longer_than_the_servers_starts_anew(get, site, part):
    part.write_bytes(b"?" * 400_000)
    with pytest.raises(DownloadError, match=r"the server's file has 300,001 bytes, expected 500,000"):
        get(size=500_000)
    assert site.starts == [400_000, 0] and not part.exists()


def test_a_full_disk_is_told_before_the_first_request(get, site, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10))
    with pytest.raises(DownloadError, match=r"has 10 bytes free, 300,001 are needed"):
        get()
    assert site.starts == []


def test_no_network_is_told(tmp_path, monkeypatch, site):
    monkeypatch.setattr(download, "TRIES", 2)
    with pytest.raises(DownloadError, match=r"http://127.0.0.1:9/file: no connection"):
        fetch("http://127.0.0.1:9/file", tmp_path / "to", size=1, progress=False)


@pytest.mark.skipif(sys.platform == "win32", reason="has no lock of folders")
def test_two_at_once_download_once(get, site):
    threads = [threading.Thread(target=get) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert site.starts == [0]


def test_progress_is_shown_on_stderr(get, capfd):
    get(progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "downloading to" in err


def test_without_rich_it_downloads_in_silence(get, content, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    assert get(progress=True).read_bytes() == content
    assert capfd.readouterr() == ("", "")


def test_what_is_no_longer_needed_is_not_asked_for(get, site, tmp_path):
    """As when another process has fetched, unpacked and removed it while this one waited."""
    assert get(needed=lambda: False) == tmp_path / "to"
    assert not (tmp_path / "to").exists() and site.starts == []
