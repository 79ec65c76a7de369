"""A LocalApi without an agent behind it: it answers at once, and writes down what it was told."""

from __future__ import annotations

from typing import Any, Literal

from dcnr_app.errors import RefusedError
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

STATUS = StatusView(
    role="orchestrator",
    machine="0123456789abcdef",
    name="desk",
    pnode="0123456789abcdef-0",
    cluster="c1",
    cluster_name="home",
    version="1",
    pid=7,
    started_ms=1,
    front_door_port=47621,
    addresses=("127.0.0.1",),
    n_machines=1,
    n_live=1,
    n_pending=0,
    session="",
)
MACHINE = MachineView(
    machine="0123456789abcdef", name="desk", role="orchestrator", presence="live", is_this_machine=True
)
PENDING = PendingView(
    machine="fedcba9876543210", name="laptop", address="127.0.0.1", digits="123456", device="", version="1",
    n_pnodes=1, step="comparing", why="", is_confirmed=False, is_admitted=False, note="", remaining_ms=1.0,
)  # fmt: skip


class InMemoryApi:
    """`told` lists (verb, arguments)."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    async def status(self) -> StatusView:
        return STATUS

    async def machines(self) -> tuple[MachineView, ...]:
        return (MACHINE,)

    async def pnodes(self) -> tuple[PNodeView, ...]:
        return ()

    async def neighbours(self) -> tuple[NeighbourView, ...]:
        return ()

    async def start_cluster(self, name: str) -> StatusView:
        self.told.append(("start_cluster", name))
        return STATUS

    async def join(self, target: str, code: str) -> JoiningView:
        self.told.append(("join", target, code))
        return JoiningView(step="reaching")

    async def joining(self) -> JoiningView:
        raise ZeroDivisionError("a fault that no person should see")

    async def answer(self, verdict: Literal["match", "mismatch", "cancel"]) -> JoiningView:
        self.told.append(("answer", verdict))
        return JoiningView(step="waiting")

    async def pending(self) -> tuple[PendingView, ...]:
        return (PENDING,)

    async def admit(self, machine: str) -> PendingView:
        raise RefusedError("nobody waits", where="here", why="all are in", fix="wait")

    async def reject(self, machine: str) -> PendingView:
        self.told.append(("reject", machine))
        return PENDING

    async def invite(self, *, with_code: bool) -> InviteView:
        self.told.append(("invite", with_code))
        return InviteView(link="dcnr://x", qr="", code="", host="127.0.0.1", port=1, expires_s=1.0)

    async def rename(self, machine: str, name: str) -> MachineView:
        self.told.append(("rename", machine, name))
        return MACHINE

    async def drain(self, machine: str) -> MachineView:
        self.told.append(("drain", machine))
        return MACHINE

    async def forget(self, machine: str) -> MachineView:
        self.told.append(("forget", machine))
        return MACHINE

    async def leave(self) -> StatusView:
        self.told.append(("leave",))
        return STATUS

    async def start_session(self, request: StartSession) -> SessionView:
        self.told.append(("start_session", request))
        return SessionView(session="s-1")

    async def stop_session(self) -> SessionView:
        self.told.append(("stop_session",))
        return SessionView(session="s-1")

    async def session(self) -> SessionView:
        return SessionView()

    async def shut_down(self) -> None:
        self.told.append(("shut_down",))
