"""Stored records that cannot be read: each is named, and takes nothing else down."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from dcnr_app.app import App
from dcnr_app.cli.output import show_time
from dcnr_app.cluster.journal import read_decisions
from dcnr_app.store.lock import HomeLock
from dcnr_app.store.sessions import update_session
from tests.cli.calling import Cli

BAD = "s-20991231-235959-dead"
TRAIN = ("--dataset", "latest", "--workers", "0", "--steps", "1", "--json")
NO_RECORDS: Sequence[bytes | str | int] = (b"\xff", b"{}", b"[" * 100_000, b'{"session": "s-1"}', "text", 7)


def execute(path: Path, statement: str, values: Sequence[object] = ()) -> None:
    """Change a database as a damaged disk or another program might."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def add_record(cli: Cli, raw: bytes | str | int, key: str = BAD) -> str:
    """Put a session record of any form beside the finished session's; returns the latter's id."""
    name = str(cli("session", "ls", "--json").json[0]["session"])
    execute(cli.home.control, "INSERT INTO entries VALUES (99, 'sessions', ?, ?)", (key, raw))
    return name


@pytest.mark.parametrize("raw", NO_RECORDS)
def test_a_record_that_cannot_be_read_is_named_by_ls_and_hides_no_other(
    on_copy: Callable[[], Cli], raw: bytes | str | int
) -> None:
    cli = on_copy()
    name = add_record(cli, raw)
    result = cli("session", "ls", "--json")
    assert [entry["session"] for entry in result.json] == [name]
    assert result.err.count(f"{BAD}: a session record cannot be read") == 1
    assert "why:" in result.err
    assert "try:" in result.err
    assert cli("session", "show", "latest", "--json").json["session"] == name
    assert cli("session", "ledger", name).code == 0
    assert name in cli().out


