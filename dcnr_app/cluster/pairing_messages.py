"""What a joining machine and a cluster's front door say to each other: JSON bodies, all typed. Pure.

What both sides must hash alike travels as the bytes that its author encoded (`request`, `offer`, `grant`), so
that a field which one side does not know changes no hash.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from dcnr_app.cluster.builds import Build
from dcnr_app.cluster.membership import Membership
from dcnr_app.ids import PNodeId

FRONT_DOOR_PORT: Final = 47_621
AGENT_PORT: Final = 47_622
MAX_BODY_BYTES: Final = 64 << 10
MAX_REPLY_BYTES: Final = 1 << 20  # a grant carries the membership
MAX_DEVICES: Final = 32

Method = Literal["digits", "code"]
JoinStep = Literal["offered", "comparing", "granted", "rejected", "mismatched", "cancelled", "expired"]


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to GET /v1/info: who this machine says it is. A hint, not proof of anything."""

    machine: str
    name: str
    role: Literal["none", "orchestrator", "worker"]
    cluster: str
    cluster_name: str
    key_fingerprint: str
    build: Build


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine that wants to join says of itself. Keys are public ones, PEM; the machine's own is its
    agent's, and each PNode has one, in the order of its devices."""

    public_key: str
    name: str
    pnode_keys: tuple[str, ...]
    build: Build
    device: str = ""
    addresses: tuple[str, ...] = ()


class ClusterOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What an orchestrator commits itself to: its key, its cluster and the authority's certificate."""

    public_key: str
    name: str
    cluster: str
    cluster_name: str
    ca_pem: str
    build: Build


class PNodeGrant(msgspec.Struct, frozen=True):
    """The certificate for one PNode of the machine that joined."""

    pnode: PNodeId
    cert_pem: str


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What an admitted machine gets. `orchestrator_fingerprint` is the sha256 of the certificate under which
    sessions' processes speak as `orchestrator`."""

    agent_cert_pem: str
    pnodes: tuple[PNodeGrant, ...]
    orchestrator: str
    orchestrator_fingerprint: str
    membership: Membership


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """First: a JoinRequest as bytes, and the commitment to a nonce that is shown later."""

    request: bytes
    commitment: bytes
    method: Method


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to Begin: the secret name of this attempt, a ClusterOffer as bytes, and the cluster's nonce."""

    pairing: str
    offer: bytes
    nonce: bytes


class Reveal(msgspec.Struct, frozen=True, kw_only=True):
    """Then: the nonce, and the transcript signed with each key, the machine's first."""

    pairing: str
    nonce: bytes
    signatures: tuple[bytes, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the person at the joining machine says of the digits; "match" counts only if it is signed."""

    pairing: str
    verdict: Literal["match", "mismatch", "cancel"]
    signature: bytes = b""


class Ask(msgspec.Struct, frozen=True):
    """How does this attempt stand?"""

    pairing: str


class ShowShare(msgspec.Struct, frozen=True, kw_only=True):
    """With a code: which one, and this end's share of the proof."""

    pairing: str
    finder: str
    share: bytes


class Share(msgspec.Struct, frozen=True):
    """Answer to ShowShare: the cluster's share."""

    share: bytes


class ShowProof(msgspec.Struct, frozen=True, kw_only=True):
    """With a code: proof that the joining machine knows it."""

    pairing: str
    proof: bytes


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt stands. With step "granted": a Grant as bytes, signed with the orchestrator's machine
    key, and with a code the proof that the cluster knows it too."""

    step: JoinStep
    why: str = ""
    grant: bytes = b""
    signature: bytes = b""
    proof: bytes = b""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused: the parts of an error as a person reads it."""

    what: str
    why: str = ""
    fix: str = ""
