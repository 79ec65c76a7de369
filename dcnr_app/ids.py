"""Identifiers: their types and the rule for the ones that name files. Pure."""

from __future__ import annotations

import re
from typing import NewType

from dcnr_app.errors import UserError

PNodeId = NewType("PNodeId", str)
SessionId = NewType("SessionId", str)
NetworkId = NewType("NetworkId", str)
VNodeName = NewType("VNodeName", str)

ORCHESTRATOR = PNodeId("orchestrator")

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def check_id(text: str, kind: str) -> str:
    """`text` if it can name a file: lower case letters, digits, `.`, `_`, `-`, no `..`, at most 64
    characters.

    Raises UserError otherwise, so that no id taken from outside can leave its folder.
    """
    if _SAFE.fullmatch(text) is None or ".." in text:
        raise UserError(f"{text!r} is not a valid {kind} id", why="ids hold a-z, 0-9, '.', '_' and '-' only")
    return text