def test_a_record_under_a_foreign_key_is_left_out(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    raw = App(cli.home).reader().get("sessions", str(cli("session", "ls", "--json").json[0]["session"]))
    assert raw is not None
    add_record(cli, raw, key="\x1b[2J../../x")
    result = cli("session", "ls", "--json")
    assert len(result.json) == 1
    assert "cannot be read" in result.err
    assert "\x1b" not in result.err


def test_a_record_that_cannot_be_read_is_told_to_who_asks_for_it(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    add_record(cli, b"{}")
    for verb in ("show", "resume", "ledger", "stop"):
        result = cli("session", verb, BAD)
        assert (result.code, result.out) == (1, "")
        assert f"{BAD}: a session record cannot be read" in result.err


def test_training_goes_on_beside_a_record_that_cannot_be_read(
    on_copy: Callable[[], Cli], finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cli = on_copy()
    name = add_record(cli, b"{}")
    with caplog.at_level(logging.WARNING):
        found = cli("train", str(finished.parent / "tiny.yaml"), *TRAIN).json
    assert found["status"] == "finished"
    assert sum(BAD in record.getMessage() for record in caplog.records) == 1
    assert cli("session", "resume", name, "--workers", "0", "--json").json["status"] == "finished"


def test_a_commit_row_that_cannot_be_read_hides_neither_status_nor_step(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    execute(cli.home.control, "UPDATE commits SET body = x'ff' WHERE step = 2")
    shown = cli("session", "show", "latest", "--json").json
    assert (shown["status"], shown["step"], shown["problem"]) == ("finished", 3, "")
    assert shown["loss"] > 0
    execute(cli.home.control, "UPDATE commits SET body = x'ff' WHERE step = 3")
    shown = cli("session", "show", "latest", "--json").json
    assert (shown["status"], shown["step"], shown["loss"]) == ("finished", 3, None)
    assert "the commit row of step 3 cannot be read" in shown["problem"]
    assert "step 3 cannot be read" in cli("session", "show", "latest").err


@pytest.mark.parametrize("raw", [b"\xc1", b"\x81\xa4loss\xa1x", "text", 7])
def test_a_metrics_row_that_cannot_be_read_is_left_out_of_the_charts(
    on_copy: Callable[[], Cli], raw: bytes | str | int, caplog: pytest.LogCaptureFixture
) -> None:
    cli = on_copy()
    execute(cli.home.metrics, "UPDATE metrics SET numbers = ? WHERE step = 2", (raw,))
    with caplog.at_level(logging.WARNING):
        lines = [json.loads(line) for line in cli("monitor").out.splitlines()]
    assert [line["step"] for line in lines] == [1, 3]
    assert sum("metrics_left_out" in record.getMessage() for record in caplog.records) == 1
    assert cli("session", "show", "latest", "--json").json["loss"] > 0


def test_a_skipped_step_has_no_loss_for_who_reads_it(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    name = str(cli("session", "ls", "--json").json[0]["session"])
    decisions = read_decisions(App(cli.home).reader(), name)
    skipped = msgspec.structs.replace(decisions[3], skip=True, loss=0.0, gradient_norm=0.0)
    execute(cli.home.control, "UPDATE commits SET body = ? WHERE step = 3", (msgspec.json.encode(skipped),))
    values = {"loss": 0.0, "gradient_norm": 0.0, "skipped": 1.0, "learning_rate": 0.0}
    execute(
        cli.home.metrics, "UPDATE metrics SET numbers = ? WHERE step = 3", (msgspec.msgpack.encode(values),)
    )
    shown = cli("session", "show", name, "--json").json
    assert (shown["loss"], shown["problem"]) == (None, "step 3 was skipped")
    assert "none at step 3" in cli("session", "show", name).out
    lines = [json.loads(line) for line in cli("monitor", name).out.splitlines()]
    assert [line["loss"] is None for line in lines] == [False, False, True]
    assert (lines[2]["gradient_norm"], lines[2]["learning_rate"], lines[2]["skipped"]) == (None, 0.0, 1.0)


def test_settings_that_lack_their_steps_are_shown_as_unknown_and_refused_in_words(
    on_copy: Callable[[], Cli],
) -> None:
    cli = on_copy()
    name = str(cli("session", "ls", "--json").json[0]["session"])
    with HomeLock(cli.home, "a test"):
        store = App(cli.home).writer()
        update_session(store, name, lambda r: msgspec.structs.replace(r, settings={"batch": "many"}))
        store.close()
    assert cli("session", "ls", "--json").json[0]["steps"] is None
    assert "unknown" in cli("session", "ls").out
    assert cli("session", "show", name).code == cli().code == 0
    result = cli("session", "resume", name)
    assert (result.code, result.out) == (1, "")
    assert f"{name}: the settings of a session cannot be read" in result.err


@pytest.mark.parametrize("wall_ms", [10**18, -(10**18), 10**400], ids=["late", "early", "no float"])
def test_a_moment_that_no_calendar_has_is_unknown(wall_ms: int) -> None:
    assert show_time(wall_ms) == "unknown"


def test_resume_without_its_dataset_says_how_to_make_it_anew(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    dataset = cli("dataset", "show", "--json").json
    tokenizer = cli("tokenizer", "show", "--json").json["id"]
    shutil.rmtree(cli.home.datasets / dataset["id"])
    result = cli("session", "resume", "latest", "--workers", "0")
    assert (result.code, result.out) == (2, "")
    assert f"{dataset['id']!r} of session s-" in result.err
    assert f"dataset create --data PATH --tokenizer {tokenizer}" in result.err
    shutil.rmtree(cli.home.tokenizers / tokenizer)
    assert "--vocabulary N" in cli("session", "ledger", "latest").err


def test_the_dataset_that_is_made_as_was_said_is_the_one_that_was_missing(
    on_copy: Callable[[], Cli], finished: Path
) -> None:
    cli = on_copy()
    dataset = cli("dataset", "show", "--json").json["id"]
    shutil.rmtree(cli.home.datasets / dataset)
    tokenizer = cli("tokenizer", "show", "--json").json["id"]
    words = str(finished.parent / "words.txt")
    made = ("--data", words, "--tokenizer", tokenizer, "--validation-percent", "30")
    assert cli("dataset", "create", *made, "--json").json["id"] == dataset
    assert cli("session", "ledger", "latest").code == 0


def test_a_dataset_whose_tokenizer_is_gone_says_so(on_copy: Callable[[], Cli]) -> None:
    cli = on_copy()
    shutil.rmtree(cli.home.tokenizers / cli("tokenizer", "show", "--json").json["id"])
    result = cli("session", "resume", "latest", "--workers", "0")
    assert (result.code, result.out) == (1, "")
    assert "is not here any more" in result.err
    assert "tokenizer train --data PATH" in result.err


def test_an_empty_dataset_name_means_no_dataset(on_finished: Cli, finished: Path) -> None:
    result = on_finished("train", str(finished.parent / "tiny.yaml"), "--dataset", "", "--workers", "0")
    assert (result.code, result.out) == (2, "")
    assert "'' is not a valid dataset id" in result.err


@pytest.mark.parametrize("length", [252, 5000])
@pytest.mark.parametrize("verb", ["train {} --dataset latest", "network show {}", "demo --network {}"])
def test_a_network_name_that_no_file_can_have_is_refused_in_words(
    on_finished: Cli, verb: str, length: int
) -> None:
    result = on_finished(*(word.format("x" * length) for word in verb.split()))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert len(result.err) < 1000
