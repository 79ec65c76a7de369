"""Commit and reveal: equal digits for two that speak directly, other digits with somebody in between."""

from __future__ import annotations

import hashlib
import itertools

import msgspec
import pytest

from dcnr_app.cluster import admission, pairing
from dcnr_app.cluster.keys import new_key_pem, public_pem, sign
from dcnr_app.cluster.pairing import Pairing
from dcnr_app.cluster.pairing_messages import JoinRequest, Offered, Reveal, Verdict
from dcnr_app.errors import RefusedError
from tests.cluster.pairing_scene import Cluster, Worker, nonce


def compared(worker: Worker, cluster: Cluster) -> tuple[admission.Attempt, Pairing]:
    """Both sides after an undisturbed exchange."""
    state = cluster.opened(worker.begin())
    attempt = worker.attempt(cluster.offered())
    return attempt, pairing.revealed(state, admission.reveal(attempt), 1.0)


def test_both_sides_have_the_same_six_digits_and_others_at_the_next_attempt() -> None:
    worker, cluster = Worker(), Cluster()
    attempt, state = compared(worker, cluster)
    assert attempt.digits == state.digits
    assert len(attempt.digits) == 6
    assert attempt.digits.isdigit()
    worker.nonce = nonce("another")
    assert compared(worker, cluster)[0].transcript != attempt.transcript


def test_digits_are_those_of_an_independent_computation() -> None:
    worker, cluster = Worker(), Cluster()
    attempt, _ = compared(worker, cluster)

    def hashed(label: bytes, *parts: bytes) -> bytes:
        return hashlib.sha256(label + b"".join(len(p).to_bytes(8, "big") + p for p in parts)).digest()

    transcript = hashed(b"dcnr transcript 1\n", worker.request, cluster.offer, worker.nonce, cluster.nonce)
    number = int.from_bytes(hashed(b"dcnr digits 1\n", transcript)[:8], "big") % 10**6
    assert attempt.digits == str(number).zfill(6)


@pytest.mark.parametrize("side", ["towards the worker", "towards the cluster", "both"])
def test_somebody_in_the_middle_with_own_keys_gets_different_digits(side: str) -> None:
    """He answers the worker as a cluster and asks the cluster as a worker, as he has neither's keys; where he
    has not exchanged a side's keys he passes on what was said, and then cannot sign for it."""
    worker, cluster = Worker(), Cluster()
    false_cluster, false_worker = Cluster("false cluster"), Worker("false worker")
    if side != "towards the cluster":
        attempt = worker.attempt(false_cluster.offered())
    else:
        attempt = worker.attempt(cluster.offered())
    if side == "towards the worker":
        state = cluster.opened(worker.begin())
        with pytest.raises(RefusedError, match="did not prove that it holds the keys"):
            pairing.revealed(state, admission.reveal(attempt), 1.0)
        return
    state = cluster.opened(false_worker.begin())
    shown = pairing.revealed(state, admission.reveal(false_worker.attempt(cluster.offered())), 1.0)
    assert shown.digits != attempt.digits


def test_nonce_cannot_be_chosen_after_the_others_was_seen() -> None:
    """Somebody in the middle knows the digits that the worker will see, and looks for a nonce that gives the
    cluster's screen the same: the commitment, which he sent before, takes none but the first."""
    cluster, false_worker = Cluster(), Worker("false worker")
    state = cluster.opened(false_worker.begin())
    wanted = "123"  # three digits, so that the search is short; six take a thousand times as long
    for number in itertools.count():
        false_worker.nonce = nonce(f"try {number}")
        attempt = false_worker.attempt(cluster.offered())
        if attempt.digits.startswith(wanted):
            break
    with pytest.raises(RefusedError, match="another nonce than the one it committed"):
        pairing.revealed(state, admission.reveal(attempt), 1.0)


