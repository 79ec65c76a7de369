from __future__ import annotations

import pytest
import yaml

from tests.cli.calling import Cli


def test_without_limits_everything_is_allowed_and_nothing_is_written(cli: Cli) -> None:
    found = cli("limits", "show", "--json").json
    assert found["cores"] is None
    assert found["allowed_now"] is True
    assert "no limit" in cli("limits", "show").out
    assert not cli.root.exists()


def test_limits_are_kept_and_changed_one_by_one(cli: Cli) -> None:
    cli("limits", "set", "--cores", "3", "--memory", "8GB", "--hours", "22:00-07:00", "--no-on-battery")
    found = cli("limits", "set", "--device-memory", "500MB", "--json").json
    assert found["cores"] == 3
    assert found["memory_bytes"] == 8_000_000_000
    assert found["device_memory_bytes"] == 500_000_000
    assert (found["hours"], found["on_battery"], found["during_full_screen"]) == ("22:00-07:00", False, True)
    told = cli("limits", "set", "--memory", "none", "--cores", "none", "--hours", "none")
    assert told.code == 0
    assert cli("limits", "show", "--json").json["memory_bytes"] is None
    assert "always" in told.out


def test_other_sections_of_the_configuration_stay(cli: Cli) -> None:
    cli.root.mkdir()
    cli.home.config.write_text("something: {else: [1, 2]}\n")
    assert cli("limits", "set", "--cores", "1").code == 0
    assert yaml.safe_load(cli.home.config.read_text())["something"] == {"else": [1, 2]}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--cores", "0"),
        ("--cores", "²"),
        ("--cores", "99999999999"),
        ("--memory", "lots"),
        ("--memory", "-1GB"),
        ("--memory", "0"),
        ("--memory", "9" * 30),
        ("--hours", "late"),
        (),
    ],
)
def test_limits_that_make_no_sense_are_refused(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli("limits", "set", *arguments)
    assert (result.code, result.out) == (2, "")
    assert not cli.root.exists()


@pytest.mark.parametrize(
    "text",
    [
        "limits: {cores: many}",
        "limits: {colour: red}",
        "limits: {hours: 7-9}",
        "limits: 5",
        "- a",
        "limits: {",
        "\x00",
        "limits: {cores: -2}",
        "a: " + "[" * 3000,
        "#" * 70_000,
    ],
)
def test_a_configuration_that_cannot_be_read_is_told_with_its_file(cli: Cli, text: str) -> None:
    cli.root.mkdir()
    cli.home.config.write_text(text)
    for arguments in (("show",), ("set", "--cores", "1")):
        result = cli("limits", *arguments)
        assert (result.code, result.out) == (6, "")
        assert "config.yaml" in result.err
    assert cli.home.config.read_text() == text
