"""How two machines that never met make sure that nobody stands between them. Pure: states in, states out.

1. The joining machine sends its request (its keys) and a commitment to a nonce.
2. The cluster answers with its offer (its keys, its authority's certificate) and its own nonce.
3. The joining machine shows its nonce, and signs the transcript with each of its keys.
4. Both show six digits of a hash of the transcript. People compare them; both say so.

Somebody in the middle with keys of his own has two transcripts, and could make their digits equal only by
trying nonces. He cannot: he must commit to one nonce before he sees the cluster's, and send the other before
he sees the joining machine's. One attempt succeeds with probability 1e-6.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

import msgspec

from dcnr_app.cluster.keys import is_signed, machine_id
from dcnr_app.cluster.pairing_messages import (
    MAX_DEVICES,
    Begin,
    JoinRequest,
    JoinStep,
    Method,
    Reveal,
    Verdict,
)
from dcnr_app.cluster.plain_text import plain_text
from dcnr_app.errors import RefusedError

NONCE_BYTES: Final = 32
REVEAL_LIFE_MS: Final = 10_000.0
"""Between offer and reveal nobody has to do anything: programs are at it."""
PEOPLE_LIFE_MS: Final = 120_000.0
"""What people get for each thing that they have to do."""
_HASH_BYTES: Final = 32
_MAX_ADDRESSES: Final = 16
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%A-Za-z0-9]{2,64}\]|[A-Za-z0-9.-]{1,253}):[0-9]{1,5}")
_TRANSCRIPT, _GRANT, _MATCH = b"dcnr transcript 1\n", b"dcnr grant 1\n", b"dcnr digits match 1\n"
_COMMITMENT, _DIGITS, _POSSESSION = b"dcnr commitment 1\n", b"dcnr digits 1\n", b"dcnr possession 1\n"


class Pairing(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's side of one attempt. Both `is_confirmed` (the joining machine's user) and `is_admitted`
    (the orchestrator's) lead to "granted", in either order; with a code, the proof stands for both."""

    pairing: str
    method: Method
    address: str
    request_bytes: bytes
    request: JoinRequest
    machine: str
    commitment: bytes
    offer_bytes: bytes
    nonce: bytes
    step: JoinStep
    why: str
    deadline_ms: float
    transcript: bytes = b""
    is_confirmed: bool = False
    is_admitted: bool = False

    @property
    def digits(self) -> str:
        """The six digits that both screens show; empty before the nonces are known."""
        return digits_of(self.transcript) if self.transcript else ""

    @property
    def is_open(self) -> bool:
        """Whether it can still lead to an admission."""
        return self.step in ("offered", "comparing")


def commitment_to(nonce: bytes, request_bytes: bytes) -> bytes:
    """What fixes a nonce, and the request that it goes with, before either is used."""
    return _hash(_COMMITMENT, nonce, request_bytes)


def transcript_of(request_bytes: bytes, offer_bytes: bytes, nonce: bytes, cluster_nonce: bytes) -> bytes:
    """The hash of all that both sides said: both machines' keys, the PNodes' keys, the authority's
    certificate, the cluster's id and both nonces."""
    return _hash(_TRANSCRIPT, request_bytes, offer_bytes, nonce, cluster_nonce)


def digits_of(transcript: bytes) -> str:
    """Six decimal digits for people to compare."""
    return f"{int.from_bytes(_hash(_DIGITS, transcript)[:8]) % 1_000_000:06d}"


def possession_of(transcript: bytes) -> bytes:
    """What each key of the joining machine signs."""
    return _POSSESSION + transcript


def match_of(transcript: bytes) -> bytes:
    """What the joining machine signs when its user says that the digits match."""
    return _MATCH + transcript


def grant_text(transcript: bytes, grant_bytes: bytes) -> bytes:
    """What the orchestrator's machine key signs: this grant for this transcript only."""
    return _GRANT + _hash(_GRANT, transcript, grant_bytes)


def opened(
    pairing: str, begin: Begin, address: str, offer_bytes: bytes, nonce: bytes, now_ms: float
) -> Pairing:
    """The cluster's side after its offer. `pairing` and `nonce` are fresh random ones, `address` is where the
    request came from. Raises RefusedError if the request is malformed."""
    request = read_request(begin.request)
    if len(begin.commitment) != _HASH_BYTES:
        raise RefusedError("the commitment is malformed")
    return Pairing(
        pairing=pairing,
        method=begin.method,
        address=address,
        request_bytes=begin.request,
        request=request,
        machine=machine_id(request.public_key.encode()),
        commitment=begin.commitment,
        offer_bytes=offer_bytes,
        nonce=nonce,
        step="offered",
        why="",
        deadline_ms=now_ms + REVEAL_LIFE_MS,
    )


