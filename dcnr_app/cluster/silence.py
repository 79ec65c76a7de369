"""Why no other machine is seen on the local network, in words, with what to do. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from dcnr_app.cluster.addresses import Interface

ECHO_MS: Final = 3_000.0
"""Our own announcement is back from the network stack within this time, or multicast does not work here."""
PATIENCE_MS: Final = 8_000.0

Cause = Literal["no-interface", "no-socket", "no-echo", "vpn-only", "nobody"]

_BY_ADDRESS: Final = "dcnr-app join HOST"


class Silence(msgspec.Struct, frozen=True):
    """A named cause, what it means, and the one thing to try."""

    cause: Cause
    why: str
    fix: str


class Hearing(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of hearing: `interfaces` in use, why no socket could be opened (empty if some could),
    whether our own announcement came back, how many others were heard, and for how long we listen."""

    interfaces: tuple[Interface, ...]
    socket_error: str
    heard_own: bool
    n_others: int
    listening_ms: float


def why_nobody(hearing: Hearing) -> Silence | None:
    """The cause of the silence; None while others are heard or it is too early to say."""
    if hearing.n_others:
        return None
    if not hearing.interfaces:
        return Silence("no-interface", "this machine is on no network", "dcnr-app doctor")
    if hearing.socket_error:
        return Silence(
            "no-socket",
            f"multicast DNS (UDP port 5353) cannot be used: {hearing.socket_error}",
            "dcnr-app doctor",
        )
    if not hearing.heard_own and hearing.listening_ms >= ECHO_MS:
        return Silence(
            "no-echo",
            "what this machine announces does not even come back to itself: a firewall or the system drops "
            "multicast",
            "dcnr-app doctor",
        )
    if hearing.listening_ms < PATIENCE_MS:
        return None
    names = ", ".join(interface.name for interface in hearing.interfaces)
    if all(interface.kind == "vpn" for interface in hearing.interfaces):
        why = f"only a VPN is up ({names}), and VPNs carry no multicast: name the other machine's address"
        return Silence("vpn-only", why, _BY_ADDRESS)
    return Silence(
        "nobody",
        f"no other machine was heard on {names}: dcnr-app is not up there, it is another network, or the "
        "access point or switch keeps multicast from passing (then name the other machine's address)",
        _BY_ADDRESS,
    )
