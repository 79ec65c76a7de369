"""The named reasons for which nobody is seen."""

from __future__ import annotations

from typing import Any

import pytest

from dcnr_app.cluster.addresses import Interface
from dcnr_app.cluster.silence import ECHO_MS, PATIENCE_MS, Hearing, why_nobody

LAN = Interface(name="eth0", index=2, kind="wired", networks=("192.168.1.5/24",))
VPN = Interface(name="tailscale0", index=3, kind="vpn", networks=("100.64.1.1/32",))


def hearing(**changes: Any) -> Hearing:
    """A machine that listens in vain on a LAN; everything of its own works."""
    fields: dict[str, Any] = {
        "interfaces": (LAN,),
        "socket_error": "",
        "heard_own": True,
        "n_others": 0,
        "listening_ms": PATIENCE_MS,
    }
    return Hearing(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"interfaces": ()}, "no-interface"),
        ({"socket_error": "Address already in use"}, "no-socket"),
        ({"heard_own": False, "listening_ms": ECHO_MS}, "no-echo"),
        ({"interfaces": (VPN,)}, "vpn-only"),
        ({"interfaces": (LAN, VPN)}, "nobody"),
        ({}, "nobody"),
    ],
)
def test_every_silence_has_its_cause_and_one_thing_to_try(changes: dict[str, Any], cause: str) -> None:
    found = why_nobody(hearing(**changes))
    assert found is not None
    assert (found.cause, bool(found.why), "dcnr-app" in found.fix) == (cause, True, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_others": 1},
        {"n_others": 1, "heard_own": False},
        {"listening_ms": PATIENCE_MS - 1},
        {"heard_own": False, "listening_ms": ECHO_MS - 1},
    ],
)
def test_there_is_no_complaint_while_others_are_heard_or_it_is_early(changes: dict[str, Any]) -> None:
    assert why_nobody(hearing(**changes)) is None


def test_the_reason_names_the_interfaces_and_the_way_without_multicast() -> None:
    found = why_nobody(hearing(interfaces=(LAN, VPN)))
    assert found is not None
    assert "eth0, tailscale0" in found.why
    assert "dcnr-app join HOST" in found.fix
