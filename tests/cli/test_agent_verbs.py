"""The verbs that ask this machine's agent: what they say, and with which code they end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import click
import msgspec
import psutil
import pytest

from dcnr_app.cli.main import COMMANDS
from dcnr_app.cluster.agent_file import AgentFile, agent_path, read_agent_file, write_agent_file
from dcnr_app.cluster.private_files import write_private
from dcnr_app.errors import DcnrError, DeadlineError, InvalidError, PeerError, RefusedError, UserError
from dcnr_app.settings import Home
from tests.cli.calling import Cli
from tests.ui.recorded_api import INVITE, PENDING, STATUS, TOKEN, Served, served

VERBS: tuple[tuple[str, ...], ...] = (
    ("status",), ("status", "--json"), ("discover",), ("discover", "--json"), ("down",), ("join",),
    ("join", "host", "--code", "123"), ("join", "--answer", "match"), ("invite",), ("invite", "--code"),
    ("admit",), ("admit", "--ls"), ("reject",), ("pnode", "ls"), ("pnode", "ls", "--json"),
    ("pnode", "show", "desk"), ("pnode", "rename", "desk", "tower"), ("pnode", "drain", "desk"),
    ("pnode", "forget", "desk", "--yes"), ("pnode", "leave", "--yes"),
)  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as found:
        yield found


@pytest.fixture
def agent(shared: Served, cli: Cli) -> Served:
    """The agent of the home, as far as the command line can tell: it is this process."""
    shared.api.calls.clear()
    shared.api.error = None
    cli.home.ensure()
    write_agent_file(cli.home, shared.port, TOKEN)
    return shared


def put_agent_file(home: Home, port: int, *, pid: int | None = None, age_s: float = 0.0) -> None:
    """A note that some process left, `age_s` seconds after its pid's start."""
    me = psutil.Process()
    home.ensure()
    agent_path(home).parent.mkdir(mode=0o700, exist_ok=True)
    note = AgentFile(
        pid=me.pid if pid is None else pid, started_s=me.create_time() - age_s, port=port, token=TOKEN
    )
    write_private(agent_path(home), msgspec.json.encode(note))


def called(agent: Served) -> Sequence[tuple[str, tuple[object, ...]]]:
    return agent.api.calls


@pytest.mark.parametrize("verb", VERBS)
def test_without_an_agent_every_verb_ends_with_3_and_says_how_to_start_one(
    cli: Cli, verb: tuple[str, ...]
) -> None:
    done = cli(*verb)
    assert (done.code, done.out) == (3, "")
    assert "dcnr-app is not running here" in done.err
    assert "dcnr-app up" in done.err


@pytest.mark.parametrize("age_s", [60.0, -60.0])
def test_a_note_of_a_dead_agent_whose_pid_another_process_has_now_is_none(
    cli: Cli, shared: Served, age_s: float
) -> None:
    put_agent_file(cli.home, shared.port, age_s=age_s)
    assert read_agent_file(cli.home) is None
    assert cli("status").code == 3


def test_an_agent_that_does_not_answer_is_told_with_3(cli: Cli) -> None:
    with served() as gone:
        port = gone.port
    put_agent_file(cli.home, port)
    done = cli("status")
    assert (done.code, "the agent does not answer" in done.err) == (3, True)


def test_a_wrong_token_is_refused_in_words(cli: Cli, agent: Served) -> None:
    me = psutil.Process()
    note = AgentFile(pid=me.pid, started_s=me.create_time(), port=agent.port, token="another")  # noqa: S106
    write_private(agent_path(cli.home), msgspec.json.encode(note))
    done = cli("status")
    assert (done.code, "token" in done.err) == (5, True)
    assert "another" not in repr(note)


