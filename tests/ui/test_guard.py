"""Nobody without the token and no page from elsewhere reaches any route of the local API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from dcnr_app.ui.web.guard import MAX_BODY_BYTES, Guard
from dcnr_app.ui.web.server import handlers
from tests.ui.recorded_api import TOKEN, RecordedApi, Served, served

ROUTES = sorted(
    (method, route.path)
    for route in Litestar(route_handlers=handlers(RecordedApi()), openapi_config=None).routes
    if isinstance(route, HTTPRoute)
    for method in route.methods
    if method != "OPTIONS" and route.path != "/healthz"
)
MUTATIONS = [path for method, path in ROUTES if method == "POST"]

EVIL_HOSTS = (
    "evil.example", "localhost.evil.com", "127.0.0.1.nip.io", "localhost.", "127.0.0.1.", "127.0.0.2",
    "0.0.0.0", "127.1", "2130706433", "localhost@evil.example", "[::ffff:127.0.0.1]", "",  # noqa: S104
)  # fmt: skip
FOREIGN: tuple[dict[str, str | None], ...] = (
    {"X-DCNR-Token": None},
    {"X-DCNR-Token": ""},
    {"X-DCNR-Token": TOKEN[:-1]},
    {"X-DCNR-Token": TOKEN + "x"},
    {"X-DCNR-Token": "\xff"},
    {"X-DCNR-Token": None, "Authorization": f"Bearer {TOKEN}"},
    {"X-DCNR-Token": None, "Cookie": f"x-dcnr-token={TOKEN}"},
    {"Origin": "null"},
    {"Origin": "http://evil.example"},
    {"Origin": "https://localhost"},
    {"Origin": "http://localhost:1"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "eA==",
     "Sec-WebSocket-Version": "13", "X-DCNR-Token": None},
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """One for all tests here: none of them may reach its api."""
    with served() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_is_done(server: Served) -> Iterator[None]:
    server.api.calls.clear()
    yield
    assert server.api.calls == []


def test_there_are_routes_to_guard() -> None:
    assert ("GET", "/api/v1/status") in ROUTES
    assert "/api/v1/shut-down" in MUTATIONS
    assert len(ROUTES) >= 20


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_answers_to_a_name_that_is_not_this_machines(server: Served, method: str, path: str) -> None:
    for name in EVIL_HOSTS:
        for host in (name, f"{name}:{server.port}"):
            assert server.ask(method, path, change={"Host": host}).status in (400, 403), host
    for host in ("localhost", "127.0.0.1", f"127.0.0.1:{server.port + 1}", f"{server.host}, evil.example"):
        assert server.ask(method, path, change={"Host": host}).status in (400, 403), host


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_answers_without_one_host(server: Served, method: str, path: str) -> None:
    assert server.ask(method, path, change={"Host": None}).status in (400, 403)
    twice = [("Host", "evil.example")]
    assert server.ask(method, path, more=twice).status in (400, 403)
    same_twice = [("Host", server.host)]
    assert server.ask(method, path, more=same_twice).status in (400, 403)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_no_route_answers_to_strangers_and_foreign_pages(server: Served, method: str, path: str) -> None:
    for change in FOREIGN:
        assert server.ask(method, path, change=change).status in (400, 401, 403), change
    twice = [("X-DCNR-Token", TOKEN)]
    assert server.ask(method, path, more=twice).status == 401
    in_address = f"{path}?x-dcnr-token={TOKEN}&token={TOKEN}"
    assert server.ask(method, in_address, change={"X-DCNR-Token": None}).status == 401


@pytest.mark.parametrize("path", MUTATIONS)
def test_a_mutation_takes_json_by_post_and_nothing_else(server: Served, path: str) -> None:
    kinds = (
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
        "text/plain; application/json", "application/json-patch+json", "application/x-msgpack", None,
    )  # fmt: skip
    for kind in kinds:
        assert server.ask("POST", path, b"{}", change={"Content-Type": kind}).status == 415, kind
    for method in ("GET", "PUT", "DELETE", "PATCH", "HEAD"):
        assert server.ask(method, path, b"").status == 405, method


@pytest.mark.parametrize("path", MUTATIONS)
def test_a_body_over_the_bound_is_refused(server: Served, path: str) -> None:
    too_long = {"Content-Length": str(MAX_BODY_BYTES + 1)}
    assert server.ask("POST", path, change=too_long).status == 413


@pytest.mark.parametrize("path", MUTATIONS)
def test_a_body_over_the_bound_is_refused_when_its_length_is_not_said(server: Served, path: str) -> None:
    piece = b"a" * 0x4000
    pieces = (b"%x\r\n%s\r\n" % (len(piece), piece)) * 5 + b"0\r\n\r\n"
    change = {"Content-Length": None, "Transfer-Encoding": "chunked"}
    assert server.ask("POST", path, pieces, change=change).status == 413


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_web_socket_is_opened_even_with_the_token(server: Served, method: str) -> None:
    upgrade: dict[str, str | None] = {
        "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "eA==",
        "Sec-WebSocket-Version": "13", "Content-Type": None, "Content-Length": None,
    }  # fmt: skip
    assert server.ask(method, "/api/v1/nowhere", change=upgrade).status >= 400


def test_health_needs_no_token_but_this_machines_name(server: Served) -> None:
    assert server.ask("GET", "/healthz", change={"X-DCNR-Token": None}) == (200, b"ok")
    assert server.ask("GET", "/healthz", change={"Host": "evil.example"}).status == 403
    assert server.ask("POST", "/healthz", change={"X-DCNR-Token": None}).status == 401


def scope(**more: Any) -> dict[str, Any]:
    """A good request to a guard on port 80."""
    headers = [(b"host", b"localhost:80"), (b"x-dcnr-token", TOKEN.encode())]
    return {"type": "http", "method": "GET", "path": "/api/v1/status", "headers": headers, **more}


def guard() -> Guard:
    async def app(*_: Any) -> None:
        raise AssertionError("reached")

    made = Guard(app, TOKEN)
    made.port = 80
    return made


def test_the_guard_refuses_hosts_by_itself_whatever_the_http_parser_lets_through() -> None:
    assert guard().refusal(scope()) == (0, "")
    token = (b"x-dcnr-token", TOKEN.encode())
    for hosts in ([], [b"localhost:80", b"localhost:80"], [b"localhost:80", b"evil"], [b"\xff:80"]):
        found = guard().refusal(scope(headers=[*[(b"host", host) for host in hosts], token]))
        assert found[0] == 403, hosts


def test_the_guard_refuses_web_sockets_from_this_machine_too() -> None:
    assert guard().refusal(scope(type="websocket"))[0] == 403


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"\xb2", b"", b"65537", b"9" * 5000])
def test_the_guard_refuses_lengths_that_are_none_or_too_great(length: bytes) -> None:
    headers = [*scope()["headers"], (b"content-type", b"application/json"), (b"content-length", length)]
    assert guard().refusal(scope(method="POST", headers=headers))[0] == 413
