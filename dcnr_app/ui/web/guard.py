"""Who may speak to the local API: processes that hold its token, never web pages of others. Pure ASGI, before
any route.

A page from elsewhere can make a browser send requests to this machine (CSRF), also under a name of its own
that it points here (DNS rebinding): so the Host must be this machine's, foreign origins are refused, and the
token travels in a header that no foreign page can set.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

TOKEN_HEADER: Final = "x-dcnr-token"  # noqa: S105  # the header's name
MAX_BODY_BYTES: Final = 64 << 10
"""Of a request that says its length; the server behind bounds those that do not."""
_LENGTH_DIGITS: Final = 9
_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
_OPEN: Final = "/healthz"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """An ASGI app around another one. `port` is known once it listens."""

    def __init__(self, app: App, token: str) -> None:
        self._app = app
        self._token = token
        self.port = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or hand on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        status, why = self.refusal(scope)
        if status:
            await _refuse(scope, send, status, why)
            return
        await self._app(scope, receive, send)

    def refusal(self, scope: Scope) -> tuple[int, str]:
        """(HTTP status, why) of a refusal, or (0, "")."""
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or hosts[0] not in {f"{name}:{self.port}" for name in _NAMES}:
            return 403, "the Host is not this machine's"
        origins = _values(headers, b"origin")
        if any(origin not in {f"http://{name}:{self.port}" for name in _NAMES} for origin in origins):
            return 403, "pages from elsewhere have no business here"
        sites = _values(headers, b"sec-fetch-site")
        if any(site not in ("same-origin", "none") for site in sites):
            return 403, "pages from elsewhere have no business here"
        if scope["type"] != "http":
            return 403, "only HTTP is spoken here"
        if scope["path"] == _OPEN and scope["method"] == "GET":
            return 0, ""
        tokens = _values(headers, TOKEN_HEADER.encode())
        if len(tokens) != 1 or not hmac.compare_digest(tokens[0].encode(), self._token.encode()):
            return 401, f"the header {TOKEN_HEADER} does not hold this agent's token"
        return self._body_refusal(scope, headers)

    def _body_refusal(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> tuple[int, str]:
        if scope["method"] == "GET":
            return 0, ""
        kinds = _values(headers, b"content-type")
        if len(kinds) != 1 or kinds[0].partition(";")[0].strip().lower() != "application/json":
            return 415, "only application/json is taken"
        lengths = _values(headers, b"content-length")
        if any(not _is_length(length) for length in lengths):
            return 413, f"more than {MAX_BODY_BYTES} bytes"
        return 0, ""


def _is_length(text: str) -> bool:
    is_number = text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS
    return is_number and int(text) <= MAX_BODY_BYTES


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


async def _refuse(scope: Scope, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": why})
        return
    body = msgspec.json.encode({"what": "refused", "why": why, "where": "", "fix": "", "exit_code": 5})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