def test_request_cannot_be_changed_after_the_commitment() -> None:
    worker, cluster = Worker(), Cluster()
    changed = msgspec.structs.replace(worker.begin(), request=Worker("other").request)
    state = cluster.opened(changed)
    attempt = worker.attempt(cluster.offered())
    with pytest.raises(RefusedError, match="another nonce"):
        pairing.revealed(state, admission.reveal(attempt), 1.0)


def test_keys_that_the_machine_does_not_hold_are_refused() -> None:
    """The id of another machine, or another machine's PNode key among one's own."""
    victim, cluster = Worker("victim"), Cluster()
    for machine, pnode in ((new_key_pem(), victim.keys.pnodes[0]), (victim.keys.machine, new_key_pem())):
        thief = Worker("thief")
        thief.request = admission.make_request(
            admission.Keys(machine, (pnode,)), msgspec.json.decode(thief.request, type=JoinRequest)
        )
        thief.keys = admission.Keys(
            new_key_pem() if machine == victim.keys.machine else machine,
            (new_key_pem() if pnode == victim.keys.pnodes[0] else pnode,),
        )
        state = cluster.opened(thief.begin())
        with pytest.raises(RefusedError, match="did not prove"):
            pairing.revealed(state, admission.reveal(thief.attempt(cluster.offered())), 1.0)


def test_recorded_exchange_is_worth_nothing_in_a_new_attempt() -> None:
    worker, cluster = Worker(), Cluster()
    attempt, _ = compared(worker, cluster)
    recorded = admission.reveal(attempt)
    cluster.nonce = nonce("fresh")
    state = cluster.opened(worker.begin())
    with pytest.raises(RefusedError, match="did not prove"):
        pairing.revealed(state, recorded, 1.0)
    confirmed = admission.match(attempt)
    fresh = pairing.revealed(state, admission.reveal(worker.attempt(cluster.offered())), 1.0)
    with pytest.raises(RefusedError, match="did not sign that the digits match"):
        pairing.judged(fresh, confirmed, 2.0)


def test_second_reveal_is_refused() -> None:
    attempt, state = compared(Worker(), Cluster())
    with pytest.raises(RefusedError, match="further on"):
        pairing.revealed(state, admission.reveal(attempt), 2.0)


@pytest.mark.parametrize("order", ["match first", "admit first"])
def test_both_users_must_say_yes_in_either_order(order: str) -> None:
    attempt, state = compared(Worker(), Cluster())
    if order == "match first":
        state = pairing.judged(state, admission.match(attempt), 2.0)
        assert not pairing.is_agreed(state)
        state = pairing.decided(state, 3.0, admits=True)
    else:
        state = pairing.decided(state, 2.0, admits=True)
        assert not pairing.is_agreed(state)
        state = pairing.judged(state, admission.match(attempt), 3.0)
    assert pairing.is_agreed(state)
    assert not pairing.is_agreed(pairing.granted(state, 4.0))


def test_match_that_another_key_signed_does_not_count() -> None:
    _, state = compared(Worker(), Cluster())
    forged = Verdict(
        pairing="attempt",
        verdict="match",
        signature=sign(new_key_pem(), pairing.match_of(state.transcript)),
    )
    for verdict in (forged, msgspec.structs.replace(forged, signature=b"")):
        with pytest.raises(RefusedError, match="did not sign"):
            pairing.judged(state, verdict, 2.0)


@pytest.mark.parametrize(("verdict", "step"), [("mismatch", "mismatched"), ("cancel", "cancelled")])
def test_no_needs_no_signature_and_cannot_be_taken_back(verdict: str, step: str) -> None:
    attempt, state = compared(Worker(), Cluster())
    over = pairing.judged(state, Verdict(pairing="attempt", verdict=verdict), 2.0)  # type: ignore[arg-type]
    assert over.step == step
    assert pairing.judged(over, admission.match(attempt), 3.0) == over
    assert pairing.decided(over, 3.0, admits=True) == over
    assert not pairing.is_agreed(over)