def revealed(state: Pairing, reveal: Reveal, now_ms: float) -> Pairing:
    """After the joining machine showed its nonce and signed. Raises RefusedError if that is not what it
    committed itself to, if a key is not its own, or at a second time: then this attempt is over."""
    if state.step != "offered":
        raise RefusedError("this attempt to join is further on, or over", why="nothing is taken twice")
    commitment = commitment_to(reveal.nonce, state.request_bytes)
    if len(reveal.nonce) != NONCE_BYTES or not hmac.compare_digest(commitment, state.commitment):
        raise RefusedError("the machine showed another nonce than the one it committed itself to")
    transcript = transcript_of(state.request_bytes, state.offer_bytes, reveal.nonce, state.nonce)
    keys = (state.request.public_key, *state.request.pnode_keys)
    signed = possession_of(transcript)
    if len(reveal.signatures) != len(keys) or not all(
        is_signed(key.encode(), signed, signature)
        for key, signature in zip(keys, reveal.signatures, strict=True)
    ):
        raise RefusedError("the machine did not prove that it holds the keys it sent")
    return msgspec.structs.replace(
        state, step="comparing", transcript=transcript, deadline_ms=now_ms + PEOPLE_LIFE_MS
    )


def judged(state: Pairing, verdict: Verdict, now_ms: float) -> Pairing:
    """After what the joining machine's user said. "mismatch" and "cancel" need no signature: to stop is
    always safe. Raises RefusedError for a "match" that its machine did not sign."""
    if not state.is_open or state.method != "digits":
        return state
    if verdict.verdict == "cancel":
        return _ended(state, "cancelled", "the other machine's user cancelled", now_ms)
    if verdict.verdict == "mismatch":
        why = (
            "the digits were different on the other machine: somebody may stand between the two machines. "
            "Do not try again over this network before you know why"
        )
        return _ended(state, "mismatched", why, now_ms)
    signed = match_of(state.transcript)
    is_own = is_signed(state.request.public_key.encode(), signed, verdict.signature)
    if state.step != "comparing" or not is_own:
        raise RefusedError("the machine did not sign that the digits match")
    return msgspec.structs.replace(state, is_confirmed=True, deadline_ms=now_ms + PEOPLE_LIFE_MS)


def decided(state: Pairing, now_ms: float, *, admits: bool) -> Pairing:
    """After Admit or Reject on the orchestrator."""
    if not state.is_open:
        return state
    if not admits:
        return _ended(state, "rejected", "the orchestrator's user rejected it", now_ms)
    return msgspec.structs.replace(state, is_admitted=True, deadline_ms=now_ms + PEOPLE_LIFE_MS)


def granted(state: Pairing, now_ms: float) -> Pairing:
    """After certificates were made: what was granted can be fetched again until the deadline, as an answer
    may be lost."""
    return _ended(state, "granted", "", now_ms)


def is_agreed(state: Pairing) -> bool:
    """Whether both users said yes, and nothing was granted yet."""
    return state.step == "comparing" and state.is_confirmed and state.is_admitted


def aged(state: Pairing, now_ms: float) -> Pairing | None:
    """The state at this time: expired when its deadline is past, None when nobody needs it any more."""
    if now_ms < state.deadline_ms:
        return state
    if not state.is_open:
        return None
    waiting = "the digits were not compared" if not state.is_confirmed else "nobody admitted it"
    why = f"{waiting} in time" if state.step == "comparing" else "the other machine went away"
    return _ended(state, "expired", why, now_ms)


def read_request(data: bytes) -> JoinRequest:
    """A request as it may be used: its texts made safe to show. Raises RefusedError if it is malformed."""
    try:
        request = msgspec.json.decode(data, type=JoinRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("the request to join is malformed", why=str(error)[:200]) from error
    if not 1 <= len(request.pnode_keys) <= MAX_DEVICES:
        raise RefusedError(f"a machine joins with 1 to {MAX_DEVICES} devices, not {len(request.pnode_keys)}")
    keys = [request.public_key, *request.pnode_keys]
    if len({machine_id(key.encode()) for key in keys}) != len(keys):
        raise RefusedError("two of the machine's keys are the same")
    if len(request.addresses) > _MAX_ADDRESSES or not all(map(_ADDRESS.fullmatch, request.addresses)):
        raise RefusedError("the machine's addresses are malformed")
    return msgspec.structs.replace(
        request,
        name=plain_text(request.name) or machine_id(request.public_key.encode()),
        device=plain_text(request.device, 160),
    )


def _ended(state: Pairing, step: JoinStep, why: str, now_ms: float) -> Pairing:
    return msgspec.structs.replace(state, step=step, why=why, deadline_ms=now_ms + PEOPLE_LIFE_MS)


def _hash(label: bytes, *parts: bytes) -> bytes:
    """sha256 over the parts with their lengths, so that no byte can move from one to the next."""
    digest = hashlib.sha256(label)
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
