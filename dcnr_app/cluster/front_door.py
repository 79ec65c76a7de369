"""The door that strangers may knock at: who this machine is, and joining its cluster. HTTP, JSON only. IO.

Nothing secret comes or goes here, and nothing that is said is believed without proof: joining machines prove
their keys, people compare digits or a code is proven, grants are signed. So there is no TLS to set up first.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import msgspec
from aiohttp import web

from dcnr_app.clock import Clock
from dcnr_app.cluster.connection_gate import ConnectionGate, GatedConnection, GateSettings
from dcnr_app.cluster.front_door_replies import Reply, problem, refused, reply
from dcnr_app.cluster.membership import Membership
from dcnr_app.cluster.pairing_desk import PairingDesk
from dcnr_app.cluster.pairing_messages import (
    MAX_BODY_BYTES,
    Ask,
    Begin,
    Info,
    Reveal,
    ShowProof,
    ShowShare,
    Verdict,
)
from dcnr_app.cluster.pending_join import PendingJoin
from dcnr_app.cluster.rate_limit import RateLimit, RateSettings, address_group
from dcnr_app.cluster.registrar import Registrar
from dcnr_app.errors import DcnrError, RefusedError, UserError

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_TICK_S = 1.0
_BACKLOG = 128


class FrontDoorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen (port 0: the system chooses one, the same for all hosts) and what strangers may use."""

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 0
    rate: RateSettings = RateSettings()
    gate: GateSettings = GateSettings()
    request_s: float = 5.0


class FrontDoorHandlers(Protocol):
    """What the front door asks of, and tells to, the agent; called on the event loop."""

    def info(self) -> Info:
        """Who this machine says it is."""
        ...

    def pending_changed(self) -> None:
        """What `FrontDoor.pending` returns has changed."""
        ...

    def admitted(self, membership: Membership) -> None:
        """A machine was admitted: this is the membership now, and it is on disk."""
        ...