def test_attempt_expires_exactly_at_its_deadline_and_is_forgotten_two_minutes_later() -> None:
    worker, cluster = Worker(), Cluster()
    opened = cluster.opened(worker.begin(), now_ms=100.0)
    assert pairing.aged(opened, 10_099.9) == opened
    gone = pairing.aged(opened, 10_100.0)
    assert gone is not None
    assert gone.step == "expired"
    revealed = pairing.revealed(opened, admission.reveal(worker.attempt(cluster.offered())), 200.0)
    assert pairing.aged(revealed, 120_199.9) == revealed
    expired = pairing.aged(revealed, 120_200.0)
    assert expired is not None
    assert (expired.step, expired.why) == ("expired", "the digits were not compared in time")
    assert pairing.aged(expired, 240_199.0) == expired
    assert pairing.aged(expired, 240_200.0) is None


def mutated(request: bytes, **fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(request), **fields})


def test_malformed_requests_are_refused_with_a_reason() -> None:
    worker = Worker()
    good = worker.request
    key = msgspec.json.decode(good)["public_key"]
    cases = {
        b"\xff": "malformed",
        b"[]": "malformed",
        b'{"unknown":' + b"[" * 50_000: "malformed",
        mutated(good, pnode_keys=[]): "1 to 32 devices",
        mutated(good, pnode_keys=["x"] * 33): "1 to 32 devices",
        mutated(good, pnode_keys=["x"]): "not a public key",
        mutated(good, pnode_keys=[key]): "two of the machine's keys are the same",
        mutated(good, addresses=["a b:1"]): "addresses are malformed",
        mutated(good, addresses=["a:1"] * 17): "addresses are malformed",
    }
    for request, wanted in cases.items():
        with pytest.raises(RefusedError, match=wanted):
            pairing.read_request(request)
    begin = msgspec.structs.replace(worker.begin(), commitment=b"short")
    with pytest.raises(RefusedError, match="commitment is malformed"):
        Cluster().opened(begin)


def test_names_of_strangers_are_shown_without_control_characters() -> None:
    request = pairing.read_request(
        mutated(Worker().request, name="a\x1b[2J\u202eb\n c" + "x" * 999, device="\x07")
    )
    assert request.name == ("a[2Jb c" + "x" * 999)[:64]
    assert request.device == ""
    nameless = pairing.read_request(mutated(Worker().request, name="\x00"))
    assert len(nameless.name) == 16


def test_field_that_this_build_does_not_know_changes_no_digit_between_the_sides() -> None:
    worker, cluster = Worker(), Cluster()
    worker.request = mutated(worker.request, new_field=[1, 2])
    cluster.offer = mutated(cluster.offer, another="x")
    attempt, state = compared(worker, cluster)
    assert attempt.digits == state.digits


def test_offers_that_are_no_offers_are_refused() -> None:
    worker, cluster = Worker(), Cluster()
    good = cluster.offered()
    cases: list[Offered] = [
        msgspec.structs.replace(good, offer=b"{"),
        msgspec.structs.replace(good, nonce=b"short"),
        msgspec.structs.replace(good, offer=mutated(good.offer, ca_pem="no certificate")),
        msgspec.structs.replace(good, offer=mutated(good.offer, public_key="no key")),
        msgspec.structs.replace(good, offer=mutated(good.offer, cluster="../..")),
    ]
    for offered in cases:
        with pytest.raises(RefusedError):
            worker.attempt(offered)


def test_reveal_with_too_few_signatures_or_a_short_nonce_is_refused() -> None:
    worker, cluster = Worker(), Cluster()
    attempt = worker.attempt(cluster.offered())
    full = admission.reveal(attempt)
    state = cluster.opened(worker.begin())
    for bad in (
        msgspec.structs.replace(full, signatures=full.signatures[:1]),
        msgspec.structs.replace(full, signatures=(*full.signatures, b"")),
        Reveal(pairing="attempt", nonce=b"", signatures=full.signatures),
    ):
        with pytest.raises(RefusedError):
            pairing.revealed(state, bad, 1.0)
    assert public_pem(worker.keys.machine).decode() in worker.request.decode().replace("\\n", "\n")
