"""All attempts of machines to join this cluster: opened, compared, admitted, over. Knows no HTTP. IO.

Attempts are kept in memory only: an orchestrator that restarts forgets them, and people start again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from dcnr_app.clock import Clock
from dcnr_app.cluster import pairing
from dcnr_app.cluster.builds import refuse_mismatch
from dcnr_app.cluster.joining_codes import GET_A_NEW_ONE, JoiningCode
from dcnr_app.cluster.membership import Membership
from dcnr_app.cluster.pairing import Pairing
from dcnr_app.cluster.pairing_messages import (
    Begin,
    Offered,
    Reveal,
    Share,
    ShowProof,
    ShowShare,
    Standing,
    Verdict,
)
from dcnr_app.cluster.password_proof import PasswordProof
from dcnr_app.cluster.pending_join import PendingJoin, is_shown, shown_to_people
from dcnr_app.cluster.rate_limit import address_group
from dcnr_app.cluster.registrar import Registrar
from dcnr_app.errors import DcnrError, RefusedError

_LOG = logging.getLogger(__name__)
_MAX_OPEN = 32
_MAX_OPEN_PER_ADDRESS = 4
# With those that are over and only wait to be asked about.
_MAX_KEPT = 4 * _MAX_OPEN
_MAX_KEPT_PER_ADDRESS = 12


class _Entry:
    """One attempt with what is not pure of it."""

    def __init__(self, state: Pairing) -> None:
        self.state = state
        self.code: JoiningCode | None = None
        self.proof: PasswordProof | None = None
        self.standing: Standing | None = None


class PairingDesk:
    """The attempts to join one cluster. `changed` is called when what `pending` returns changes, `admitted`
    with the new membership."""

    def __init__(
        self,
        registrar: Registrar,
        clock: Clock,
        changed: Callable[[], None],
        admitted: Callable[[Membership], None],
    ) -> None:
        self._registrar = registrar
        self._clock = clock
        self._changed = changed
        self._admitted = admitted
        self._entries: dict[str, _Entry] = {}
        self._granting = asyncio.Lock()

    def pending(self) -> tuple[PendingJoin, ...]:
        """Machines whose users compare digits, and how those attempts ended that have just ended."""
        self.tidy()
        states = [entry.state for entry in self._entries.values()]
        return tuple(self._shown(state) for state in states if is_shown(state))

    def begin(self, begin: Begin, address: str) -> Offered:
        """A machine wants to join. Raises RefusedError if too many do, its build does not fit, or what it
        says is malformed."""
        self.tidy()
        self._refuse_crowd(address)
        name, nonce = secrets.token_urlsafe(16), secrets.token_bytes(pairing.NONCE_BYTES)
        offer = self._registrar.offer()
        state = pairing.opened(name, begin, address, offer, nonce, self._clock.monotonic_ms())
        refuse_mismatch(state.request.build, self._registrar.build)
        self._entries[name] = _Entry(state)
        return Offered(pairing=name, offer=offer, nonce=nonce)

    def reveal(self, reveal: Reveal) -> Standing:
        """It shows its nonce and signs. Raises RefusedError if that fits not: the attempt is over then."""
        entry = self._find(reveal.pairing)
        if entry.state.step != "offered":
            raise RefusedError("this attempt to join is further on, or over", why="nothing is taken twice")
        with self._ended_by_errors(reveal.pairing):
            state = pairing.revealed(entry.state, reveal, self._clock.monotonic_ms())
        for other in [name for name, old in self._entries.items() if _is_older(old.state, state)]:
            del self._entries[other]  # the same machine, which proved its key, tries again
        self._put(entry, state)
        return _standing(entry)

    async def verdict(self, verdict: Verdict) -> Standing:
        """Its user said something about the digits. Raises RefusedError if it is not signed."""
        entry = self._find(verdict.pairing)
        before = entry.state
        self._put(entry, pairing.judged(before, verdict, self._clock.monotonic_ms()))
        if entry.state.step == "mismatched" and before.is_open:
            _LOG.warning("digits_differ machine=%s address=%s", before.machine, before.address)
        await self._grant_if_agreed(entry)
        return _standing(entry)

    def ask(self, name: str) -> Standing:
        """How does it stand? Raises RefusedError if this attempt is not known."""
        return _standing(self._find(name))

    def share(self, shown: ShowShare) -> Share:
        """It has a code: exchange shares, once. Raises RefusedError if the code is not live."""
        entry = self._find(shown.pairing)
        if entry.state.step != "comparing" or entry.state.method != "code" or entry.proof is not None:
            raise RefusedError("this attempt is not one with a code, or is further on")
        with self._ended_by_errors(shown.pairing):
            code = self._registrar.code(shown.finder)
            proof = PasswordProof(code.secret, entry.state.transcript, is_joining=False)
            proof.finish(shown.share)
        entry.code, entry.proof = code, proof
        return Share(proof.share)

    async def proof(self, shown: ShowProof) -> Standing:
        """It proves that it knows the code. Raises RefusedError if it does not: that counts as one try."""
        entry = self._find(shown.pairing)
        code, proof = entry.code, entry.proof
        if code is None or proof is None or entry.state.step != "comparing":
            raise RefusedError("this attempt has not shown a code, or is over")
        entry.code = None  # one guess per attempt
        with self._ended_by_errors(shown.pairing):
            async with self._granting:
                still = self._registrar.code(code.finder)
                if not hmac.compare_digest(still.secret, code.secret):
                    raise RefusedError("the code is not known here any more", fix=GET_A_NEW_ONE)
                if not proof.is_proven(shown.proof):
                    raise _wrong_code(await asyncio.to_thread(self._registrar.wrong, still))
                await asyncio.to_thread(self._registrar.use, still)
            await self._grant(entry, proof.own_proof())
        return _standing(entry)

    async def admit(self, machine: str) -> PendingJoin:
        """The orchestrator's user admits a machine; it is a member as soon as its own user has said that the
        digits match. Raises RefusedError if it does not wait to join, StoreError."""
        entry = self._waiting(machine)
        self._put(entry, pairing.decided(entry.state, self._clock.monotonic_ms(), admits=True))
        await self._grant_if_agreed(entry)
        return self._shown(entry.state)

    def reject(self, machine: str) -> PendingJoin:
        """The orchestrator's user rejects a machine. Raises RefusedError if it does not wait to join."""
        entry = self._waiting(machine)
        self._put(entry, pairing.decided(entry.state, self._clock.monotonic_ms(), admits=False))
        return self._shown(entry.state)

    def tidy(self) -> None:
        """End what took too long, and forget what nobody asks for any more."""
        now_ms = self._clock.monotonic_ms()
        has_changed = False
        for name, entry in list(self._entries.items()):
            state = pairing.aged(entry.state, now_ms)
            if state is entry.state:
                continue
            has_changed = has_changed or is_shown(entry.state)
            if state is None or state.transcript == b"":
                del self._entries[name]
            else:
                entry.state = state
        if has_changed:
            self._changed()

    def _refuse_crowd(self, address: str) -> None:
        states = [entry.state for entry in self._entries.values()]
        here = [state for state in states if address_group(state.address) == address_group(address)]
        n_open, n_open_here = sum(state.is_open for state in states), sum(state.is_open for state in here)
        is_full_here = n_open_here >= _MAX_OPEN_PER_ADDRESS or len(here) >= _MAX_KEPT_PER_ADDRESS
        if is_full_here or n_open >= _MAX_OPEN or len(states) >= _MAX_KEPT:
            raise RefusedError(
                "too many machines are joining at this moment",
                why=f"{n_open} wait, {n_open_here} of them at this address",
                fix="admit or reject them, or try again in two minutes",
            )

    @contextmanager
    def _ended_by_errors(self, name: str) -> Iterator[None]:
        """An attempt that goes wrong is over: it holds no place, and nothing of it can be tried again."""
        try:
            yield
        except DcnrError:
            self._entries.pop(name, None)
            raise

    async def _grant_if_agreed(self, entry: _Entry) -> None:
        if pairing.is_agreed(entry.state):
            await self._grant(entry, b"")

    async def _grant(self, entry: _Entry, proof: bytes) -> None:
        async with self._granting:
            if entry.state.step != "comparing":  # the other user's word came at the same moment
                return
            try:
                grant, signature = await asyncio.to_thread(self._registrar.grant, entry.state)
            except DcnrError as error:
                _LOG.error("admission_failed machine=%s why=%s", entry.state.machine, error)
                state = pairing.decided(entry.state, self._clock.monotonic_ms(), admits=False)
                why = "the orchestrator could not admit it: see there"
                self._put(entry, msgspec.structs.replace(state, why=why))
                raise
            entry.standing = Standing(step="granted", grant=grant, signature=signature, proof=proof)
            self._put(entry, pairing.granted(entry.state, self._clock.monotonic_ms()))
        _LOG.info("admitted machine=%s name=%s", entry.state.machine, entry.state.request.name)
        self._admitted(self._registrar.membership)

    def _find(self, name: str) -> _Entry:
        self.tidy()
        entry = self._entries.get(name)
        if entry is None:
            raise RefusedError(
                "this attempt to join is not known here",
                why="it took too long, or the orchestrator was started again",
                fix="join again",
            )
        return entry

    def _waiting(self, machine: str) -> _Entry:
        self.tidy()
        for entry in self._entries.values():
            if entry.state.machine == machine and _is_waiting(entry.state):
                return entry
        raise RefusedError(
            f"{machine} does not wait to join",
            why="it took too long, was decided already, or never asked",
            fix="see who waits: dcnr-app status",
        )

    def _put(self, entry: _Entry, state: Pairing) -> None:
        has_changed = state != entry.state and is_shown(state)
        entry.state = state
        if not state.is_open and not state.transcript:
            self._entries.pop(state.pairing, None)
        if has_changed:
            self._changed()

    def _shown(self, state: Pairing) -> PendingJoin:
        registrar = self._registrar
        return shown_to_people(state, registrar.membership, registrar.build, self._clock.monotonic_ms())


def _is_waiting(state: Pairing) -> bool:
    return state.step == "comparing" and state.method == "digits"


def _is_older(old: Pairing, new: Pairing) -> bool:
    return old.machine == new.machine and old.pairing != new.pairing and old.step == "comparing"


def _standing(entry: _Entry) -> Standing:
    return entry.standing or Standing(step=entry.state.step, why=entry.state.why)


def _wrong_code(code: JoiningCode) -> RefusedError:
    if code.state == "burnt":
        return RefusedError("the code is wrong, and burnt now", why="it was wrong 3 times", fix=GET_A_NEW_ONE)
    return RefusedError(
        "the code is wrong", why=f"{code.tries_left} tries are left", fix="type it again as it is shown there"
    )
