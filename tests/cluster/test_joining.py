"""Joining over a real front door on loopback: by digits, by code, by invite; and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from dcnr_app.cluster.builds import this_build
from dcnr_app.cluster.cluster_files import ClusterFiles
from dcnr_app.cluster.front_door import FrontDoor, FrontDoorSettings
from dcnr_app.cluster.identity import agent_id, pnode_id, read_identity, refuse_stranger
from dcnr_app.cluster.joining import (
    Target,
    join_with_code,
    request_to_join,
    save_admission,
)
from dcnr_app.cluster.membership import agent_members
from dcnr_app.cluster.pairing_messages import Info
from dcnr_app.errors import RefusedError, UnreachableError
from dcnr_app.settings import Home
from tests.cluster.joining_scene import (
    HOST,
    Orchestrator,
    Person,
    changed,
    joiner_at,
    machine_at,
    run,
)


def test_both_screens_show_the_same_digits_and_admission_gives_working_certificates(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            person, joiner = Person(), joiner_at(tmp_path)
            async with asyncio.TaskGroup() as tasks:
                joining = tasks.create_task(request_to_join(orchestrator.target, joiner, person))
                shown = await person.until("comparing")
                waiting = await orchestrator.until_pending(lambda entry: entry.machine == joiner.machine.id)
                assert waiting.digits == shown.digits
                assert len(shown.digits) == 6
                assert (waiting.name, waiting.device, waiting.n_pnodes) == ("worker", "8 cores", 2)
                assert (shown.cluster_name, shown.orchestrator) == ("home", "orchestrator")
                person.confirm()
                await orchestrator.until_pending(lambda entry: entry.is_confirmed)
                assert not joining.done()
                done = await orchestrator.door.admit(joiner.machine.id)
                assert done.step == "granted"
            accepted = joining.result()
            assert [entry.step for entry in person.seen] == ["comparing", "waiting", "admitted"]
            members = orchestrator.memberships[-1]
            assert members == orchestrator.registrar.membership == accepted.grant.membership
            by_agent = {member.pnode: member for member in agent_members(members)}
            identity = read_identity(accepted.agent.cert_pem)
            assert identity.pnode == agent_id(joiner.machine.id)
            assert refuse_stranger(identity, members.cluster, by_agent) == ""
            assert [pnode for pnode, _ in accepted.pnodes] == [pnode_id(joiner.machine.id, n) for n in (0, 1)]

    run(test)


def test_orchestrator_may_say_admit_before_the_worker_says_match(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            person, joiner = Person(), joiner_at(tmp_path)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(request_to_join(orchestrator.target, joiner, person))
                await person.until("comparing")
                early = await orchestrator.door.admit(joiner.machine.id)
                assert (early.step, early.is_admitted) == ("comparing", True)
                assert orchestrator.memberships == []
                person.confirm()
            assert orchestrator.registrar.membership.find(joiner.machine.id) is not None

    run(test)


def test_somebody_in_the_middle_shows_different_digits_on_the_two_screens(tmp_path: Path) -> None:
    """He poses as the cluster towards the worker, under its name, and as the worker towards the cluster."""

    async def test() -> None:
        async with Orchestrator(tmp_path) as real, Orchestrator(tmp_path, name="false") as false:
            person, middle = Person(), Person()
            joining = asyncio.ensure_future(request_to_join(false.target, joiner_at(tmp_path), person))
            posing = asyncio.ensure_future(
                request_to_join(real.target, joiner_at(tmp_path / "middle", "worker"), middle)
            )
            shown = await person.until("comparing")
            await middle.until("comparing")
            waiting = await real.until_pending(lambda entry: entry.name == "worker")
            assert shown.cluster_name == real.own.name
            assert shown.digits != waiting.digits
            person.mismatch()
            with pytest.raises(RefusedError, match="NOT joined"):
                await joining
            assert real.door.reject(waiting.machine).step == "rejected"
            with pytest.raises(RefusedError, match="rejected"):
                await posing
            assert real.memberships == false.memberships == []

    run(test)


def test_mismatch_is_told_loudly_to_both_sides_and_admits_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            person, joiner = Person(), joiner_at(tmp_path)
            joining = asyncio.ensure_future(request_to_join(orchestrator.target, joiner, person))
            await person.until("comparing")
            person.mismatch()
            with pytest.raises(RefusedError, match="NOT joined") as told:
                await joining
            assert "between the two machines" in told.value.why
            warned = await orchestrator.until_pending(lambda entry: entry.step == "mismatched")
            assert "somebody may stand between" in warned.why
            with pytest.raises(RefusedError, match="does not wait to join"):
                await orchestrator.door.admit(joiner.machine.id)
            assert orchestrator.registrar.membership.find(joiner.machine.id) is None

    run(test)


def test_reject_ends_the_attempt_on_the_worker_too(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            person, joiner = Person(), joiner_at(tmp_path)
            joining = asyncio.ensure_future(request_to_join(orchestrator.target, joiner, person))
            await person.until("comparing")
            assert orchestrator.door.reject(joiner.machine.id).step == "rejected"
            with pytest.raises(RefusedError, match="rejected"):
                await joining
            assert orchestrator.memberships == []

    run(test)


def test_nobody_at_the_orchestrator_for_two_minutes_is_a_clear_end(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            person, joiner = Person(), joiner_at(tmp_path)
            joining = asyncio.ensure_future(request_to_join(orchestrator.target, joiner, person))
            await person.until("comparing")
            person.confirm()
            await orchestrator.until_pending(lambda entry: entry.is_confirmed)
            orchestrator.clock.now_ms += 121_000
            with pytest.raises(RefusedError, match="took too long") as told:
                await joining
            assert "nobody admitted it in time" in told.value.why

    run(test)


def test_joining_that_is_cancelled_leaves_the_other_side_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            person, joiner = Person(), joiner_at(tmp_path)
            joining = asyncio.ensure_future(request_to_join(orchestrator.target, joiner, person))
            await person.until("comparing")
            joining.cancel()
            with pytest.raises(asyncio.CancelledError):
                await joining
            await orchestrator.until_pending(lambda entry: entry.step == "cancelled")

    run(test)


def test_other_protocol_is_refused_with_the_exact_command(tmp_path: Path) -> None:
    async def test() -> None:
        build = changed(this_build(), version="0.7.3", protocol_min=7, protocol_max=8)
        async with Orchestrator(tmp_path, build=build) as orchestrator:
            joiner = joiner_at(tmp_path, build=this_build())
            with pytest.raises(RefusedError, match=r"cannot join a cluster that runs 0\.7\.3") as told:
                await request_to_join(orchestrator.target, joiner, Person())
            assert told.value.fix.endswith("python -m pip install 'dcnr-app==0.7.3'")
            assert "protocols (2 and 7 to 8)" in told.value.why

    run(test)


def test_joined_machine_keeps_its_place_over_a_restart(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            code = orchestrator.registrar.new_code().secret
            accepted = await join_with_code(orchestrator.target, code, joiner_at(tmp_path))
            home, machine = machine_at(tmp_path, "worker")
            own = save_admission(home, accepted)
            assert (own.role, own.machine, own.name) == ("worker", machine.id, "home")
            assert ClusterFiles(home).load_cluster() == own
            assert ClusterFiles(home).load_members() == orchestrator.registrar.membership
            assert own.orchestrator_fingerprint == orchestrator.own.orchestrator_fingerprint

    run(test)


def test_machine_of_another_cluster_keeps_its_place(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as first, Orchestrator(tmp_path, name="second") as second:
            code = first.registrar.new_code().secret
            joiner = msgspec.structs.replace(joiner_at(tmp_path), machine=second.machine)
            accepted = await join_with_code(first.target, code, joiner)
            with pytest.raises(RefusedError, match="in the cluster 'home' already"):
                save_admission(second.home, accepted)
            assert ClusterFiles(second.home).load_cluster() == second.own

    run(test)


class Alone:
    """A machine that is in no cluster, or a worker of one."""

    def __init__(self, info: Info) -> None:
        self._info = info

    def info(self) -> Info:
        return self._info

    def pending_changed(self) -> None:
        raise AssertionError("nobody can wait here")

    def admitted(self, membership: object) -> None:
        raise AssertionError("nobody can be admitted here")


@pytest.mark.parametrize(
    ("role", "wanted"), [("none", "is in no cluster"), ("worker", "is a worker of 'home' and admits no")]
)
def test_machine_that_admits_nobody_says_where_to_go(tmp_path: Path, role: str, wanted: str) -> None:
    async def test() -> None:
        orchestrator = Orchestrator(tmp_path)
        info = msgspec.structs.replace(orchestrator.info(), role=role, name="there")
        door = FrontDoor(FrontDoorSettings(), Alone(info), orchestrator.clock)
        port = await door.start()
        try:
            with pytest.raises(RefusedError, match=f"there {wanted}") as told:
                await request_to_join(Target((HOST,), port), joiner_at(tmp_path), Person())
            assert "dcnr-app" in told.value.fix
            with pytest.raises(RefusedError, match="admits no machines"):
                await door.admit("abc")
        finally:
            await door.close()

    run(test)


def test_nothing_at_the_address_names_it_and_what_to_look_at(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            port = orchestrator.port
        with pytest.raises(UnreachableError, match=f"nothing answers at 127.0.0.1:{port}") as told:
            await request_to_join(Target((HOST,), port), joiner_at(tmp_path), Person())
        assert "dcnr-app doctor" in told.value.fix

    run(test)


def test_second_cluster_on_one_machine_is_refused(tmp_path: Path) -> None:
    orchestrator = Orchestrator(tmp_path)
    with pytest.raises(RefusedError, match="in the cluster 'home' already"):
        Orchestrator(tmp_path)
    assert ClusterFiles(Home(tmp_path / "orchestrator")).load_cluster() == orchestrator.own
