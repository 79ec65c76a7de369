"""What a joining machine takes from the orchestrator, and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from dcnr_app.cluster import admission, pairing
from dcnr_app.cluster.admission import Attempt
from dcnr_app.cluster.identity import AGENT_ROLE, ClusterAuthority, agent_id, fingerprint, pnode_id
from dcnr_app.cluster.keys import machine_id, new_key_pem, public_pem, sign
from dcnr_app.cluster.membership import MemberRecord, PNodeRecord, admitted, founded
from dcnr_app.cluster.pairing_messages import Grant, PNodeGrant, Standing
from dcnr_app.errors import RefusedError
from tests.cluster.pairing_scene import CLUSTER, Cluster, Worker

WORKER, ORCHESTRATOR = Worker(), Cluster()
ATTEMPT = WORKER.attempt(ORCHESTRATOR.offered())
MACHINE = machine_id(public_pem(WORKER.keys.machine))
OWNER = machine_id(public_pem(ORCHESTRATOR.key_pem))


def grant(
    authority: ClusterAuthority = ORCHESTRATOR.authority,
    *,
    cluster: str = CLUSTER,
    agent_key: bytes = WORKER.keys.machine,
    pnode_key: bytes = WORKER.keys.pnodes[0],
    pnode_role: str = "worker",
    names: str = MACHINE,
) -> Grant:
    agent = authority.certify(public_pem(agent_key), agent_id(names), cluster, AGENT_ROLE)
    pnode = authority.certify(public_pem(pnode_key), pnode_id(names, 0), cluster, pnode_role)
    first = MemberRecord(machine=OWNER, name="o", role="orchestrator", agent_fingerprint="f", pnodes=())
    record = MemberRecord(
        machine=MACHINE,
        name="w",
        role="worker",
        agent_fingerprint=fingerprint(agent),
        pnodes=(PNodeRecord(pnode_id(MACHINE, 0), fingerprint(pnode)),),
    )
    return Grant(
        agent_cert_pem=agent.decode(),
        pnodes=(PNodeGrant(pnode_id(MACHINE, 0), pnode.decode()),),
        orchestrator=OWNER,
        orchestrator_fingerprint="f",
        membership=admitted(founded(CLUSTER, "home", first), record),
    )


def standing(given: Grant, *, attempt: Attempt = ATTEMPT, key: bytes = ORCHESTRATOR.key_pem) -> Standing:
    encoded = msgspec.json.encode(given)
    signature = sign(key, pairing.grant_text(attempt.transcript, encoded))
    return Standing(step="granted", grant=encoded, signature=signature)


def test_what_was_granted_is_taken_with_the_machines_own_keys() -> None:
    accepted = admission.accept(ATTEMPT, standing(grant()))
    assert accepted.agent.key_pem == WORKER.keys.machine
    assert accepted.agent.ca_pem == ORCHESTRATOR.authority.ca_pem
    ((pnode, secret),) = accepted.pnodes
    assert (pnode, secret.key_pem) == (pnode_id(MACHINE, 0), WORKER.keys.pnodes[0])


REPLACED = msgspec.structs.replace


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: grant(ClusterAuthority.create(CLUSTER)), "not from this cluster's authority"),
        (lambda: grant(agent_key=new_key_pem()), "for another key"),
        (lambda: grant(pnode_key=new_key_pem()), "for another key"),
        (lambda: grant(names="0" * 16), "names another PNode"),
        (lambda: grant(pnode_role="orchestrator"), "names another PNode"),
        (lambda: grant(cluster="other"), "names another PNode"),
        (lambda: REPLACED(grant(), pnodes=()), "for other PNodes"),
        (lambda: REPLACED(grant(), orchestrator=MACHINE), "another orchestrator"),
        (lambda: REPLACED(grant(), agent_cert_pem="x"), "not a certificate"),
        (lambda: REPLACED(grant(), membership=REPLACED(grant().membership, cluster="x")), "another cluster"),
        (lambda: REPLACED(grant(), membership=grant().membership), "does not hold this machine"),
    ],
)
def test_signed_grant_that_does_not_fit_is_refused(make: Callable[[], Grant], wanted: str) -> None:
    with pytest.raises(RefusedError, match=wanted):
        admission.accept(ATTEMPT, standing(make()))


def test_certificate_that_may_issue_others_is_refused() -> None:
    """The authority's own certificate, for its own key: everything but a leaf."""
    given = REPLACED(grant(), agent_cert_pem=ORCHESTRATOR.authority.ca_pem.decode())
    with pytest.raises(RefusedError):
        admission.accept(ATTEMPT, standing(given))


def test_grant_that_another_key_signed_or_that_was_changed_is_refused() -> None:
    good = standing(grant())
    other = Worker("other").attempt(ORCHESTRATOR.offered())
    for bad in (
        standing(grant(), key=new_key_pem()),
        standing(grant(), attempt=other),  # recorded in another attempt
        REPLACED(good, grant=good.grant + b" "),
        REPLACED(good, signature=b""),
    ):
        with pytest.raises(RefusedError, match="not signed by the cluster's orchestrator"):
            admission.accept(ATTEMPT, bad)


def test_authority_is_compared_with_the_fingerprint_of_an_invite() -> None:
    admission.check_authority(ATTEMPT.offer, fingerprint(ORCHESTRATOR.authority.ca_pem))
    with pytest.raises(RefusedError, match="another cluster answers"):
        admission.check_authority(ATTEMPT.offer, fingerprint(ClusterAuthority.create(CLUSTER).ca_pem))


def test_private_keys_are_in_no_repr() -> None:
    accepted = admission.accept(ATTEMPT, standing(grant()))
    for value in (WORKER.keys, ATTEMPT, accepted):
        assert "PRIVATE" not in repr(value)
