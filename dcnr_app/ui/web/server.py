"""The local API over HTTP on loopback: one route per verb of `LocalApi`, JSON in and out."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
import uvicorn
from litestar import Litestar, MediaType, Request, Response, get, post
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.params import JSONBody

from dcnr_app.errors import DcnrError, UserError
from dcnr_app.ui.local_api import LocalApi, StartSession
from dcnr_app.ui.web.guard import MAX_BODY_BYTES, App, Guard
from dcnr_app.ui.web.requests import (
    AnswerBody,
    InviteBody,
    JoinBody,
    MachineBody,
    Named,
    Nothing,
    RenameBody,
    StartSessionBody,
)

_LOG = logging.getLogger(__name__)
_STATUS: Final = {2: 400, 3: 404, 4: 504, 5: 409, 6: 422}
_CLOSE_S: Final = 5.0


class LocalApiServer:
    """Serves a LocalApi in the caller's event loop until `close`."""

    def __init__(self, api: LocalApi, token: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        app = Litestar(
            route_handlers=handlers(api),
            exception_handlers={DcnrError: _told, HTTPException: _http_told, Exception: _untold},
            openapi_config=None,
            logging_config=None,  # whose log this is, the agent's command says
            request_max_body_size=MAX_BODY_BYTES,
            debug=False,
        )
        self._guard = Guard(cast(App, app), token)
        self._host, self._port = host, port
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises UserError if it is taken."""
        try:
            listener = socket.create_server((self._host, self._port))
        except OSError as error:
            raise UserError(
                f"cannot listen on {self._host}:{self._port}",
                why=error.strerror or str(error),
                fix="choose another port, or end the program that holds it",
            ) from error
        self._guard.port = int(listener.getsockname()[1])
        config = uvicorn.Config(
            self._guard, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = _Server(config)
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        return self._guard.port

    async def close(self) -> None:
        """End; what is being answered has a second."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait({self._serving}, timeout=_CLOSE_S)
        if not self._serving.done():
            self._serving.cancel()
            await asyncio.wait({self._serving})


class _Server(uvicorn.Server):
    """Without signal handlers: they are the agent's."""

    def install_signal_handlers(self) -> None:
        """Nothing."""

    def capture_signals(self) -> Any:
        """Nothing is captured."""
        from contextlib import nullcontext

        return nullcontext()


def handlers(api: LocalApi) -> Sequence[HTTPRouteHandler]:
    """All routes."""
    return (_health(), *_reading(api), *_joining(api), *_machines(api), *_sessions(api))


def _health() -> HTTPRouteHandler:
    @get("/healthz", media_type=MediaType.TEXT)
    async def health() -> str:
        return "ok"

    return health


def _reading(api: LocalApi) -> Sequence[HTTPRouteHandler]:
    @get("/api/v1/status")
    async def status() -> Any:
        return await api.status()

    @get("/api/v1/machines")
    async def machines() -> Any:
        return await api.machines()

    @get("/api/v1/pnodes")
    async def pnodes() -> Any:
        return await api.pnodes()

    @get("/api/v1/neighbours")
    async def neighbours() -> Any:
        return await api.neighbours()

    @get("/api/v1/pending")
    async def pending() -> Any:
        return await api.pending()

    @get("/api/v1/joining")
    async def joining() -> Any:
        return await api.joining()

    @get("/api/v1/session")
    async def session() -> Any:
        return await api.session()

    return status, machines, pnodes, neighbours, pending, joining, session


def _joining(api: LocalApi) -> Sequence[HTTPRouteHandler]:
    @post("/api/v1/start-cluster")
    async def start_cluster(data: JSONBody[Named]) -> Any:
        return await api.start_cluster(data.name)

    @post("/api/v1/join")
    async def join(data: JSONBody[JoinBody]) -> Any:
        return await api.join(data.target, data.code)

    @post("/api/v1/answer")
    async def answer(data: JSONBody[AnswerBody]) -> Any:
        return await api.answer(data.verdict)

    @post("/api/v1/admit")
    async def admit(data: JSONBody[MachineBody]) -> Any:
        return await api.admit(data.machine)

    @post("/api/v1/reject")
    async def reject(data: JSONBody[MachineBody]) -> Any:
        return await api.reject(data.machine)

    @post("/api/v1/invite")
    async def invite(data: JSONBody[InviteBody]) -> Any:
        return await api.invite(with_code=data.with_code)

    return start_cluster, join, answer, admit, reject, invite


def _machines(api: LocalApi) -> Sequence[HTTPRouteHandler]:
    @post("/api/v1/rename")
    async def rename(data: JSONBody[RenameBody]) -> Any:
        return await api.rename(data.machine, data.name)

    @post("/api/v1/drain")
    async def drain(data: JSONBody[MachineBody]) -> Any:
        return await api.drain(data.machine)

    @post("/api/v1/forget")
    async def forget(data: JSONBody[MachineBody]) -> Any:
        return await api.forget(data.machine)

    @post("/api/v1/leave")
    async def leave(data: JSONBody[Nothing]) -> Any:
        return await api.leave()

    @post("/api/v1/shut-down")
    async def shut_down(data: JSONBody[Nothing]) -> Any:
        await api.shut_down()
        return {}

    return rename, drain, forget, leave, shut_down


def _sessions(api: LocalApi) -> Sequence[HTTPRouteHandler]:
    @post("/api/v1/start-session")
    async def start_session(data: JSONBody[StartSessionBody]) -> Any:
        return await api.start_session(StartSession(**msgspec.structs.asdict(data)))

    @post("/api/v1/stop-session")
    async def stop_session(data: JSONBody[Nothing]) -> Any:
        return await api.stop_session()

    return start_session, stop_session


def _told(_: Request[Any, Any, Any], error: DcnrError) -> Response[Any]:
    return _answer(
        _STATUS.get(error.exit_code, 500), error.what, error.where, error.why, error.fix, error.exit_code
    )


def _http_told(_: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    why = str(error.detail)[:500] if error.status_code < 500 else ""
    return _answer(error.status_code, "the request is not one that is known here", "", why, "", 2)


def _untold(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    _LOG.error("request_failed path=%s", request.url.path, exc_info=error)
    return _answer(500, "an internal error, see the agent's log", "", "", "", 1)


def _answer(status: int, what: str, where: str, why: str, fix: str, exit_code: int) -> Response[Any]:
    body = {"what": what, "where": where, "why": why, "fix": fix, "exit_code": exit_code}
    return Response(msgspec.json.encode(body), status_code=status, media_type=MediaType.JSON)
