"""Every verb of the local API can be asked over HTTP, and its answers and refusals arrive in their words."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from dcnr_app.errors import (
    DcnrError,
    DeadlineError,
    InvalidError,
    PeerError,
    RefusedError,
    StoreError,
    UnreachableError,
    UserError,
)
from dcnr_app.ui.local_api import StartSession
from dcnr_app.ui.web.server import LocalApiServer
from tests.ui.recorded_api import MACHINE, STATUS, TOKEN, RecordedApi, Served, served

READING = ("status", "machines", "pnodes", "neighbours", "pending", "joining", "session")
TELLING: tuple[tuple[str, dict[str, Any], tuple[Any, ...]], ...] = (
    ("start-cluster", {"name": "home"}, ("home",)),
    ("join", {"target": "192.168.1.20:4711", "code": "123-456"}, ("192.168.1.20:4711", "123-456")),
    ("join", {"target": "[fe80::1%eth0]:4711"}, ("[fe80::1%eth0]:4711", "")),
    ("join", {"target": "dcnr://host/x?y=z"}, ("dcnr://host/x?y=z", "")),
    ("answer", {"verdict": "match"}, ("match",)),
    ("admit", {"machine": "123 456"}, ("123 456",)),
    ("reject", {}, ("",)),
    ("invite", {"with_code": True}, (True,)),
    ("rename", {"machine": "aa", "name": "Bücherregal 漢字"}, ("aa", "Bücherregal 漢字")),
    ("drain", {"machine": "aa-0"}, ("aa-0",)),
    ("forget", {"machine": "aa"}, ("aa",)),
    ("leave", {}, ()),
    ("shut-down", {}, ()),
    ("stop-session", {}, ()),
)
# Verbs that take ids or names, the field, and the rest of a good body.
NAMED: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("start-cluster", "name", {}),
    ("join", "code", {"target": "host"}),
    ("admit", "machine", {}),
    ("reject", "machine", {}),
    ("rename", "machine", {"name": "desk"}),
    ("rename", "name", {"machine": "aa"}),
    ("drain", "machine", {}),
    ("forget", "machine", {}),
    ("start-session", "dataset", {"network": "tiny-gpt"}),
    ("start-session", "session", {}),
)
BAD_NAMES = (
    "..", ".", "%2e%2e", "%2E%2E%2F", "a/../../b", "../a", "/etc/passwd", "..\\a", "a\x00", "\x00", "a\n",
    "a\r\nb", "\x1b[2J", "x" * 201,
)  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as found:
        yield found


@pytest.fixture
def server(shared: Served) -> Served:
    """With nothing asked of it yet."""
    shared.api.calls.clear()
    shared.api.error = None
    return shared


@pytest.mark.parametrize("verb", READING)
def test_a_reading_verb_answers(server: Served, verb: str) -> None:
    assert server.ask("GET", f"/api/v1/{verb}").status == 200
    assert server.api.calls == [(verb, ())]


def test_a_view_arrives_whole(server: Served) -> None:
    found = server.ask("GET", "/api/v1/status").json
    assert set(found) == set(STATUS.__struct_fields__)
    assert (found["machine"], found["n_live"], found["addresses"]) == (STATUS.machine, 1, ["127.0.0.1"])
    (machine,) = server.ask("GET", "/api/v1/machines").json
    assert machine["silent_ms"] is None
    assert machine["name"] == MACHINE.name


@pytest.mark.parametrize(("verb", "form", "arguments"), TELLING)
def test_a_telling_verb_is_told_what_was_said(
    server: Served, verb: str, form: dict[str, Any], arguments: tuple[Any, ...]
) -> None:
    assert server.post(verb, form).status in (200, 201)
    assert server.api.calls == [(verb, arguments)]


def test_a_session_is_started_as_it_was_asked_for(server: Served) -> None:
    form = {
        "network": "/home/me/my-gpt.yaml", "dataset": "latest", "prompt": "a\nb",
        "settings": {"steps": 3, "learning_rate": 1e-3, "seed": 0},
    }  # fmt: skip
    assert server.post("start-session", form).status in (200, 201)
    assert server.api.calls == [("start-session", (StartSession(**form),))]  # type: ignore[arg-type]


@pytest.mark.parametrize(("verb", "field", "rest"), NAMED)
def test_what_is_no_name_is_refused_before_the_agent_sees_it(
    server: Served, verb: str, field: str, rest: dict[str, str]
) -> None:
    for name in BAD_NAMES:
        refused = server.post(verb, {**rest, field: name})
        assert refused.status == 400, name
        assert refused.json["exit_code"] == 2
    assert server.api.calls == []


@pytest.mark.parametrize("target", ["a\x00", "a\nb", "a\n", "..\\a", "x" * 2001])
def test_what_is_no_place_is_refused(server: Served, target: str) -> None:
    assert server.post("join", {"target": target}).status == 400
    assert server.api.calls == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"machine": 1}', b'{"machine": "a", "more": 1}', b"\xff"],
)
def test_a_body_that_is_not_the_verbs_form_is_refused(server: Served, body: bytes) -> None:
    assert server.ask("POST", "/api/v1/drain", body).status == 400
    assert server.api.calls == []


def test_a_body_nested_too_deep_does_not_end_the_agent(server: Served) -> None:
    assert server.ask("POST", "/api/v1/drain", b"[" * 60_000).status >= 400
    assert server.ask("POST", "/api/v1/drain", b'{"machine":' * 5_000).status >= 400
    assert server.api.calls == []
    assert server.ask("GET", "/api/v1/status").status == 200


@pytest.mark.parametrize(
    "path", ["/", "/api/v1/", "/api/v1/nowhere", "/api/v1/../../etc/passwd", "/api/v1/%2e%2e", "/schema"]
)
def test_other_paths_are_not_known(server: Served, path: str) -> None:
    assert server.ask("GET", path).status == 404


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (UserError, 400), (UnreachableError, 404), (DeadlineError, 504), (RefusedError, 409),
        (InvalidError, 422), (PeerError, 500), (StoreError, 500),
    ],
)  # fmt: skip
def test_an_error_of_ours_arrives_in_its_words_with_its_exit_code(
    server: Served, kind: type[DcnrError], status: int
) -> None:
    server.api.error = kind("it broke", where="there", why="because", fix="do this")
    refused = server.post("drain", {"machine": "aa"})
    said = {
        "what": "it broke", "where": "there", "why": "because", "fix": "do this",
        "exit_code": kind.exit_code,
    }  # fmt: skip
    assert (refused.status, refused.json) == (status, said)


@pytest.mark.parametrize("error", [ValueError("secret 4711"), KeyError("secret 4711")])
def test_an_unknown_error_says_nothing_of_the_inside(
    server: Served, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    server.api.error = error
    failed = server.post("drain", {"machine": "aa"})
    assert (failed.status, failed.json["exit_code"]) == (500, 1)
    for word in (b"secret", b"Traceback", b"Error", b".py"):
        assert word not in failed.body
    assert "request_failed" in caplog.text
    server.api.error = None
    assert server.ask("GET", "/api/v1/status").status == 200


def test_it_listens_on_loopback_only(server: Served) -> None:
    hosts = {
        c.laddr.ip
        for c in psutil.Process().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == server.port
    }
    assert hosts
    assert all(ipaddress.ip_address(host).is_loopback for host in hosts)


def test_a_port_that_is_taken_is_said(server: Served) -> None:
    second = LocalApiServer(RecordedApi(), TOKEN, port=server.port)
    with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        asyncio.run(second.start())


def test_it_ends_when_it_is_told_and_the_port_is_free_again() -> None:
    with served() as found:
        port = found.port
        assert found.ask("GET", "/healthz").status == 200
    with pytest.raises(ConnectionRefusedError):
        Served(RecordedApi(), port).ask("GET", "/healthz")
