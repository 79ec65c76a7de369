"""What the front door answers: JSON, one answer per connection, no word to browsers. Knows no route."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from aiohttp import web

from dcnr_app.cluster.pairing_messages import Problem
from dcnr_app.errors import DcnrError, RefusedError, UserError


class Reply(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes

    def response(self) -> web.Response:
        """As HTTP; the connection ends with it."""
        response = web.Response(status=self.status, body=self.body, content_type="application/json")
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.force_close()
        return response


def reply(message: msgspec.Struct) -> Reply:
    """A good answer."""
    return Reply(200, msgspec.json.encode(message))


def refused(status: int, what: str, fix: str = "") -> Reply:
    """A refusal."""
    return Reply(status, msgspec.json.encode(Problem(what=what, fix=fix)))


def problem(error: DcnrError) -> Reply:
    """What the peer is told of an error: all of a refusal, nothing of our files and insides."""
    if isinstance(error, RefusedError | UserError):
        status = 403 if isinstance(error, RefusedError) else 400
        return Reply(status, msgspec.json.encode(Problem(what=error.what, why=error.why, fix=error.fix)))
    return refused(503, "this machine could not do it, see its log")
