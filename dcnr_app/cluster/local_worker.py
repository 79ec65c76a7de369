"""One worker of this machine over the processes that it has one after the other. IO."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dcnr_app.cluster.identity import ClusterAuthority, fingerprint
from dcnr_app.cluster.messages import Address
from dcnr_app.cluster.pnode import role_of
from dcnr_app.cluster.processes import Bootstrap, WorkerProcess, start_worker
from dcnr_app.errors import InvariantError

_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 10.0
_STAYED_MS = 10_000.0
_MAX_SHORT_LIVES = 8


class RestartDelays:
    """How long to wait before the next start: doubled for every process that ended soon after its start."""

    def __init__(self) -> None:
        self._short_lives = 0

    def after(self, lived_ms: float) -> float | None:
        """Seconds to wait after a process that lived so long; None to give up, after 8 short lives."""
        self._short_lives = 0 if lived_ms >= _STAYED_MS else self._short_lives + 1
        if self._short_lives > _MAX_SHORT_LIVES:
            return None
        return float(min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2 ** max(0, self._short_lives - 1)))


class LocalWorker:
    """A PNode of this machine: each process of it has a certificate of its own."""

    def __init__(
        self, bootstrap: Bootstrap, authority: ClusterAuthority, environment: Mapping[str, str]
    ) -> None:
        self._bootstrap = bootstrap
        self._authority = authority
        self._environment = environment
        self._process: WorkerProcess | None = None
        self.pnode = bootstrap.pnode

    async def start(self) -> Address:
        """Start a process; returns where it listens. Raises as `start_worker` does."""
        cluster = self._bootstrap.cluster
        credentials = self._authority.issue(self.pnode, cluster, role_of(self.pnode))
        bootstrap = msgspec.structs.replace(
            self._bootstrap,
            certificate_pem=credentials.cert_pem.decode(),
            key_pem=credentials.key_pem.decode(),
        )
        self._process = await start_worker(bootstrap, self._environment)
        return Address(self.pnode, self._process.address, fingerprint(credentials.cert_pem))

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended the current process."""
        return self._process is not None and self._process.was_killed

    async def ended(self) -> str:
        """Wait for the end of the current process; returns how. Raises InvariantError without one."""
        if self._process is None:
            raise InvariantError(f"{self.pnode} was not started")
        await self._process.ended()
        return self._process.how_it_ended()

    def how_it_ended(self) -> str:
        """For people: by which signal, or with which exit code."""
        return "" if self._process is None else self._process.how_it_ended()

    def kill(self) -> None:
        """End the current process at once, if it is still there."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """Hang up and wait for the end."""
        if self._process is not None:
            await self._process.close()
