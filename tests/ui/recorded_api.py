"""A LocalApi that writes down what it is asked, and a server of it in a thread of its own."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from dcnr_app.ui.local_api import (
    InviteView,
    JoiningView,
    MachineView,
    NeighbourView,
    PendingView,
    PNodeView,
    SessionView,
    StartSession,
    StatusView,
)
from dcnr_app.ui.web.server import LocalApiServer

_T = TypeVar("_T")
TOKEN = "the-token-of-this-test"  # noqa: S105
LIMIT_S = 10.0

STATUS = StatusView(
    role="orchestrator", machine="0123456789abcdef", name="desk", pnode="0123456789abcdef-0", cluster="c1",
    cluster_name="home", version="1", pid=7, started_ms=1, front_door_port=2, addresses=("127.0.0.1",),
    n_machines=1, n_live=1, n_pending=0, session="",
)  # fmt: skip
MACHINE = MachineView(
    machine="0123456789abcdef", name="desk", role="worker", presence="live", is_this_machine=False
)
PENDING = PendingView(
    machine="0123456789abcdef", name="desk", address="127.0.0.1", digits="123456", device="CPU", version="1",
    n_pnodes=1, step="comparing", why="", is_confirmed=False, is_admitted=False, note="", remaining_ms=1.0,
)  # fmt: skip
INVITE = InviteView(link="dcnr://x", qr="", code="", host="127.0.0.1", port=1, expires_s=60.0)


class RecordedApi:
    """Answers with constants, or raises `error`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.error: Exception | None = None

    def _called(self, answer: _T, verb: str, *arguments: Any) -> _T:
        self.calls.append((verb, arguments))
        if self.error is not None:
            raise self.error
        return answer

    async def status(self) -> StatusView:
        return self._called(STATUS, "status")

    async def machines(self) -> tuple[MachineView, ...]:
        return self._called((MACHINE,), "machines")

    async def pnodes(self) -> tuple[PNodeView, ...]:
        return self._called((), "pnodes")

    async def neighbours(self) -> tuple[NeighbourView, ...]:
        return self._called((), "neighbours")

    async def pending(self) -> tuple[PendingView, ...]:
        return self._called((PENDING,), "pending")

    async def joining(self) -> JoiningView:
        return self._called(JoiningView(), "joining")

    async def session(self) -> SessionView:
        return self._called(SessionView(), "session")

    async def start_cluster(self, name: str) -> StatusView:
        return self._called(STATUS, "start-cluster", name)

    async def join(self, target: str, code: str) -> JoiningView:
        return self._called(JoiningView(), "join", target, code)

    async def answer(self, verdict: Literal["match", "mismatch", "cancel"]) -> JoiningView:
        return self._called(JoiningView(), "answer", verdict)

    async def admit(self, machine: str) -> PendingView:
        return self._called(PENDING, "admit", machine)

    async def reject(self, machine: str) -> PendingView:
        return self._called(PENDING, "reject", machine)

    async def invite(self, *, with_code: bool) -> InviteView:
        return self._called(INVITE, "invite", with_code)

    async def rename(self, machine: str, name: str) -> MachineView:
        return self._called(MACHINE, "rename", machine, name)

    async def drain(self, machine: str) -> MachineView:
        return self._called(MACHINE, "drain", machine)

    async def forget(self, machine: str) -> MachineView:
        return self._called(MACHINE, "forget", machine)

    async def leave(self) -> StatusView:
        return self._called(STATUS, "leave")

    async def shut_down(self) -> None:
        return self._called(None, "shut-down")

    async def start_session(self, request: StartSession) -> SessionView:
        return self._called(SessionView(), "start-session", request)

    async def stop_session(self) -> SessionView:
        return self._called(SessionView(), "stop-session")


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Served:
    """A server on loopback and ways to ask it."""

    def __init__(self, api: RecordedApi, port: int) -> None:
        self.api = api
        self.port = port
        self.host = f"127.0.0.1:{port}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        change: Mapping[str, str | None] | None = None,
        more: Sequence[tuple[str, str]] = (),
    ) -> Answer:
        """A request with all that a good one has, but for what `change` sets, or leaves out (None)."""
        headers: dict[str, str | None] = {"Host": self.host, "X-DCNR-Token": TOKEN}
        if method != "GET":
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        headers |= change or {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in (*headers.items(), *more):
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read())
        finally:
            connection.close()

    def post(self, verb: str, form: object) -> Answer:
        """A good POST with a form."""
        return self.ask("POST", f"/api/v1/{verb}", msgspec.json.encode(form))


@contextmanager
def served(api: RecordedApi | None = None) -> Iterator[Served]:
    """A server that listens until the end."""
    api = api or RecordedApi()
    ports: list[int] = []
    is_up = threading.Event()
    loop = asyncio.new_event_loop()
    is_over = asyncio.Event()

    async def live() -> None:
        server = LocalApiServer(api, TOKEN)
        ports.append(await server.start())
        is_up.set()
        await is_over.wait()
        await server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(live()))
    thread.start()
    try:
        assert is_up.wait(LIMIT_S)
        yield Served(api, ports[0])
    finally:
        loop.call_soon_threadsafe(is_over.set)
        thread.join(LIMIT_S)
        loop.close()
