"""Errors that reach a person: what happened, where, why, and what to do. Knows nothing about any layer."""

from __future__ import annotations

from typing import TypeVar

_Error = TypeVar("_Error", bound=BaseException)


class DcnrError(Exception):
    """Base of all errors of this app. `exit_code` is what the command line ends with."""

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        """The message as a person reads it: one line each for what, where, why and what to do."""
        lines = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  try: {self.fix}")
        return "\n".join(lines)


class UserError(DcnrError):
    """A bad argument or setting."""

    exit_code = 2


class UnreachableError(DcnrError):
    """The orchestrator, or what was asked about, cannot be reached."""

    exit_code = 3


class DeadlineError(DcnrError):
    """Something did not answer in time."""

    exit_code = 4


class RefusedError(DcnrError):
    """Another process or machine refused: not paired, not a member, or the home is held."""

    exit_code = 5


class InvalidError(DcnrError):
    """A configuration or network is invalid."""

    exit_code = 6


class DeviceError(DcnrError):
    """No usable device."""

    exit_code = 7


class PeerError(DcnrError):
    """A PNode failed or broke the protocol."""


class StoreError(DcnrError):
    """Durable state could not be read or written."""


class DivergedError(DcnrError):
    """A replayed step did not give the recorded loss on the same device class."""


class MissingExtraError(DcnrError):
    """An optional library is not installed."""

    exit_code = 2

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"{library} is not installed",
            why="it is an optional part",
            fix=f"pip install 'dcnr-app[{extra}]'",
        )


class InvariantError(DcnrError):
    """A bug of ours: something that must hold did not."""


def first_error(group: BaseExceptionGroup[_Error]) -> _Error:
    """The first error of a group, however deep: what a person is told."""
    found = group.exceptions[0]
    return first_error(found) if isinstance(found, BaseExceptionGroup) else found
