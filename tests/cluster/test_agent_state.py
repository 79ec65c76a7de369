"""Which machines count as there, and which PNodes a session is offered."""

from __future__ import annotations

import pytest

from dcnr_app.cluster.agent_messages import AgentStatus, PNodeReport
from dcnr_app.cluster.agent_state import Machines, Offered, Presence

AT_MS = 1000.0


def report(pnode: str = "aa-0", pid: int = 1, address: str = "127.0.0.1:5") -> PNodeReport:
    return PNodeReport(pnode=pnode, address=address, fingerprint="f", pid=pid, state="idle")


def status(machine: str = "aa", *pnodes: PNodeReport, name: str = "desk") -> AgentStatus:
    return AgentStatus(machine=machine, name=name, version="1", addresses=(), epoch=1, pnodes=pnodes)


def heard(*statuses: AgentStatus) -> Machines:
    machines = Machines()
    for each in statuses:
        machines.heard(each, AT_MS)
    return machines


@pytest.mark.parametrize(
    ("silent_ms", "presence"),
    [
        (0.0, "live"), (4_999.0, "live"), (5_000.0, "suspect"), (5_001.0, "suspect"),
        (14_999.0, "suspect"), (15_000.0, "offline"), (15_001.0, "offline"),
    ],
)  # fmt: skip
def test_silence_makes_a_machine_suspect_after_five_seconds_and_offline_after_fifteen(
    silent_ms: float, presence: Presence
) -> None:
    machines = heard(status())
    assert machines.presence("aa", AT_MS + silent_ms) == presence
    assert machines.silent_ms("aa", AT_MS + silent_ms) == silent_ms


def test_a_word_makes_an_offline_machine_live_again_and_replaces_what_was_known() -> None:
    machines = heard(status("aa", report(pid=1)))
    machines.heard(status("aa", report(pid=2), name="new"), AT_MS + 60_000.0)
    assert machines.presence("aa", AT_MS + 60_000.0) == "live"
    found = machines.status("aa")
    assert found is not None
    assert (found.name, found.pnodes[0].pid) == ("new", 2)


def test_a_machine_that_never_spoke_or_has_left_is_offline_and_its_silence_is_unknown() -> None:
    machines = heard(status())
    machines.left("aa")
    machines.left("never")
    for machine in ("aa", "never"):
        assert machines.presence(machine, AT_MS) == "offline"
        assert machines.silent_ms(machine, AT_MS) is None
        assert machines.status(machine) is None


def test_pnodes_can_be_dialled_where_they_listen_and_their_machine_is_not_offline() -> None:
    machines = heard(
        status("bb", report("bb-0"), report("bb-1", address="")), status("aa", report("aa-0")), status("cc")
    )
    assert list(machines.listening(AT_MS + 14_999.0)) == ["aa-0", "bb-0"]
    machines.heard(status("bb", report("bb-0")), AT_MS + 1.0)
    assert list(machines.listening(AT_MS + 15_000.0)) == ["bb-0"]


def test_a_pnode_is_offered_once_while_its_process_stays() -> None:
    offered = Offered()
    offered.begin({"aa-0": report("aa-0")})
    both = {"aa-0": report("aa-0"), "bb-0": report("bb-0")}
    assert offered.news(both) == (both["bb-0"],)
    assert offered.news(both) == ()


def test_a_pnode_that_was_given_up_is_offered_again_only_with_another_process() -> None:
    offered = Offered()
    offered.begin({"aa-0": report(pid=1)})
    assert offered.evicted("aa-0") == 1
    assert offered.news({"aa-0": report(pid=1)}) == ()
    assert offered.news({}) == ()
    assert offered.news({"aa-0": report(pid=1)}) == ()
    assert offered.news({"aa-0": report(pid=2)}) == (report(pid=2),)
    assert offered.news({"aa-0": report(pid=2)}) == ()


def test_a_process_that_must_end_is_named_until_another_one_is_there() -> None:
    offered = Offered()
    offered.begin({"aa-0": report(pid=1)})
    offered.evicted("aa-0")
    for _ in range(3):
        offered.news({"aa-0": report(pid=1)})
        assert offered.to_restart() == {"aa-0": 1}
    offered.news({"aa-0": report(pid=2)})
    assert offered.to_restart() == {}


def test_giving_up_a_pnode_whose_process_is_not_known_ends_none() -> None:
    offered = Offered()
    offered.begin({"aa-0": report(pid=1)})
    assert offered.evicted("zz-0") == 0
    offered.evicted("aa-0")
    assert offered.evicted("aa-0") == 0
    assert offered.to_restart() == {"aa-0": 1}


def test_a_withdrawn_pnode_is_offered_again_with_the_same_process() -> None:
    offered = Offered()
    offered.begin({"aa-0": report(pid=1)})
    offered.withdrawn("aa-0")
    assert offered.news({"aa-0": report(pid=1)}) == (report(pid=1),)
    assert offered.to_restart() == {}


def test_a_new_session_knows_nothing_of_what_the_last_one_gave_up() -> None:
    offered = Offered()
    offered.begin({"aa-0": report(pid=1)})
    offered.evicted("aa-0")
    offered.begin({})
    assert offered.to_restart() == {}
    assert offered.news({"aa-0": report(pid=1)}) == (report(pid=1),)
