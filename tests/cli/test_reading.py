from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calling import Cli

LISTS = ("session ls", "dataset ls", "tokenizer ls", "checkpoint ls", "network ls")
EMPTY_TOO = (
    "paths",
    "version",
    "network show tiny-gpt",
    "network validate tiny-gpt",
    "network plan tiny-gpt --workers 3",
)
STORED = (
    "session show latest",
    "session ledger latest",
    "dataset show",
    "dataset verify latest",
    "tokenizer show",
    "tokenizer encode hello",
    "tokenizer decode 70 71",
    "checkpoint verify latest",
    "generate latest --tokens 4",
)


def snapshot(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("verb", LISTS)
def test_lists_are_arrays_on_an_empty_home_and_make_no_file(cli: Cli, verb: str) -> None:
    found = cli(*verb.split(), "--json").json
    assert isinstance(found, list)
    assert bool(found) == (verb == "network ls")
    assert cli(*verb.split()).code == 0
    assert not cli.root.exists()


@pytest.mark.parametrize("verb", EMPTY_TOO)
def test_verbs_that_need_no_home_print_one_object_and_make_no_file(cli: Cli, verb: str) -> None:
    assert isinstance(cli(*verb.split(), "--json").json, dict)
    assert cli(*verb.split()).out
    assert not cli.root.exists()


@pytest.mark.parametrize("verb", [*STORED, "monitor", "checkpoint ls --session latest"])
def test_verbs_on_what_is_not_there_say_so_and_make_no_file(cli: Cli, verb: str) -> None:
    result = cli(*verb.split(), *(() if verb == "monitor" else ("--json",)))
    assert (result.code, result.out) == (2, "")
    assert "try:" in result.err
    assert not cli.root.exists()


@pytest.mark.parametrize("verb", [*LISTS, *EMPTY_TOO, *STORED])
def test_every_read_verb_speaks_json_and_plain_text(on_finished: Cli, verb: str) -> None:
    before = snapshot(on_finished.root)
    found = on_finished(*verb.split(), "--json").json
    assert isinstance(found, list if verb in LISTS else dict)
    plain = on_finished(*verb.split())
    assert plain.code == 0
    assert plain.out
    assert "\x1b" not in plain.out
    assert "Traceback" not in plain.err
    after = snapshot(on_finished.root)
    # A reader of a write-ahead log keeps its index; nothing of ours changes.
    assert {name: t for name, t in after.items() if not name.endswith(("-shm", "-wal"))} == {
        name: t for name, t in before.items() if not name.endswith(("-shm", "-wal"))
    }


def test_monitor_prints_every_step_as_a_json_line_and_ends_with_the_session(on_finished: Cli) -> None:
    result = on_finished("monitor")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["loss"] > 0 for line in lines)
    assert "validation_loss" in lines[1]
    assert on_finished("monitor", "--once").out == result.out


@pytest.mark.parametrize(
    "verb",
    [
        "session show {}",
        "dataset show {}",
        "tokenizer show {}",
        "checkpoint verify {}",
        "checkpoint rm {} --yes",
    ],
)
@pytest.mark.parametrize(
    "name", ["../../etc", "/etc", "..", "A B", "no-such-thing", "x" * 300, "~nobody-lives-here/x"]
)
def test_names_of_nothing_are_usage_errors_without_traceback(on_finished: Cli, verb: str, name: str) -> None:
    result = on_finished(*(word.format(name) for word in verb.split()))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")


def test_a_near_miss_of_an_id_gets_a_suggestion(on_finished: Cli) -> None:
    for noun, key in (("session", "session"), ("dataset", "id"), ("tokenizer", "id")):
        name = on_finished(noun, "ls", "--json").json[-1][key]
        wrong = name[:-1] + ("0" if name[-1] != "0" else "1")
        result = on_finished(noun, "show", wrong)
        assert result.code == 2
        assert f"did you mean '{name}'?" in result.err


def test_paths_are_those_of_the_home(on_finished: Cli) -> None:
    found = on_finished("paths", "--json").json
    assert found["home"] == str(on_finished.root)
    assert Path(found["control"]).is_file()
    assert (Path(found["bundled_networks"]) / "tiny-gpt.yaml").is_file()
