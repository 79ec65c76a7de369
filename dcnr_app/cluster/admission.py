"""The joining machine's side of a pairing: what it says, and what it accepts in return. Pure.

It takes no certificate that is not from the authority it was offered before the digits were compared, or that
is not for its own keys and ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dcnr_app.cluster.identity import (
    AGENT_ROLE,
    Credentials,
    Identity,
    agent_id,
    check_certificate,
    fingerprint,
    pnode_id,
)
from dcnr_app.cluster.keys import is_signed, machine_id, public_pem, sign
from dcnr_app.cluster.pairing import (
    NONCE_BYTES,
    commitment_to,
    digits_of,
    grant_text,
    match_of,
    possession_of,
    transcript_of,
)
from dcnr_app.cluster.pairing_messages import (
    Begin,
    ClusterOffer,
    Grant,
    JoinRequest,
    Method,
    Offered,
    Reveal,
    Standing,
    Verdict,
)
from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.errors import RefusedError, UserError
from dcnr_app.ids import PNodeId, check_id

_PNODE_ROLE = "worker"


class Keys(msgspec.Struct, frozen=True):
    """The private keys of a machine that joins: its own and one for each of its PNodes, PEM."""

    machine: bytes
    pnodes: tuple[bytes, ...]

    def __repr__(self) -> str:
        """Without the keys, so that no log can hold them."""
        return f"Keys(pnodes={len(self.pnodes)})"


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to join, after the cluster's offer."""

    keys: Keys
    pairing: str
    request_bytes: bytes
    nonce: bytes
    offer: ClusterOffer
    transcript: bytes

    @property
    def digits(self) -> str:
        """The six digits that both screens show."""
        return digits_of(self.transcript)


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine has when it was admitted, all of it checked."""

    machine: str
    offer: ClusterOffer
    grant: Grant
    agent: Credentials
    pnodes: tuple[tuple[PNodeId, Credentials], ...]


def make_request(keys: Keys, facts: JoinRequest) -> bytes:
    """The request as bytes: `facts` with the public halves of the keys filled in."""
    request = msgspec.structs.replace(
        facts,
        public_key=public_pem(keys.machine).decode(),
        pnode_keys=tuple(public_pem(key).decode() for key in keys.pnodes),
    )
    return msgspec.json.encode(request)


def begin(request_bytes: bytes, nonce: bytes, method: Method) -> Begin:
    """The first message. `nonce` is NONCE_BYTES of fresh randomness."""
    return Begin(request=request_bytes, commitment=commitment_to(nonce, request_bytes), method=method)


def attempt(keys: Keys, request_bytes: bytes, nonce: bytes, offered: Offered) -> Attempt:
    """After the cluster's offer. Raises RefusedError if that is malformed."""
    try:
        offer = msgspec.json.decode(offered.offer, type=ClusterOffer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("what the cluster offers is malformed", why=str(error)[:200]) from error
    if len(offered.nonce) != NONCE_BYTES:
        raise RefusedError("what the cluster offers is malformed", why="its nonce has another length")
    try:
        check_id(offer.cluster, "cluster")
    except UserError as error:
        raise RefusedError("what the cluster offers is malformed", why=error.what) from error
    fingerprint(offer.ca_pem.encode())  # raises if it is no certificate
    machine_id(offer.public_key.encode())  # raises if it is no key
    return Attempt(
        keys=keys,
        pairing=offered.pairing,
        request_bytes=request_bytes,
        nonce=nonce,
        offer=msgspec.structs.replace(
            offer,
            name=plain_text(offer.name),
            cluster_name=plain_text(offer.cluster_name),
        ),
        transcript=transcript_of(request_bytes, offered.offer, nonce, offered.nonce),
    )


def check_authority(offer: ClusterOffer, ca_fingerprint: str) -> None:
    """Raise RefusedError unless the cluster's authority is the one that an invite names."""
    if fingerprint(offer.ca_pem.encode()) != ca_fingerprint:
        raise RefusedError(
            "another cluster answers than the one that the invite is from",
            why="its authority has another fingerprint: somebody may stand in between, or it was made anew",
            fix="get a new invite on the cluster's orchestrator: dcnr-app invite",
        )


def reveal(state: Attempt) -> Reveal:
    """The nonce, and the signatures that prove possession of all keys."""
    text = possession_of(state.transcript)
    return Reveal(
        pairing=state.pairing,
        nonce=state.nonce,
        signatures=tuple(sign(key, text) for key in (state.keys.machine, *state.keys.pnodes)),
    )


def match(state: Attempt) -> Verdict:
    """What says that the digits match."""
    signature = sign(state.keys.machine, match_of(state.transcript))
    return Verdict(pairing=state.pairing, verdict="match", signature=signature)


def accept(state: Attempt, standing: Standing) -> Admission:
    """What was granted, checked: signed by the orchestrator whose key the digits cover, and certificates from
    the authority that they cover, for this machine's own keys and ids. Raises RefusedError otherwise."""
    text = grant_text(state.transcript, standing.grant)
    if not is_signed(state.offer.public_key.encode(), text, standing.signature):
        raise RefusedError("what was granted is not signed by the cluster's orchestrator", fix=_LOOK)
    try:
        grant = msgspec.json.decode(standing.grant, type=Grant)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("what was granted is malformed", why=str(error)[:200]) from error
    machine = machine_id(public_pem(state.keys.machine))
    wanted = [pnode_id(machine, ordinal) for ordinal in range(len(state.keys.pnodes))]
    if [entry.pnode for entry in grant.pnodes] != wanted:
        raise RefusedError("what was granted is for other PNodes", fix=_LOOK)
    if grant.membership.cluster != state.offer.cluster:
        raise RefusedError("what was granted is for another cluster", fix=_LOOK)
    if grant.orchestrator != machine_id(state.offer.public_key.encode()):
        raise RefusedError("what was granted names another orchestrator", fix=_LOOK)
    certificates = [entry.cert_pem.encode() for entry in grant.pnodes]
    pnodes = [
        _checked(state, cert_pem, key_pem, pnode, _PNODE_ROLE)
        for cert_pem, key_pem, pnode in zip(certificates, state.keys.pnodes, wanted, strict=True)
    ]
    agent_cert = grant.agent_cert_pem.encode()
    agent = _checked(state, agent_cert, state.keys.machine, agent_id(machine), AGENT_ROLE)
    _check_record(grant, machine, agent, pnodes)
    return Admission(
        machine=machine,
        offer=state.offer,
        grant=grant,
        agent=agent,
        pnodes=tuple(zip(wanted, pnodes, strict=True)),
    )


def _checked(state: Attempt, cert_pem: bytes, key_pem: bytes, pnode: PNodeId, role: str) -> Credentials:
    ca_pem = state.offer.ca_pem.encode()
    wanted = Identity(pnode=pnode, cluster=state.offer.cluster, role=role, fingerprint="")
    check_certificate(cert_pem, ca_pem, public_pem(key_pem), wanted)
    return Credentials(cert_pem=cert_pem, key_pem=key_pem, ca_pem=ca_pem)


def _check_record(grant: Grant, machine: str, agent: Credentials, pnodes: Sequence[Credentials]) -> None:
    record = grant.membership.find(machine)
    shown = [fingerprint(own.cert_pem) for own in pnodes]
    if (
        record is None
        or record.agent_fingerprint != fingerprint(agent.cert_pem)
        or [entry.fingerprint for entry in record.pnodes] != shown
    ):
        raise RefusedError("the membership that was granted does not hold this machine", fix=_LOOK)


_LOOK = "somebody may have changed it on its way: look at the network, then try again"
