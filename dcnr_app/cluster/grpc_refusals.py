"""Why gRPC refused a handshake: from the lines that it writes to standard error to this app's log. IO.

Strangers are refused in gRPC's TLS, below Python, and nothing but these lines says why. They are written if
`settings.trace_handshakes` came before gRPC. Whatever else appears on standard error is passed on; what gRPC
writes below an error is dropped, as without tracing. Should another version of gRPC word its lines
differently, then refusals are as silent as gRPC makes them, and nothing else changes.
"""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

_LOG = logging.getLogger(__name__)
_RECORD: Final = re.compile(r"^(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w./-]+:\d+\] (?P<text>.*)")
_ADDED: Final = re.compile(
    r"handshake_manager (?P<id>\S+): adding handshaker (?P<kind>\w+) \[\S+\] at index 0"
)
_ENDED: Final = re.compile(
    r"handshake manager (?P<id>\S+?): (Failed with error|Shutdown called): ([A-Z_]+: )?(?P<why>.*)"
)
_GOES_ON: Final = ("=== Source Location Trace", "src/core/", " shutdown=")
_MOST_MANAGERS: Final = 10_000
_MOST_CHARACTERS: Final = 200
_PIPE_BYTES: Final = 1 << 20
_MOST_PER_SECOND: Final = 10


class Line(NamedTuple):
    """What one line means: a refused handshake, a line for others, or neither."""

    refusal: str = ""
    passed_on: str | None = None


class RefusalReader:
    """Reads gRPC's lines one by one, without IO. A handshake that this process began itself is no refusal."""

    def __init__(self) -> None:
        self._accepted: dict[str, None] = {}
        self._is_dropping = False

    def take(self, line: str) -> Line:
        """The next line, without its end."""
        record = _RECORD.match(line)
        if record is None:
            is_rest = self._is_dropping and (not line or line.startswith(_GOES_ON))
            self._is_dropping = is_rest
            return Line(passed_on=None if is_rest else line)
        self._is_dropping = record["level"] in "IW"
        refusal = self._refusal(record["text"])
        return Line(refusal=refusal) if self._is_dropping else Line(refusal, line)

    def _refusal(self, text: str) -> str:
        added = _ADDED.match(text)
        if added is not None:
            self._accepted.pop(added["id"], None)
            # One that dials begins with a connection of its own. Memory is bounded, whatever is written.
            if added["kind"] != "tcp_connect" and len(self._accepted) < _MOST_MANAGERS:
                self._accepted[added["id"]] = None
            return ""
        ended = _ENDED.match(text)
        if ended is None or ended["id"] not in self._accepted:
            return ""
        del self._accepted[ended["id"]]
        return ended["why"].removesuffix(": OK").strip()[:_MOST_CHARACTERS] or "no reason given"


class _Limited:
    """Logs so many refusals a second; of the others it says how many there were."""

    def __init__(self) -> None:
        self._second = 0
        self._n_logged = 0
        self._n_more = 0

    def log(self, why: str, now_s: float) -> None:
        self.tick(now_s)
        if self._n_logged >= _MOST_PER_SECOND:
            self._n_more += 1
            return
        self._n_logged += 1
        # Who hangs up in the middle may be a peer that ends: no news for a person.
        level = logging.INFO if why.startswith("Handshake read failed") else logging.WARNING
        _LOG.log(level, "handshake_refused why=%s", why)

    def tick(self, now_s: float) -> None:
        if int(now_s) != self._second:
            self.end()
            self._second = int(now_s)

    def end(self) -> None:
        """Say what was not logged one by one."""
        if self._n_more:
            _LOG.warning("handshakes_refused n=%s why=as before, within a second", self._n_more)
        self._n_logged = self._n_more = 0


@contextmanager
def refusals_logged() -> Iterator[None]:
    """While it lasts, lines at the level of the C library go through a pipe to a thread that reads them.
    Python's own standard error is not touched by it. On Windows nothing is read."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    own = os.dup(2)
    source, sink = os.pipe()
    # A flood of lines must not make gRPC wait: what does not fit is lost.
    fcntl.fcntl(sink, fcntl.F_SETFL, fcntl.fcntl(sink, fcntl.F_GETFL) | os.O_NONBLOCK)
    if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux gives 64 KiB, which a few dozen traced handshakes fill
        with suppress(OSError):  # over the system's limit for users: then it stays as it is
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    python_stderr = sys.stderr
    with io.TextIOWrapper(os.fdopen(os.dup(own), "wb", 0), line_buffering=True, errors="replace") as direct:
        sys.stderr = direct
        os.dup2(sink, 2)
        os.close(sink)
        thread = threading.Thread(target=_read_all, args=(source, own), name="grpc-lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            os.dup2(own, 2)  # closes the pipe's last end, so that the thread ends
            sys.stderr = python_stderr
            thread.join(1.0)
    os.close(own)


def _read_all(source: int, own: int) -> None:
    reader, limited, rest = RefusalReader(), _Limited(), b""
    with os.fdopen(source, "rb", 0) as pipe:
        while True:
            is_ready = select.select([pipe], [], [], 1.0)[0]
            limited.tick(time.monotonic())
            data = pipe.read(65_536) if is_ready else None
            if data == b"":
                break
            *lines, rest = (rest + (data or b""))[-1_000_000:].split(b"\n")
            for line in lines:
                meaning = reader.take(line.decode(errors="replace"))
                if meaning.refusal:
                    limited.log(meaning.refusal, time.monotonic())
                if meaning.passed_on is not None:
                    os.write(own, meaning.passed_on.encode() + b"\n")
    limited.end()
    if rest:
        os.write(own, rest)
