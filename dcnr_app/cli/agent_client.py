"""Asking this machine's agent: HTTP on loopback with the token that only this user can read."""

from __future__ import annotations

import http.client
from typing import Any, TypeVar

import msgspec

from dcnr_app.cluster.agent_file import AgentFile, is_running, read_agent_file
from dcnr_app.errors import (
    DcnrError,
    DeadlineError,
    InvalidError,
    PeerError,
    RefusedError,
    UnreachableError,
    UserError,
)
from dcnr_app.settings import Home

_T = TypeVar("_T")
_ASK_S = 20.0
_LONG_S = 150.0  # draining waits for a step boundary
_ERRORS: dict[int, type[DcnrError]] = {
    2: UserError, 3: UnreachableError, 4: DeadlineError, 5: RefusedError, 6: InvalidError,
}  # fmt: skip


class AgentClient:
    """The agent of a home."""

    def __init__(self, found: AgentFile) -> None:
        self._found = found
        self.pid = found.pid

    @classmethod
    def find(cls, home: Home) -> AgentClient:
        """The agent that runs here. Raises UnreachableError if none does."""
        found = read_agent_file(home)
        if found is None:
            raise UnreachableError("dcnr-app is not running here", where=str(home.root), fix="dcnr-app up")
        return cls(found)

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return is_running(self._found)

    def get(self, verb: str, kind: type[_T]) -> _T:
        """Ask. Raises what the agent raised, UnreachableError if it does not answer."""
        return msgspec.convert(self._ask("GET", verb, None, _ASK_S), kind)

    def post(self, verb: str, kind: type[_T], **body: Any) -> _T:
        """Tell. Raises what the agent raised, UnreachableError if it does not answer."""
        return msgspec.convert(self._ask("POST", verb, body, _LONG_S), kind)

    def _ask(self, method: str, verb: str, body: dict[str, Any] | None, timeout_s: float) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._found.port, timeout=timeout_s)
        headers = {"X-DCNR-Token": self._found.token, "Content-Type": "application/json"}
        try:
            data = None if body is None else msgspec.json.encode(body)
            connection.request(method, f"/api/v1/{verb}", body=data, headers=headers)
            answer = connection.getresponse()
            raw = answer.read()
        except TimeoutError as error:
            raise DeadlineError(f"the agent did not answer within {timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(
                "the agent does not answer", why=str(error), fix="see its log, or: dcnr-app down; dcnr-app up"
            ) from error
        finally:
            connection.close()
        try:
            said = msgspec.json.decode(raw)
        except msgspec.DecodeError as error:
            raise PeerError("the agent answered with something else than JSON", why=str(error)) from error
        if answer.status >= 400:
            kind = _ERRORS.get(int(said["exit_code"]), DcnrError)
            raise kind(said["what"], where=said["where"], why=said["why"], fix=said["fix"])
        return said
