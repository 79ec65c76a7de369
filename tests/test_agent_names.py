"""One and only one machine must fit what a person types; otherwise those that there are, are named."""

from __future__ import annotations

import pytest

from dcnr_app.agent_names import member_of, target_of, waiting_of
from dcnr_app.cluster.announcement import Announcement
from dcnr_app.cluster.membership import MemberRecord, PNodeRecord
from dcnr_app.cluster.neighbours import Neighbour
from dcnr_app.cluster.pairing_messages import FRONT_DOOR_PORT, JoinStep
from dcnr_app.cluster.pending_join import PendingJoin
from dcnr_app.errors import RefusedError, UserError
from dcnr_app.ids import PNodeId


def heard(machine: str, name: str, cluster_name: str, role: str = "orchestrator") -> Neighbour:
    said = Announcement(
        machine=machine * 8, name=name, fingerprint=machine * 32, front_door_port=4711, protocol_min=1,
        protocol_max=1, app_version="1", cluster=f"id-of-{cluster_name}", cluster_name=cluster_name,
        role=role, device_summary="", agent_port=None,
    )  # fmt: skip
    return Neighbour(announcement=said, addresses=("192.168.1.20",), state="live", silent_ms=0.0)


def member(machine: str, name: str) -> MemberRecord:
    return MemberRecord(
        machine=machine, name=name, role="worker", agent_fingerprint="f",
        pnodes=(PNodeRecord(PNodeId(f"{machine}-0"), "f"), PNodeRecord(PNodeId(f"{machine}-1"), "f")),
        admitted_ms=0,
    )  # fmt: skip


def waiting(machine: str, name: str, digits: str, step: JoinStep = "comparing") -> PendingJoin:
    return PendingJoin(
        machine=machine, name=name, address="", digits=digits, device="", version="", n_pnodes=1, step=step,
        why="", is_confirmed=False, is_admitted=False, is_known=False, note="", remaining_ms=0.0,
    )  # fmt: skip


HOME, LAB = heard("aa", "desk", "home"), heard("bb", "tower", "lab")
WORKER = heard("cc", "laptop", "home", role="worker")
SECOND_HOME = heard("dd", "rack", "home")


@pytest.mark.parametrize("text", ["", "aa" * 8, "desk", "home", "id-of-home"])
def test_a_cluster_is_meant_by_its_name_or_its_machines(text: str) -> None:
    found = target_of(text, [HOME, WORKER, *([LAB] if text else [])], "")
    assert (found.hosts, found.port) == (("192.168.1.20",), 4711)


def test_what_is_heard_of_nobody_is_a_host() -> None:
    found = target_of("laptop", [HOME, WORKER], "")
    assert (found.hosts, found.port) == (("laptop",), FRONT_DOOR_PORT)
    assert target_of("[::1]:5", [], "").port == 5


@pytest.mark.parametrize(
    ("text", "neighbours", "silence", "what", "why"),
    [
        ("", [HOME, LAB], "", "several clusters fit", "'home' on desk, 'lab' on tower"),
        ("home", [HOME, SECOND_HOME], "", "several clusters fit", "'home' on desk, 'home' on rack"),
        ("", [WORKER], "", "no cluster is heard", "nobody has answered yet"),
        ("", [], "multicast is blocked", "no cluster is heard", "multicast is blocked"),
    ],
)
def test_an_unclear_place_is_told_with_what_is_heard(
    text: str, neighbours: list[Neighbour], silence: str, what: str, why: str
) -> None:
    with pytest.raises(UserError, match=what) as told:
        target_of(text, neighbours, silence)
    assert told.value.why == why


@pytest.mark.parametrize("text", ["", "aa", "desk", "123456", "123-456", "123 456"])
def test_a_waiting_machine_is_meant_by_id_name_or_digits(text: str) -> None:
    others = [waiting("bb", "tower", "654321")] if text else []
    assert waiting_of(text, [waiting("aa", "desk", "123456"), *others]) == "aa"


def test_only_machines_whose_digits_are_compared_can_be_meant() -> None:
    steps: tuple[JoinStep, ...] = ("granted", "rejected", "expired")
    over = [waiting("aa", "desk", "123456", step=step) for step in steps]
    for text in ("", "aa", "123456"):
        with pytest.raises(RefusedError, match="waits to join") as told:
            waiting_of(text, over)
        assert told.value.why == "nobody waits"


def test_several_waiting_machines_are_named_and_none_is_chosen() -> None:
    both = [waiting("aa", "desk", "123456"), waiting("bb", "desk", "654321")]
    for text in ("", "desk"):
        with pytest.raises(RefusedError, match="several machines wait") as told:
            waiting_of(text, both)
        assert told.value.why == "desk (aa, digits 123456), desk (bb, digits 654321)"


@pytest.mark.parametrize("text", ["aa", "desk", "aa-0", "aa-1"])
def test_a_member_is_meant_by_id_name_or_pnode(text: str) -> None:
    assert member_of(text, [member("aa", "desk"), member("bb", "tower")]).machine == "aa"


@pytest.mark.parametrize(("text", "what"), [("rack", "several machines are"), ("", "no machine is")])
def test_an_unclear_member_is_told_with_those_that_there_are(text: str, what: str) -> None:
    with pytest.raises(RefusedError, match=what) as told:
        member_of(text, [member("aa", "rack"), member("bb", "rack")])
    assert told.value.why == "rack (aa), rack (bb)"
