"""`join` as a person meets it: digits, the question, and how it ends."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import click
import msgspec
import pytest

from dcnr_app.cluster.agent_file import write_agent_file
from dcnr_app.ui.local_api import JoiningView
from tests.cli.calling import Cli
from tests.ui.recorded_api import TOKEN, RecordedApi, Served, served

COMPARING = JoiningView(
    step="comparing", digits="123456", cluster_name="home", orchestrator="desk", place="10.0.0.2:4711"
)
WAITING = msgspec.structs.replace(COMPARING, step="waiting")
JOINED = msgspec.structs.replace(COMPARING, step="joined")
FAILED = msgspec.structs.replace(COMPARING, step="failed", error="the digits differed", exit_code=5)


class Joining(RecordedApi):
    """Goes one step on each time it is asked; while it compares, only an answer brings it on."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[JoiningView] = []

    async def join(self, target: str, code: str) -> JoiningView:
        await super().join(target, code)
        return JoiningView(step="reaching")

    async def joining(self) -> JoiningView:
        if len(self.steps) == 1 or self.steps[0].step == "comparing":
            return self.steps[0]
        return self.steps.pop(0)

    async def answer(self, verdict: Literal["match", "mismatch", "cancel"]) -> JoiningView:
        if self.steps[0].step == "comparing":
            self.steps.pop(0)
        return await super().answer(verdict)


class Keyboard(io.StringIO):
    """A terminal as far as can be asked."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Joining, Served]]:
    api = Joining()
    with served(api) as found:
        yield api, found


@pytest.fixture
def api(shared: tuple[Joining, Served], cli: Cli) -> Joining:
    """The agent of the home, with nothing told to it yet."""
    found, server = shared
    found.calls.clear()
    cli.home.ensure()
    write_agent_file(cli.home, server.port, TOKEN)
    return found


def type_in(monkeypatch: pytest.MonkeyPatch, answers: Sequence[str]) -> list[str]:
    """A person at a terminal, who types these lines and then Ctrl-C; returns what is left to type."""
    left = list(answers)

    def typed(*_: object, **__: object) -> str:
        if not left:
            raise KeyboardInterrupt
        return left.pop(0)

    monkeypatch.setattr("sys.stdin", Keyboard())
    monkeypatch.setattr(click.termui, "visible_prompt_func", typed)
    return left


def told(api: Joining) -> list[tuple[str, tuple[Any, ...]]]:
    return [call for call in api.calls if call[0] in ("join", "answer")]


def test_a_person_compares_the_digits_and_waits_to_be_admitted(
    cli: Cli, api: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.steps = [JoiningView(step="reaching"), COMPARING, WAITING, JOINED]
    type_in(monkeypatch, ["y"])
    done = cli("join", "home")
    assert (done.code, done.out) == (0, "")
    assert told(api) == [("join", ("home", "")), ("answer", ("match",))]
    assert done.err.index("123 456") < done.err.index("waiting until desk admits")
    assert done.err.endswith("this machine is in the cluster 'home' of desk\n")


def test_digits_that_differ_end_it_with_the_agents_code(
    cli: Cli, api: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.steps = [COMPARING, FAILED]
    type_in(monkeypatch, ["n"])
    done = cli("join")
    assert (done.code, done.err.splitlines()[-1]) == (5, "error: the digits differed")
    assert told(api)[-1] == ("answer", ("mismatch",))


def test_ctrl_c_at_the_question_cancels_the_attempt(
    cli: Cli, api: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.steps = [COMPARING, FAILED]
    type_in(monkeypatch, [])
    assert cli("join").code == 130
    assert told(api)[-1] == ("answer", ("cancel",))


@pytest.mark.parametrize("has_json", [True, False])
def test_where_nobody_can_be_asked_it_says_how_to_answer(
    cli: Cli, api: Joining, monkeypatch: pytest.MonkeyPatch, has_json: bool
) -> None:
    api.steps = [COMPARING]
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = cli("join", *(["--json"] if has_json else []))
    assert "123 456" in done.err
    assert told(api) == [("join", ("", ""))]
    if has_json:
        assert (done.json["step"], done.json["digits"]) == ("comparing", "123456")
    else:
        assert (done.code, "dcnr-app join --answer match" in done.err) == (0, True)


def test_an_answer_from_elsewhere_is_given_and_the_end_awaited(cli: Cli, api: Joining) -> None:
    api.steps = [COMPARING, WAITING, JOINED]
    assert cli("join", "--answer", "match", "--json").json["step"] == "joined"
    assert told(api) == [("answer", ("match",))]


def test_with_yes_nobody_is_asked_but_the_digits_are_shown(cli: Cli, api: Joining) -> None:
    api.steps = [COMPARING, WAITING, JOINED]
    done = cli("join", "home", "--yes", "--json")
    assert (done.code, done.json["step"], "123 456" in done.err) == (0, "joined", True)
    assert told(api) == [("join", ("home", "")), ("answer", ("match",))]


def test_a_code_needs_no_digits(cli: Cli, api: Joining) -> None:
    api.steps = [JoiningView(step="reaching"), JOINED]
    assert cli("join", "10.0.0.2", "--code", "123-456").code == 0
    assert told(api) == [("join", ("10.0.0.2", "123-456"))]


def test_an_attempt_that_a_restart_of_the_agent_ended_is_said(cli: Cli, api: Joining) -> None:
    api.steps = [JoiningView(step="reaching"), JoiningView()]
    done = cli("join", "home")
    assert (done.code, "the attempt to join is over" in done.err) == (3, True)
