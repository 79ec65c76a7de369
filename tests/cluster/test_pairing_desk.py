"""The desk: attempts side by side, parallel guesses, crowds, and tries of one machine one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from dcnr_app.cluster import admission
from dcnr_app.cluster.admission import Attempt
from dcnr_app.cluster.cluster_files import ClusterFiles
from dcnr_app.cluster.joining_codes import code_finder
from dcnr_app.cluster.pairing_desk import PairingDesk
from dcnr_app.cluster.pairing_messages import Begin, Method, ShowProof, ShowShare, Verdict
from dcnr_app.cluster.password_proof import PasswordProof
from dcnr_app.cluster.registrar import Registrar
from dcnr_app.errors import RefusedError, StoreError
from dcnr_app.store.files import Files
from tests.cluster.joining_scene import Orchestrator, run
from tests.cluster.pairing_scene import Worker

ADDRESS = "192.0.2.7"


class Desk:
    """A desk over a real registrar, with what it told."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.scene = Orchestrator(folder)
        self.registrar = self.scene.registrar
        if files is not None:
            self.registrar = Registrar(
                ClusterFiles(self.scene.home, files), self.scene.machine, self.scene.build, self.scene.clock
            )
        self.n_changes = 0
        self.desk = PairingDesk(self.registrar, self.scene.clock, self._count, self.scene.admitted)

    def _count(self) -> None:
        self.n_changes += 1

    def compared(self, worker: Worker, method: Method = "digits", address: str = ADDRESS) -> Attempt:
        offered = self.desk.begin(msgspec.structs.replace(worker.begin(), method=method), address)
        attempt = worker.attempt(offered)
        self.desk.reveal(admission.reveal(attempt))
        return attempt

    def shared(self, worker: Worker, guess: str, address: str = ADDRESS) -> tuple[Attempt, PasswordProof]:
        """An attempt with a code, up to the proof."""
        attempt = self.compared(worker, "code", address)
        proof = PasswordProof(guess, attempt.transcript, is_joining=True)
        share = ShowShare(pairing=attempt.pairing, finder=code_finder(guess), share=proof.share)
        proof.finish(self.desk.share(share).share)
        return attempt, proof


def wrong_guesses(code: str) -> list[str]:
    return [code[:-1] + str((int(code[-1]) + step) % 10) for step in range(1, 10)]


def test_guesses_side_by_side_are_counted_like_guesses_in_turn(tmp_path: Path) -> None:
    async def test() -> None:
        desk = Desk(tmp_path)
        code = desk.registrar.new_code().secret
        guesses = [*wrong_guesses(code)[:7], code]
        runs = [
            desk.shared(Worker(f"w{place}"), guess, f"192.0.2.{place}") for place, guess in enumerate(guesses)
        ]
        shown = [ShowProof(pairing=attempt.pairing, proof=proof.own_proof()) for attempt, proof in runs]
        results = await asyncio.gather(*map(desk.desk.proof, shown), return_exceptions=True)
        assert all(isinstance(result, RefusedError) for result in results)
        assert sum("the code is wrong" in str(result) for result in results) == 3
        assert desk.scene.memberships == []
        # Nothing of a guess is left to try again with.
        for message in shown:
            with pytest.raises(RefusedError, match="not known here"):
                await desk.desk.proof(message)

    run(test)


def test_code_that_two_machines_prove_at_once_admits_one(tmp_path: Path) -> None:
    async def test() -> None:
        desk = Desk(tmp_path)
        code = desk.registrar.new_code().secret
        runs = [desk.shared(Worker(f"w{place}"), code) for place in (1, 2)]
        shown = [ShowProof(pairing=attempt.pairing, proof=proof.own_proof()) for attempt, proof in runs]
        results = await asyncio.gather(*map(desk.desk.proof, shown), return_exceptions=True)
        assert sorted(isinstance(result, RefusedError) for result in results) == [False, True]
        assert len(desk.registrar.membership.members) == 2

    run(test)


