"""Bodies of requests to the local API. Pure; what could name a file is bounded here already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

# No control characters, no path separators, no dots alone: names and ids only.
Name = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^(?!\.+\Z)[^\x00-\x1f\x7f/\\%]*\Z")]
Place = Annotated[str, msgspec.Meta(max_length=2000, pattern=r"^[^\x00-\x1f\x7f\\]*\Z")]
File = Annotated[str, msgspec.Meta(max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
Words = Annotated[str, msgspec.Meta(max_length=20_000)]


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A name for something new."""

    name: Name = ""


class JoinBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to join, and the code if there is one."""

    target: Place = ""
    code: Name = ""


class AnswerBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the person says of the digits."""

    verdict: Literal["match", "mismatch", "cancel"]


class MachineBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine, by id, PNode id, name, or digits."""

    machine: Name = ""


class RenameBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine and its new name."""

    machine: Name
    name: Name


class InviteBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a code to type is wanted instead of a link."""

    with_code: bool = False


class StartSessionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A session to start: `network` is a name or a file of this machine."""

    network: File = ""
    dataset: Name = ""
    session: Name = ""
    settings: Mapping[Name, str | int | float | bool | None] = {}
    prompt: Words = "def "


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An empty object."""