class FrontDoor:
    """The HTTP server. `open_cluster` makes it take requests to join; without one it only says who it is."""

    def __init__(self, settings: FrontDoorSettings, handlers: FrontDoorHandlers, clock: Clock) -> None:
        self._settings = settings
        self._handlers = handlers
        self._clock = clock
        self._rate = RateLimit(settings.rate)
        self._gate = ConnectionGate(settings.gate)
        self._desk: PairingDesk | None = None
        self._http: web.Server | None = None
        self._listening: list[asyncio.Server] = []
        self._ticking: asyncio.TimerHandle | None = None
        self._routes: Mapping[tuple[str, str], Callable[[bytes, str], Awaitable[Reply]]] = {
            ("POST", "/v1/pairing/begin"): self._begin,
            ("POST", "/v1/pairing/reveal"): self._reveal,
            ("POST", "/v1/pairing/verdict"): self._verdict,
            ("POST", "/v1/pairing/ask"): self._ask,
            ("POST", "/v1/code/share"): self._share,
            ("POST", "/v1/code/proof"): self._proof,
        }

    def open_cluster(self, registrar: Registrar | None) -> None:
        """Take requests to join the cluster that `registrar` keeps, or with None no more."""
        self._desk = None
        if registrar is not None:
            self._desk = PairingDesk(
                registrar, self._clock, self._handlers.pending_changed, self._handlers.admitted
            )

    async def start(self) -> int:
        """Listen on all hosts; returns the port. Raises UserError if an address is taken or not this
        machine's."""
        self._http = web.Server(
            self._handle, access_log=None, auto_decompress=False, max_line_size=1024, lingering_time=1.0
        )
        port = self._settings.port
        loop = asyncio.get_running_loop()
        try:
            for host in self._settings.hosts:
                listener = _bound(host, port)
                port = int(listener.getsockname()[1])
                self._listening.append(
                    await loop.create_server(self._connection, sock=listener, backlog=_BACKLOG)
                )
        except BaseException:
            await self.close()
            raise
        self._tick()
        return port

    async def close(self) -> None:
        """Stop listening and end what is open."""
        if self._ticking is not None:
            self._ticking.cancel()
        for server in self._listening:
            server.close()
        if self._http is not None:
            await self._http.shutdown(1.0)
        self._listening.clear()

    @property
    def n_connections(self) -> int:
        """Connections of strangers that are open now."""
        return self._gate.n_open

    def pending(self) -> tuple[PendingJoin, ...]:
        """Machines that wait to join, and how the attempts ended that have just ended."""
        return self._desk.pending() if self._desk is not None else ()

    async def admit(self, machine: str) -> PendingJoin:
        """Admit a machine; its step is "granted" if its own user had confirmed the digits, else it is
        admitted as soon as he does. Raises RefusedError if it does not wait to join, StoreError."""
        return await self._open_desk().admit(machine)

    def reject(self, machine: str) -> PendingJoin:
        """Reject a machine. Raises RefusedError if it does not wait to join."""
        return self._open_desk().reject(machine)

    def _open_desk(self) -> PairingDesk:
        if self._desk is None:
            info = self._handlers.info()
            raise RefusedError(
                f"{info.name} admits no machines",
                why=f"it is a worker of {info.cluster_name!r}"
                if info.role == "worker"
                else "it has no cluster",
                fix="ask the cluster's orchestrator, or start a cluster: dcnr-app up --role orchestrator",
            )
        return self._desk

    def _connection(self) -> asyncio.Protocol:
        if self._http is None:
            raise RuntimeError("the front door is not open")
        return GatedConnection(self._http(), self._gate)

    def _tick(self) -> None:
        if self._desk is not None:
            self._desk.tidy()
        self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request. Whatever goes wrong, the peer gets a Problem, never a traceback."""
        host = request.remote or "unknown"
        try:
            answer = await self._answer(request, host)
        except TimeoutError:
            answer = refused(408, "the request took too long")
        except DcnrError as error:
            _LOG.info("request_refused address=%s path=%r why=%s", host, request.path[:64], error.what)
            answer = problem(error)
        except Exception:  # noqa: BLE001  # a fault of ours: the log has it, the peer is told nothing of it
            _LOG.exception("request_failed address=%s path=%r", host, request.path[:64])
            answer = refused(500, "an internal error, see the log of this machine")
        return answer.response()

    async def _answer(self, request: web.BaseRequest, host: str) -> Reply:
        if not self._rate.takes(address_group(host), self._clock.monotonic_ms()):
            return refused(429, "too many requests", fix="wait a second")
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            return refused(403, "web pages have no business here")
        if (request.method, request.path) == ("GET", "/v1/info"):
            return reply(self._handlers.info())
        route = self._routes.get((request.method, request.path))
        if route is None:
            known = {path for _, path in self._routes} | {"/v1/info"}
            is_known = request.path in known
            return refused(405 if is_known else 404, "no such method here" if is_known else "nothing here")
        if request.content_type != "application/json" or "Content-Encoding" in request.headers:
            return refused(415, "only application/json is taken")
        async with asyncio.timeout(self._settings.request_s):
            body = await _body(request)
        return refused(413, f"more than {MAX_BODY_BYTES} bytes") if body is None else await route(body, host)

    async def _begin(self, body: bytes, host: str) -> Reply:
        return reply(self._open_desk().begin(_decoded(body, Begin), host))

    async def _reveal(self, body: bytes, _host: str) -> Reply:
        return reply(self._open_desk().reveal(_decoded(body, Reveal)))

    async def _verdict(self, body: bytes, _host: str) -> Reply:
        return reply(await self._open_desk().verdict(_decoded(body, Verdict)))

    async def _ask(self, body: bytes, _host: str) -> Reply:
        return reply(self._open_desk().ask(_decoded(body, Ask).pairing))

    async def _share(self, body: bytes, _host: str) -> Reply:
        return reply(self._open_desk().share(_decoded(body, ShowShare)))

    async def _proof(self, body: bytes, _host: str) -> Reply:
        return reply(await self._open_desk().proof(_decoded(body, ShowProof)))


async def _body(request: web.BaseRequest) -> bytes | None:
    """The body, or None if it is too long: then the rest of it is not read."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        return None
    parts = bytearray()
    async for chunk in request.content.iter_chunked(MAX_BODY_BYTES):
        parts += chunk
        if len(parts) > MAX_BODY_BYTES:
            return None
    return bytes(parts)


def _decoded(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError("the request is malformed", why=str(error)[:200]) from error


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        address = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0][
            4
        ]
        listener = socket.create_server(address, family=family, dualstack_ipv6=False)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port}",
            why=error.strerror or str(error),
            fix="choose another port, or end the program that holds it",
        ) from error
    listener.setblocking(False)
    return listener