def test_proof_is_bound_to_the_machine_that_made_it(tmp_path: Path) -> None:
    """Somebody in the middle has his own keys, so even the right proof of the other machine fails for him."""

    async def test() -> None:
        desk = Desk(tmp_path)
        code = desk.registrar.new_code().secret
        middle = desk.compared(Worker("middle"), "code")
        victim = desk.compared(Worker("victim"), "code")
        proof = PasswordProof(code, victim.transcript, is_joining=True)
        share = ShowShare(pairing=middle.pairing, finder=code_finder(code), share=proof.share)
        proof.finish(desk.desk.share(share).share)
        with pytest.raises(RefusedError, match="the code is wrong"):
            await desk.desk.proof(ShowProof(pairing=middle.pairing, proof=proof.own_proof()))

    run(test)


@pytest.mark.parametrize(
    "share", [b"", b"A", b"B" + bytes(32), b"A" + bytes(32), b"A" + b"\xff" * 32, b"A" * 999]
)
def test_malformed_share_ends_the_attempt_and_costs_no_try(tmp_path: Path, share: bytes) -> None:
    desk = Desk(tmp_path)
    code = desk.registrar.new_code()
    attempt = desk.compared(Worker(), "code")
    with pytest.raises(RefusedError, match="malformed"):
        desk.desk.share(ShowShare(pairing=attempt.pairing, finder=code.finder, share=share))
    assert desk.registrar.code(code.finder).tries_left == 3
    with pytest.raises(RefusedError, match="not known here"):
        desk.desk.ask(attempt.pairing)


def test_attempt_by_digits_cannot_be_turned_into_one_by_code(tmp_path: Path) -> None:
    async def test() -> None:
        desk = Desk(tmp_path)
        code = desk.registrar.new_code()
        attempt = desk.compared(Worker())
        with pytest.raises(RefusedError, match="not one with a code"):
            desk.desk.share(ShowShare(pairing=attempt.pairing, finder=code.finder, share=b"A" * 33))
        with pytest.raises(RefusedError, match="has not shown a code"):
            await desk.desk.proof(ShowProof(pairing=attempt.pairing, proof=b""))
        by_code = desk.compared(Worker("other"), "code")
        assert (await desk.desk.verdict(admission.match(by_code))).step == "comparing"
        with pytest.raises(RefusedError, match="does not wait to join"):
            await desk.desk.admit(desk.desk._entries[by_code.pairing].state.machine)
        assert desk.scene.memberships == []

    run(test)


