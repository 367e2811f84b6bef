"""One file from the web: resumed where it broke off, checked, and there only when whole.

`part` is the file beside the target that holds what has come so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from longshort.lab.data.files import CHUNK, check_file, check_space, has_size
from longshort.lab.data.progress import Tell, progress_bar
from longshort.lab.runs.files import settle
from longshort.lab.runs.lock import folder_lock

TRIES = 4
PAUSE = 1.0  # seconds before the second try, twice as long before each further one
TIMEOUT = 30.0  # seconds without a byte


class DownloadError(OSError):
    """A file could not be had; the message says from where, why, and what to do."""


def fetch(
    address: str,
    to: Path,
    *,
    size: int,
    md5: str | None = None,
    progress: bool = True,
    needed: Callable[[], bool] = lambda: True,
) -> Path:
    """Downloads a file of known size, unless it is there, or no longer `needed` when this process's turn comes.

    What has come when it fails or is interrupted is kept in `to`.part, and the next call goes on from there.
    """
    part = to.with_name(f"{to.name}.part")
    try:
        with folder_lock(to.parent):
            if needed() and not _is_there(to, size, md5):
                _fill(address, part, size, md5, progress)
                settle(part, to)
    except (OSError, HTTPException, ValueError) as error:
        raise DownloadError(
            f"could not download {address}: {_reason(error)}. "
            f"Try again later, or download it by hand and pass the path of the file. {_kept(part)}".rstrip()
        ) from error
    return to


def _is_there(to: Path, size: int, md5: str | None) -> bool:
    try:
        check_file(to, size, md5)
    except (FileNotFoundError, ValueError):
        return False
    return True


def _fill(address: str, part: Path, size: int, md5: str | None, progress: bool) -> None:
    """Makes the part whole and right, or removes it where it is wrong."""
    if _size(part) > size:  # of another file
        part.unlink()
    have = _size(part)
    check_space(part.parent, size - have)
    try:
        if have < size:
            with progress_bar(f"downloading {part.stem}", size, show=progress) as tell:
                _read_with_patience(address, part, size, tell)
        check_file(part, size, md5)
    except ValueError:
        part.unlink(missing_ok=True)
        raise


def _read_with_patience(address: str, part: Path, size: int, tell: Tell) -> None:
    for tries in range(1, TRIES + 1):
        try:
            _read_on(address, part, size, tell)
            return
        except (OSError, HTTPException) as error:
            if tries == TRIES or not _may_pass(error):
                raise
            if isinstance(error, HTTPError) and error.code == 416:  # the part is longer than what the server has
                part.unlink()
        time.sleep(PAUSE * 2 ** (tries - 1))


def _read_on(address: str, part: Path, size: int, tell: Tell) -> None:
    """One request for what is missing; a server that knows no ranges sends all, and the part starts anew."""
    have = _size(part)
    with _open(address, have) as response:
        have = have if response.status == 206 else 0
        announced = response.headers.get("Content-Length")
        if announced is not None and have + int(announced) != size:
            raise ValueError(f"the server's file has {have + int(announced):,} bytes, expected {size:,}")
        with part.open("ab" if have else "wb") as file:
            while have < size and (chunk := response.read1(CHUNK)):
                have += file.write(chunk)
                tell(have)
    if announced is not None and have < size:
        raise ConnectionError(f"the connection broke off after {have:,} of {size:,} bytes")


def _open(address: str, have: int) -> Any:
    request = Request(address, headers={"User-Agent": "longshort"} | ({"Range": f"bytes={have}-"} if have else {}))
    try:
        return urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        raise


def _may_pass(error: Exception) -> bool:
    """Whether another try may do better."""
    if isinstance(error, HTTPError):
        return error.code >= 500 or error.code in (408, 416, 429)
    return isinstance(error, URLError | HTTPException | ConnectionError | TimeoutError)


def _reason(error: Exception) -> str:
    match error:
        case HTTPError():
            return f"the server answered {error.code} {error.reason}"
        case URLError():
            return f"no connection ({error.reason})"
        case _:
            return str(error) or type(error).__name__


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _kept(part: Path) -> str:
    return f"The {_size(part):,} bytes that came are kept in {part}." if has_size(part, None) else ""
