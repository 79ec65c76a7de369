"""What passes between people and both machines while digits are compared, or a code is proven. IO.

Answers may be late or lost: what is asked again is never done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, NoReturn

import msgspec

from dcnr_app.cluster import admission
from dcnr_app.cluster.admission import Attempt
from dcnr_app.cluster.front_door_client import FrontDoorClient
from dcnr_app.cluster.pairing_messages import ShowProof, Standing, Verdict
from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.errors import DcnrError, RefusedError, UnreachableError

_POLL_S = 0.4
_SILENCE_S = 15.0
"""How long the other side may not answer before an attempt is given up: its network may just come back."""
_GOODBYE_S = 2.0

JoinStage = Literal["comparing", "waiting", "admitted"]
Answer = Literal["match", "mismatch", "cancel"]


class JoinProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is, for the person: "comparing" with the digits to compare, "waiting" for the other side to
    admit, then "admitted"."""

    step: JoinStage
    digits: str
    cluster: str
    cluster_name: str
    orchestrator: str
    place: str


class DigitsTalk:
    """The person at this machine: `tell` shows progress, the methods are what he answers, once."""

    def __init__(self, tell: Callable[[JoinProgress], None]) -> None:
        self.tell = tell
        self._answer: Answer | Literal[""] = ""
        self._answered = asyncio.Event()

    def confirm(self) -> None:
        """The digits on both screens are the same."""
        self._say("match")

    def mismatch(self) -> None:
        """They are not."""
        self._say("mismatch")

    def cancel(self) -> None:
        """Not now."""
        self._say("cancel")

    async def answer_within(self, seconds: float) -> Answer | Literal[""]:
        """What he said, or an empty text if he has not by then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()
        return self._answer

    def _say(self, answer: Answer) -> None:
        self._answer = self._answer or answer
        self._answered.set()


def progress_of(step: JoinStage, attempt: Attempt, client: FrontDoorClient) -> JoinProgress:
    """How far an attempt is."""
    offer = attempt.offer
    return JoinProgress(
        step=step,
        digits=attempt.digits,
        cluster=offer.cluster,
        cluster_name=offer.cluster_name,
        orchestrator=offer.name,
        place=client.place,
    )


async def compare(client: FrontDoorClient, attempt: Attempt, talk: DigitsTalk) -> Standing:
    """Show the digits, pass on what the person says, and wait until both sides have decided: returns what was
    granted. Raises RefusedError, saying who ended it, UnreachableError, PeerError."""
    await client.reveal(admission.reveal(attempt))
    talk.tell(progress_of("comparing", attempt, client))
    has_answered = False
    patience = _Patience()
    while True:
        answer = await talk.answer_within(_POLL_S)
        if has_answered:
            await asyncio.sleep(_POLL_S)
        try:
            if answer == "match" and not has_answered:
                standing = await client.verdict(admission.match(attempt))
                has_answered = True
                talk.tell(progress_of("waiting", attempt, client))
            elif answer in ("mismatch", "cancel"):
                await _say_no(client, attempt, answer)
            else:
                standing = await client.standing(attempt.pairing)
        except UnreachableError as error:
            await patience.wait(error)
            continue
        patience = _Patience()
        if standing.step == "granted":
            return standing
        if standing.step != "comparing":
            _refuse(standing, client.place)


async def prove(client: FrontDoorClient, message: ShowProof) -> Standing:
    """Show the proof of a code; if the answer is lost, ask for it, as the code is spent by then. Raises
    RefusedError if it is wrong, UnreachableError, PeerError."""
    patience = _Patience()
    while True:
        try:
            return await client.proof(message)
        except UnreachableError as error:
            await patience.wait(error)
        with suppress(UnreachableError):
            standing = await client.standing(message.pairing)
            if standing.step != "comparing":
                return standing


class _Patience:
    """How long the other side may not answer."""

    def __init__(self) -> None:
        self._until_s = asyncio.get_running_loop().time() + _SILENCE_S

    async def wait(self, error: UnreachableError) -> None:
        """Wait a moment; raise `error` when there was no answer for too long."""
        if asyncio.get_running_loop().time() > self._until_s:
            raise error
        await asyncio.sleep(_POLL_S)


async def _say_no(
    client: FrontDoorClient, attempt: Attempt, answer: Literal["mismatch", "cancel"]
) -> NoReturn:
    """Tell the other side, as well as it goes, and end here."""
    await say_goodbye(client, attempt, answer)
    if answer == "cancel":
        raise RefusedError("joining was cancelled", why="you said so")
    raise RefusedError(
        "the digits differ: NOT joined",
        where=client.place,
        why="somebody may stand between the two machines and read or change what they say",
        fix="find out why before you try again over this network; an invite link is safer: dcnr-app invite",
    )


async def say_goodbye(
    client: FrontDoorClient, attempt: Attempt, answer: Literal["mismatch", "cancel"] = "cancel"
) -> None:
    """Tell the other side that nothing comes of it, as well as that goes: it forgets by itself too."""
    with suppress(DcnrError, TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            await client.verdict(Verdict(pairing=attempt.pairing, verdict=answer))


def _refuse(standing: Standing, place: str) -> NoReturn:
    words = {
        "rejected": "the other side rejected this machine",
        "mismatched": "the digits were said to differ: NOT joined",
        "expired": "it took too long",
    }
    raise RefusedError(
        words.get(standing.step, "joining was cancelled"),
        where=place,
        why=plain_text(standing.why, 300),
        fix="join again when both users are at their machines" if standing.step == "expired" else "",
    )
