from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable

import msgspec
import pytest

from dcnr_app.app import App
from dcnr_app.store.lock import HomeLock
from dcnr_app.store.sessions import SessionRecord, create_session, get_session, update_session
from tests.cli.calling import Cli

ID = "s-20261130-224501-ab12"


def change_record(cli: Cli, change: Callable[[SessionRecord], SessionRecord]) -> str:
    """Change the finished session's record; returns its id."""
    name = str(cli("session", "ls", "--json").json[0]["session"])
    app = App(cli.home)
    with HomeLock(cli.home, "a test"):
        store = app.writer()
        update_session(store, name, change)
        store.close()
    return name


def test_ls_tells_status_and_newest_committed_step(on_finished: Cli) -> None:
    (entry,) = on_finished("session", "ls", "--json").json
    assert (entry["status"], entry["step"], entry["steps"]) == ("finished", 3, 3)
    shown = on_finished("session", "show", entry["session"], "--json").json
    assert shown["settings"]["batch"] == 4
    assert [step for step, _ in shown["validation"]] == [2, 3]
    assert shown["checkpoints"] == [f"{entry['session']}.{step}" for step in (1, 2, 3)]
    assert shown["loss"] == pytest.approx(shown["validation"][-1][1], abs=0.2)


def test_a_session_whose_process_is_gone_is_interrupted_at_its_committed_step(
    on_copy: Callable[[], Cli],
) -> None:
    cli = on_copy()
    change_record(cli, lambda r: msgspec.structs.replace(r, status="running", step=0))
    (entry,) = cli("session", "ls", "--json").json
    assert (entry["status"], entry["step"]) == ("interrupted", 3)
    assert "session resume" in cli("session", "show", "latest").err


def test_ls_is_oldest_first_and_latest_is_the_last(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    with HomeLock(cli.home, "a test"):
        store = App(cli.home).writer()
        old = get_session(store, cli("session", "ls", "--json").json[0]["session"])
        create_session(store, msgspec.structs.replace(old, session=ID, status="stopped"), b"{}")
        store.close()
    assert [e["session"] for e in cli("session", "ls", "--json").json] == [old.session, ID]
    assert cli("session", "show", "latest", "--json").json["session"] == ID


def test_the_ledger_of_a_finished_session_is_exact(on_finished: Cli) -> None:
    found = on_finished("session", "ledger", "latest", "--json").json
    assert (found["samples"], found["lost"], found["twice"], found["skipped"]) == (12, 0, 0, 0)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("DELETE FROM ledger WHERE step = 2 AND position = 1", (11, 1, 0)),
        ("INSERT INTO ledger SELECT session, step, 99, sample, 0 FROM ledger LIMIT 1", (13, 0, 1)),
        ("INSERT INTO ledger SELECT session, 9, 0, sample, 0 FROM ledger LIMIT 1", (13, 0, 1)),
        ("DELETE FROM ledger WHERE step = 3", (8, 4, 0)),
    ],
)
def test_a_ledger_that_lost_or_repeated_samples_exits_1(
    on_copy: Callable[[], Cli], statement: str, expected: tuple[int, int, int]
) -> None:
    cli = on_copy()
    connection = sqlite3.connect(cli.home.control)
    with connection:
        connection.execute(statement)
    connection.close()
    result = cli("session", "ledger", "latest", "--json")
    found = msgspec.json.decode(result.out)
    assert result.code == 1
    assert (found["samples"], found["lost"], found["twice"]) == expected


def test_resume_of_a_finished_session_has_nothing_to_train(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    found = cli("session", "resume", "latest", "--workers", "0", "--json").json
    assert found["resumed_from_step"] == 3
    assert found["steps_recomputed"] == 0
    assert len(found["losses"]) == 3


def test_stop_of_a_session_that_does_not_run_exits_3(on_finished: Cli) -> None:
    result = on_finished("session", "stop", "latest")
    assert (result.code, result.out) == (3, "")
    assert "finished" in result.err


def test_stop_of_a_session_that_goes_on_exits_4_and_leaves_the_request(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    name = change_record(cli, lambda r: msgspec.structs.replace(r, status="running", pid=os.getpid()))
    with HomeLock(cli.home, "a test that never stops"):
        result = cli("session", "stop", name, "--timeout", "0.01")
        assert cli("session", "ls", "--json").json[0]["status"] == "running"
    assert result.code == 4
    assert "resume" in result.err
    assert (cli.home.sessions / name / "stop.request").exists()


@pytest.mark.parametrize(
    "verb",
    [
        "session resume latest --workers 0",
        "tokenizer train --data {words}",
        "dataset create --data {words}",
        "checkpoint rm {checkpoint} --yes",
    ],
)
def test_write_verbs_on_a_held_home_exit_5_naming_the_process(on_finished: Cli, verb: str) -> None:
    words = on_finished.root.parent / "words.txt"
    checkpoint = on_finished("checkpoint", "ls", "--json").json[0]["id"]
    arguments = [word.format(words=words, checkpoint=checkpoint) for word in verb.split()]
    with HomeLock(on_finished.home, "a test"):
        result = on_finished(*arguments)
        listed = on_finished("checkpoint", "ls", "--json").json
    assert (result.code, result.out) == (5, "")
    assert f"process {os.getpid()} holds this home" in result.err
    assert listed[0]["id"] == checkpoint