def test_one_address_holds_few_places_and_others_are_served(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for place in range(4):
        desk.compared(Worker(f"w{place}"))
    with pytest.raises(RefusedError, match="too many machines are joining") as told:
        desk.desk.begin(Worker().begin(), ADDRESS)
    assert "4 of them at this address" in told.value.why
    desk.compared(Worker("elsewhere"), address="192.0.2.8")


def test_crowd_of_addresses_is_bounded_and_makes_room_by_itself(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    worker = Worker()
    for place in range(32):
        desk.desk.begin(worker.begin(), f"192.0.2.{place}")
    with pytest.raises(RefusedError, match="too many machines"):
        desk.desk.begin(worker.begin(), "198.51.100.1")
    desk.scene.clock.now_ms += 10_000  # what never went on is forgotten
    desk.compared(worker, address="198.51.100.1")


def test_attempts_that_are_cancelled_at_once_do_not_fill_the_desk(tmp_path: Path) -> None:
    async def test() -> None:
        desk = Desk(tmp_path)
        for _ in range(200):
            offered = desk.desk.begin(Worker().begin(), ADDRESS)
            await desk.desk.verdict(Verdict(pairing=offered.pairing, verdict="cancel"))
        assert desk.desk.pending() == ()
        assert desk.n_changes == 0

    run(test)


def test_machine_that_tries_again_waits_once(tmp_path: Path) -> None:
    async def test() -> None:
        desk, worker = Desk(tmp_path), Worker()
        first = desk.compared(worker)
        second = desk.compared(worker)
        (waiting,) = desk.desk.pending()
        assert waiting.digits == second.digits
        with pytest.raises(RefusedError, match="not known here"):
            desk.desk.ask(first.pairing)

    run(test)


def test_stranger_cannot_push_out_a_machine_by_its_public_key(tmp_path: Path) -> None:
    desk, worker = Desk(tmp_path), Worker()
    attempt = desk.compared(worker)
    # He knows the public keys, but not the private ones.
    stranger = admission.begin(worker.request, b"n" * 32, "digits")
    offered = desk.desk.begin(stranger, "192.0.2.66")
    forged = msgspec.structs.replace(admission.reveal(Worker("stranger").attempt(offered)), nonce=b"n" * 32)
    with pytest.raises(RefusedError, match="did not prove"):
        desk.desk.reveal(forged)
    (waiting,) = desk.desk.pending()
    assert waiting.digits == attempt.digits


def test_member_that_joins_again_is_shown_as_known(tmp_path: Path) -> None:
    async def test() -> None:
        desk, worker = Desk(tmp_path), Worker()
        for is_known in (False, True):
            attempt = desk.compared(worker)
            waiting = next(entry for entry in desk.desk.pending() if entry.step == "comparing")
            assert waiting.is_known is is_known
            await desk.desk.verdict(admission.match(attempt))
            assert (await desk.desk.admit(waiting.machine)).step == "granted"
        assert len(desk.registrar.membership.members) == 2

    run(test)


def test_build_that_does_not_fit_is_refused_before_it_holds_a_place(tmp_path: Path) -> None:
    desk, worker = Desk(tmp_path), Worker()
    request = msgspec.json.decode(worker.request)
    request["build"]["numerics"] = 2
    worker.request = msgspec.json.encode(request)
    with pytest.raises(RefusedError, match="cannot join"):
        desk.desk.begin(worker.begin(), ADDRESS)
    assert desk.desk._entries == {}


class FullDisk(Files):
    """A disk on which nothing more becomes durable."""

    def sync_file(self, path: Path) -> None:
        raise OSError(28, "No space left on device")


def test_admission_that_cannot_be_saved_is_none(tmp_path: Path) -> None:
    async def test() -> None:
        desk, worker = Desk(tmp_path, FullDisk()), Worker()
        attempt = desk.compared(worker)
        await desk.desk.verdict(admission.match(attempt))
        (waiting,) = desk.desk.pending()
        with pytest.raises(StoreError):
            await desk.desk.admit(waiting.machine)
        standing = desk.desk.ask(attempt.pairing)
        assert (standing.step, standing.grant) == ("rejected", b"")
        assert "could not admit it" in standing.why
        assert desk.registrar.membership.find(waiting.machine) is None

    run(test)


def test_answer_that_was_lost_can_be_fetched_again(tmp_path: Path) -> None:
    async def test() -> None:
        desk, worker = Desk(tmp_path), Worker()
        attempt = desk.compared(worker)
        (waiting,) = desk.desk.pending()
        await desk.desk.admit(waiting.machine)
        first = await desk.desk.verdict(admission.match(attempt))
        again = await desk.desk.verdict(admission.match(attempt))
        assert first == again == desk.desk.ask(attempt.pairing)
        assert admission.accept(attempt, again).machine == waiting.machine
        assert len(desk.scene.memberships) == 1

    run(test)


def test_both_users_at_the_same_moment_admit_once(tmp_path: Path) -> None:
    async def test() -> None:
        desk, worker = Desk(tmp_path), Worker()
        attempt = desk.compared(worker)
        (waiting,) = desk.desk.pending()
        standing, shown = await asyncio.gather(
            desk.desk.verdict(admission.match(attempt)), desk.desk.admit(waiting.machine)
        )
        assert shown.step == "granted"
        assert standing.step in ("granted", "comparing")
        assert desk.desk.ask(attempt.pairing).step == "granted"
        assert len(desk.scene.memberships) == 1

    run(test)


def test_orchestrator_cannot_admit_itself(tmp_path: Path) -> None:
    async def test() -> None:
        desk = Desk(tmp_path)
        worker = Worker()
        worker.keys = admission.Keys(desk.scene.machine.key_pem, worker.keys.pnodes)
        facts = msgspec.json.decode(worker.request)
        worker.request = msgspec.json.encode(
            facts | {"public_key": desk.scene.machine.public_key_pem.decode()}
        )
        attempt = desk.compared(worker)
        await desk.desk.verdict(admission.match(attempt))
        with pytest.raises(RefusedError, match="is the orchestrator of this cluster already"):
            await desk.desk.admit(desk.scene.machine.id)

    run(test)


def test_begin_is_typed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with pytest.raises(RefusedError, match="request to join is malformed"):
        desk.desk.begin(Begin(request=b"{}", commitment=bytes(32), method="digits"), ADDRESS)
