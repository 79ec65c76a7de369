"""What people mean by the words they type for machines, members and clusters. Pure.

One and only one must fit; otherwise those that there are, are named.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcnr_app.cluster.joining import Target
from dcnr_app.cluster.joining_codes import read_target
from dcnr_app.cluster.membership import MemberRecord
from dcnr_app.cluster.neighbours import Neighbour
from dcnr_app.cluster.pairing_messages import FRONT_DOOR_PORT
from dcnr_app.cluster.pending_join import PendingJoin
from dcnr_app.errors import RefusedError, UserError


def target_of(text: str, neighbours: Sequence[Neighbour], silence: str) -> Target:
    """Where to join: an orchestrator that is heard, by its name, id, cluster or cluster's id, else a host.
    Without text the only cluster that is heard; `silence` says why none is, if that is known. Raises
    UserError."""
    heard = [n for n in neighbours if n.announcement.role == "orchestrator"]
    fits = [n for n in heard if not text or text in _names(n)]
    if len(fits) == 1:
        return Target(fits[0].addresses, fits[0].announcement.front_door_port)
    if text and not fits:
        host, port = read_target(text, FRONT_DOOR_PORT)
        return Target((host,), port)
    known = ", ".join(f"{n.announcement.cluster_name!r} on {n.announcement.name}" for n in heard)
    raise UserError(
        "several clusters fit" if fits else "no cluster is heard on this network",
        why=known or silence or "nobody has answered yet",
        fix="give the name of one, or its address: dcnr-app join HOST",
    )


def waiting_of(text: str, pending: Sequence[PendingJoin]) -> str:
    """The id of the machine that waits to join, by its id, name or digits; without text the only one. Raises
    RefusedError."""
    waiting = [p for p in pending if p.step == "comparing"]
    wanted = text.replace("-", "").replace(" ", "")
    fits = [p for p in waiting if not text or text in (p.machine, p.name) or wanted == p.digits]
    if len(fits) == 1:
        return fits[0].machine
    names = ", ".join(f"{p.name} ({p.machine}, digits {p.digits})" for p in waiting)
    called = f" {text!r}" if text else ""
    raise RefusedError(
        "several machines wait to join" if fits else f"no machine{called} waits to join",
        why=names or "nobody waits",
        fix="dcnr-app admit MACHINE" if names else "run `dcnr-app join` on the other machine",
    )


def member_of(text: str, records: Sequence[MemberRecord]) -> MemberRecord:
    """A member, by its id, its name, or the id of one of its PNodes. Raises RefusedError."""
    fits = [
        r for r in records if text in (r.machine, r.name) or any(text == entry.pnode for entry in r.pnodes)
    ]
    if len(fits) == 1:
        return fits[0]
    raise RefusedError(
        f"{'several machines are' if fits else 'no machine is'} called {text!r}",
        why=", ".join(f"{r.name} ({r.machine})" for r in records),
        fix="dcnr-app pnode ls",
    )


def _names(heard: Neighbour) -> tuple[str, ...]:
    said = heard.announcement
    return (said.machine, said.name, said.cluster, said.cluster_name)