def test_status_is_the_agents_as_json_and_in_words(cli: Cli, agent: Served) -> None:
    assert cli("status", "--json").json == msgspec.json.decode(msgspec.json.encode(STATUS))
    text = cli("status").out
    for part in ("desk (0123456789abcdef), orchestrator of 'home'", "1 of 1 there", "process    7,"):
        assert part in text
    assert "process 7, orchestrator of 'home', 1 of 1 machines there" in cli().out


@pytest.mark.parametrize(
    ("kind", "code"),
    [(UserError, 2), (DeadlineError, 4), (RefusedError, 5), (InvalidError, 6), (PeerError, 1)],
)
def test_what_the_agent_raises_is_told_in_its_words_with_its_code(
    cli: Cli, agent: Served, kind: type[DcnrError], code: int
) -> None:
    agent.api.error = kind("it broke", where="there", why="because", fix="do this")
    done = cli("pnode", "drain", "desk")
    assert (done.code, done.out) == (code, "")
    assert done.err == f"error: {agent.api.error}\n"


@pytest.mark.parametrize(
    ("verb", "asked"),
    [
        (("discover", "--json"), ("neighbours", ())),
        (("pnode", "ls", "--json"), ("pnodes", ())),
        (("admit", "--ls", "--json"), ("pending", ())),
        (("reject", "desk"), ("reject", ("desk",))),
        (("pnode", "rename", "desk", "tower"), ("rename", ("desk", "tower"))),
        (("pnode", "drain", "desk"), ("drain", ("desk",))),
        (("pnode", "forget", "desk", "--yes"), ("forget", ("desk",))),
        (("pnode", "leave", "--yes"), ("leave", ())),
        (("invite", "--json"), ("invite", (False,))),
        (("invite", "--code", "--json"), ("invite", (True,))),
    ],
)
def test_a_verb_asks_the_agent_for_just_that(
    cli: Cli, agent: Served, verb: tuple[str, ...], asked: tuple[str, tuple[object, ...]]
) -> None:
    done = cli(*verb)
    assert done.code == 0, done
    assert called(agent) == [asked]
    if "--json" in verb:
        json.loads(done.out)
    else:
        assert done.out == ""


def test_admit_names_the_machine_by_its_id_whatever_was_typed(cli: Cli, agent: Served) -> None:
    for typed in ("", "123456", "123-456", "desk"):
        agent.api.calls.clear()
        assert cli("admit", *([typed] if typed else []), "--yes").code == 0
        assert called(agent)[-1] == ("admit", (PENDING.machine,))


@pytest.mark.parametrize("verb", [("admit",), ("pnode", "forget", "desk"), ("pnode", "leave")])
def test_what_cannot_be_undone_is_not_done_when_nobody_says_yes(
    cli: Cli, agent: Served, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
) -> None:
    def nobody(*_: object, **__: object) -> str:
        raise EOFError

    monkeypatch.setattr(click.termui, "visible_prompt_func", nobody)
    assert cli(*verb).code == 130
    assert [name for name, _ in called(agent) if name in ("admit", "forget", "leave")] == []


def test_an_invite_is_a_command_to_run_on_stdout_and_its_picture_is_not(cli: Cli, agent: Served) -> None:
    done = cli("invite")
    assert done.out == f"dcnr-app join '{INVITE.link}'\n"
    assert "it works once" in done.err


@pytest.mark.parametrize("name", ["..", "a/../../b", "%2e%2e", "a\n"])
def test_what_is_no_name_ends_with_2(cli: Cli, agent: Served, name: str) -> None:
    for verb in (("reject", name), ("pnode", "drain", name), ("pnode", "rename", "desk", name)):
        assert cli(*verb).code == 2, verb
    assert called(agent) == []


@pytest.mark.parametrize("verb", ["up", "down", "status", "discover", "join", "invite", "admit", "reject"])
def test_a_verb_shows_an_example(cli: Cli, verb: str) -> None:
    assert verb in COMMANDS
    assert f"Example: dcnr-app {verb}" in cli(verb, "--help").out
