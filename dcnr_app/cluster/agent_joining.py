"""This machine's own attempt to join a cluster, as its agent runs it for the person at its screen. IO."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from dcnr_app.cluster.admission import Admission
from dcnr_app.cluster.joining import (
    Joiner,
    Target,
    join_with_code,
    join_with_invite,
    request_to_join,
)
from dcnr_app.cluster.joining_talk import DigitsTalk, JoinProgress
from dcnr_app.errors import DcnrError, RefusedError

Verdict = Literal["match", "mismatch", "cancel"]
_BUSY = ("reaching", "comparing", "waiting")


class JoiningState(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is: "none", "reaching", "comparing", "waiting", "joined" or "failed" with `error`."""

    step: str = "none"
    digits: str = ""
    cluster_name: str = ""
    orchestrator: str = ""
    place: str = ""
    error: str = ""
    exit_code: int = 0


class AgentJoining:
    """One attempt at a time; `accept` takes what was granted."""

    def __init__(self, tasks: asyncio.TaskGroup, accept: Callable[[Admission], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._accept = accept
        self._talk: DigitsTalk | None = None
        self._attempt: asyncio.Task[None] | None = None
        self.state = JoiningState()

    def begin(self, target: Target | str, code: str, joiner: Joiner) -> JoiningState:
        """Begin: `target` is where the front door is, or an invite link. Raises RefusedError while another
        attempt is under way."""
        if self.state.step in _BUSY:
            raise RefusedError(
                "this machine is joining already",
                why=f"it is {self.state.step}",
                fix="finish that, or: dcnr-app join --answer cancel",
            )
        self.state = JoiningState(step="reaching")
        self._talk = DigitsTalk(self._told)
        self._attempt = self._tasks.create_task(self._join(target, code, joiner, self._talk))
        return self.state

    def answer(self, verdict: Verdict) -> JoiningState:
        """What the person says of the digits. Raises RefusedError if no attempt is under way."""
        if self._talk is None or self.state.step not in _BUSY:
            raise RefusedError("this machine is not joining", fix="dcnr-app join")
        if verdict == "match":
            self._talk.confirm()
        elif verdict == "mismatch":
            self._talk.mismatch()
        else:
            self._talk.cancel()
        return self.state

    async def close(self) -> None:
        """Give an attempt up; the other side is told."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait({self._attempt})

    async def _join(self, target: Target | str, code: str, joiner: Joiner, talk: DigitsTalk) -> None:
        try:
            if isinstance(target, str):
                admission = await join_with_invite(target, joiner)
            elif code:
                admission = await join_with_code(target, code, joiner)
            else:
                admission = await request_to_join(target, joiner, talk)
            await self._accept(admission)
        except DcnrError as error:
            self.state = msgspec.structs.replace(
                self.state, step="failed", error=str(error), exit_code=error.exit_code
            )
            return
        offer = admission.offer
        self.state = msgspec.structs.replace(
            self.state, step="joined", cluster_name=offer.cluster_name, orchestrator=offer.name
        )

    def _told(self, progress: JoinProgress) -> None:
        if progress.step == "admitted":
            return  # "joined" is said when it is on disk
        self.state = JoiningState(
            step=progress.step,
            digits=progress.digits,
            cluster_name=progress.cluster_name,
            orchestrator=progress.orchestrator,
            place=progress.place,
        )
