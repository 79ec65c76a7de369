"""The membership: one epoch per change, and what was removed stays removed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr_app.cluster.identity import agent_id
from dcnr_app.cluster.membership import (
    MAX_MEMBERS,
    MachineRole,
    MemberRecord,
    Membership,
    PNodeRecord,
    admitted,
    agent_members,
    dial_address,
    founded,
    merged,
    pnode_members,
    relocated,
    removed,
    renamed,
)
from dcnr_app.errors import RefusedError
from dcnr_app.ids import PNodeId


def record(machine: str, role: MachineRole = "worker", fingerprint: str = "f") -> MemberRecord:
    return MemberRecord(
        machine=machine,
        name=f"name of {machine}",
        role=role,
        agent_fingerprint=f"{fingerprint}-{machine}",
        pnodes=(PNodeRecord(PNodeId(f"{machine}-0"), f"{fingerprint}-{machine}-0"),),
        addresses=(f"{machine}.lan:1",),
    )


def cluster(*workers: str) -> Membership:
    members = founded("c", "home", record("orchestrator", "orchestrator"))
    for worker in workers:
        members = admitted(members, record(worker))
    return members


def ids(members: Membership) -> list[str]:
    return [member.machine for member in members.members]


def test_each_change_raises_the_epoch_by_one_and_no_change_by_none() -> None:
    members = cluster("b")
    assert members.epoch == 2
    assert admitted(members, record("a")).epoch == 3
    assert renamed(members, "b", "other").epoch == 3
    assert relocated(members, "b", ["x:1", "y:2"]).epoch == 3
    assert removed(members, "b").epoch == 3
    assert renamed(members, "b", "name of b") is members
    assert relocated(members, "b", ["b.lan:1"]) is members


def test_members_are_sorted_and_found() -> None:
    members = cluster("b", "a")
    assert ids(members) == ["a", "b", "orchestrator"]
    assert members.find("a") is not None
    assert members.find("z") is None
    assert members.orchestrator is not None
    assert members.orchestrator.machine == "orchestrator"


def test_machine_that_joins_again_has_one_entry_with_its_new_certificate() -> None:
    members = admitted(cluster("a"), record("a", fingerprint="new"))
    assert ids(members) == ["a", "orchestrator"]
    assert [m.fingerprint for m in agent_members(members) if m.pnode == agent_id("a")] == ["new-a"]


def test_removed_machine_is_not_brought_back_by_an_older_copy() -> None:
    old = cluster("a", "b")
    new = removed(old, "a")
    assert ids(merged(new, old)) == ids(merged(old, new)) == ["b", "orchestrator"]
    assert merged(old, new).was_removed("a")
    assert not merged(old, new).was_removed("b")


def test_tombstone_holds_against_a_higher_epoch_of_a_copy_that_never_heard_of_it() -> None:
    shared = cluster("a", "b")
    here = removed(shared, "a")
    there = renamed(renamed(shared, "b", "x"), "b", "y")
    assert there.epoch > here.epoch
    assert ids(merged(here, there)) == ids(merged(there, here)) == ["b", "orchestrator"]


def test_removed_machine_that_was_admitted_again_is_a_member() -> None:
    gone = removed(cluster("a"), "a")
    back = admitted(gone, record("a", fingerprint="new"))
    assert ids(merged(back, gone)) == ids(merged(gone, back)) == ["a", "orchestrator"]
    assert not back.was_removed("a")


def test_orchestrator_and_strangers_cannot_be_removed() -> None:
    with pytest.raises(RefusedError, match="cannot be removed"):
        removed(cluster(), "orchestrator")
    with pytest.raises(RefusedError, match="z is not a member") as told:
        removed(cluster(), "z")
    assert "pnode ls" in told.value.fix


def test_copy_of_another_cluster_is_refused() -> None:
    with pytest.raises(RefusedError, match="does not concern this one"):
        merged(cluster(), msgspec.structs.replace(cluster(), cluster="other"))


def test_full_cluster_refuses_one_more_but_takes_a_known_one_again() -> None:
    members = cluster(*(f"m{number:03d}" for number in range(MAX_MEMBERS - 1)))
    with pytest.raises(RefusedError, match="is full"):
        admitted(members, record("one-more"))
    assert len(admitted(members, record("m000", fingerprint="new")).members) == MAX_MEMBERS


def test_transport_members_are_agents_and_the_pnodes_that_listen() -> None:
    members = cluster("a")
    by_pnode = {member.pnode: member for member in agent_members(members)}
    assert by_pnode[agent_id("a")].address == "a.lan:1"
    assert {member.role for member in by_pnode.values()} == {"agent"}
    (only,) = pnode_members(members, {PNodeId("a-0"): "a.lan:7", PNodeId("stranger-0"): "x:1"})
    assert (only.pnode, only.address, only.fingerprint, only.role) == ("a-0", "a.lan:7", "f-a-0", "worker")


def test_dial_address_holds_all_addresses_of_one_family() -> None:
    assert dial_address([]) == ""
    assert dial_address(["1.2.3.4:5"]) == "1.2.3.4:5"
    assert dial_address(["1.2.3.4:5", "[fd00::1]:5", "6.7.8.9:5"]) == "ipv4:1.2.3.4:5,6.7.8.9:5"
    assert dial_address(["[fd00::1]:5", "[fd00::2]:5"]) == "ipv6:[fd00::1]:5,[fd00::2]:5"


_MACHINES = st.sampled_from(["a", "b", "c"])
_CHANGES = st.lists(st.tuples(st.sampled_from(["admit", "remove", "rename"]), _MACHINES), max_size=12)


def changed(members: Membership, kind: str, machine: str) -> Membership:
    if kind == "admit":
        return admitted(members, record(machine))
    if members.find(machine) is None:
        return members
    return removed(members, machine) if kind == "remove" else renamed(members, machine, members.name + "!")


@given(_CHANGES, st.integers(0, 12), st.integers(0, 12))
def test_copies_of_one_history_always_merge_to_the_later_one(
    changes: list[tuple[str, str]], first: int, second: int
) -> None:
    history = [cluster()]
    for kind, machine in changes:
        history.append(changed(history[-1], kind, machine))
    one, other = history[first % len(history)], history[second % len(history)]
    later = max(one, other, key=lambda copy: copy.epoch)
    assert ids(merged(one, other)) == ids(merged(other, one)) == ids(later)
    assert merged(one, one) == one
    assert msgspec.json.decode(msgspec.json.encode(later), type=Membership) == later
