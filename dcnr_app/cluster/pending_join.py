"""A machine that wants to join, as the orchestrator's user needs to see it. Pure."""

from __future__ import annotations

import msgspec

from dcnr_app.cluster.builds import Build, difference_note
from dcnr_app.cluster.membership import Membership
from dcnr_app.cluster.pairing import Pairing
from dcnr_app.cluster.pairing_messages import JoinStep
from dcnr_app.cluster.plain_text import plain_text


class PendingJoin(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that wants to join, its texts free of control characters. A `step` other than "comparing"
    says that it is over, and `why`; a "mismatched" one is a loud warning. `is_known`: it is a member already
    and joins anew."""

    machine: str
    name: str
    address: str
    digits: str
    device: str
    version: str
    n_pnodes: int
    step: JoinStep
    why: str
    is_confirmed: bool
    is_admitted: bool
    is_known: bool
    note: str
    remaining_ms: float


def is_shown(state: Pairing) -> bool:
    """Whether people see this attempt: once its keys are proven, and if it is not for a code to decide."""
    return state.method == "digits" and state.transcript != b""


def shown_to_people(state: Pairing, members: Membership, build: Build, now_ms: float) -> PendingJoin:
    """How one attempt stands; `members` and `build` are the cluster's."""
    request = state.request
    return PendingJoin(
        machine=state.machine,
        name=request.name,
        address=state.address,
        digits=state.digits,
        device=request.device,
        version=plain_text(request.build.version, 32),
        n_pnodes=len(request.pnode_keys),
        step=state.step,
        why=state.why,
        is_confirmed=state.is_confirmed,
        is_admitted=state.is_admitted,
        is_known=members.find(state.machine) is not None,
        note=difference_note(request.build, build),
        remaining_ms=max(0.0, state.deadline_ms - now_ms),
    )
