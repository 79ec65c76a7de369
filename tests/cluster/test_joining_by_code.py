"""Joining over a real front door with a typed code or an invite link: one use, three tries, and an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcnr_app.cluster.builds import this_build
from dcnr_app.cluster.cluster_files import ClusterFiles
from dcnr_app.cluster.joining import Target, join_with_code, join_with_invite
from dcnr_app.cluster.joining_codes import Invite, read_link, write_link
from dcnr_app.errors import RefusedError, UserError
from tests.cluster.joining_scene import HOST, Orchestrator, joiner_at, run


def test_code_admits_one_machine_without_a_person_at_either_screen(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            code = orchestrator.registrar.new_code()
            accepted = await join_with_code(orchestrator.target, code.secret, joiner_at(tmp_path))
            assert orchestrator.registrar.membership.find(accepted.machine) is not None
            assert orchestrator.door.pending() == ()
            with pytest.raises(RefusedError, match="used already") as told:
                await join_with_code(orchestrator.target, code.secret, joiner_at(tmp_path, "second"))
            assert "dcnr-app invite" in told.value.fix

    run(test)


def test_code_typed_wrong_three_times_is_burnt_also_for_the_one_who_knows_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            code = orchestrator.registrar.new_code().secret
            wrong = code[:-1] + str((int(code[-1]) + 1) % 10)
            joiner = joiner_at(tmp_path)
            for left in ("2 tries", "1 tries"):
                with pytest.raises(RefusedError, match="wrong") as told:
                    await join_with_code(orchestrator.target, wrong, joiner)
                assert left in told.value.why
            with pytest.raises(RefusedError, match="burnt"):
                await join_with_code(orchestrator.target, wrong, joiner)
            with pytest.raises(RefusedError, match="burnt") as told:
                await join_with_code(orchestrator.target, code, joiner)
            assert "get a new one" in told.value.fix
            assert orchestrator.memberships == []

    run(test)


def test_expired_code_is_a_friendly_refusal(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            code = orchestrator.registrar.new_code().secret
            orchestrator.clock.now_ms += 10 * 60_000
            with pytest.raises(RefusedError, match="the code has expired") as told:
                await join_with_code(orchestrator.target, code, joiner_at(tmp_path))
            assert "get a new one on the cluster's orchestrator: dcnr-app invite" in told.value.fix

    run(test)


def test_invite_admits_once_through_whichever_address_answers(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            # 127.0.0.9 is this machine too, but nothing listens there.
            link, _ = orchestrator.registrar.new_invite(["127.0.0.9", HOST], orchestrator.port)
            accepted = await join_with_invite(link, joiner_at(tmp_path))
            assert accepted.grant.orchestrator == orchestrator.machine.id
            with pytest.raises(RefusedError, match="the invite was used already"):
                await join_with_invite(link, joiner_at(tmp_path, "second"))

    run(test)


def test_invite_survives_a_restart_of_the_orchestrator(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            link, _ = orchestrator.registrar.new_invite([HOST], orchestrator.port)
            again = type(orchestrator.registrar)(
                ClusterFiles(orchestrator.home), orchestrator.machine, this_build(), orchestrator.clock
            )
            orchestrator.door.open_cluster(again)
            accepted = await join_with_invite(link, joiner_at(tmp_path))
            assert again.membership.find(accepted.machine) is not None

    run(test)


def test_invite_is_not_taken_to_another_cluster_at_the_same_address(tmp_path: Path) -> None:
    async def test() -> None:
        async with Orchestrator(tmp_path) as orchestrator:
            link, _ = orchestrator.registrar.new_invite([HOST], orchestrator.port)
            invite = read_link(link)
            other = Invite(invite.hosts, invite.port, "0" * 64, invite.token)
            with pytest.raises(RefusedError, match="another cluster answers"):
                await join_with_invite(write_link(other), joiner_at(tmp_path))
            assert orchestrator.memberships == []
            assert orchestrator.registrar.codes()[-1].state == "live"

    run(test)


def test_typed_text_that_is_no_code_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(UserError, match="is not a code"):
            await join_with_code(Target(("192.0.2.1",), 1), "12-34", joiner_at(tmp_path))

    run(test)
