"""The PNode processes of this machine, started and kept up by its agent between sessions too. IO."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
import psutil

from dcnr_app.clock import Clock
from dcnr_app.cluster.addresses import host_port
from dcnr_app.cluster.agent_messages import RESTING, PNodeReport
from dcnr_app.cluster.cluster_files import OwnCluster, PNodeSecret
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.identity import fingerprint
from dcnr_app.cluster.local_worker import RestartDelays
from dcnr_app.cluster.membership import dial_address
from dcnr_app.cluster.processes import Bootstrap, WorkerProcess, start_worker
from dcnr_app.errors import DcnrError, DeadlineError, PeerError
from dcnr_app.ids import PNodeId

_LOG = logging.getLogger(__name__)
_CRASH_LOOP_S = 10.0
_OWNER_S = 5.0


class PNodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How PNode processes of this machine are started; `host` is what they listen on."""

    environment: Mapping[str, str]
    threads: int
    host: str
    agent_port: int = 0
    cores: int = 0
    memory_bytes: int = 0
    """What the owner lends; 0 for all."""
    device: str = ""
    device_class: str = ""
    measured: Callable[[PNodeId], DeviceFacts] | None = None
    """What was measured of a PNode's device, with the memory that is free now."""
    may_work: Callable[[], str] = lambda: ""
    """Why the owner does not want work done now; an empty text if he does. May take seconds."""
    limits: Callable[[], str] = lambda: ""
    """What the owner lets the app use, in words."""


class AgentPNode:
    """One PNode: a process after the other."""

    def __init__(self, secret: PNodeSecret, own: OwnCluster, settings: PNodeSettings, clock: Clock) -> None:
        self._own = own
        self._secret = secret
        self._settings = settings
        self._clock = clock
        self._process: WorkerProcess | None = None
        self._fingerprint = fingerprint(secret.credentials.cert_pem)
        self.pnode = secret.pnode
        self.state, self.why = "starting", ""

    async def keep(self, changed: Callable[[], None]) -> None:
        """Start a process and another one whenever it ends, until cancelled."""
        delays = RestartDelays()
        while True:
            started_ms = self._clock.monotonic_ms()
            self.state = "starting"
            try:
                self._process = await start_worker(self._bootstrap(), self._settings.environment)
                self.state, self.why = "idle", ""
                changed()
                await self._process.ended()
                self.why = self._process.how_it_ended()
            except (PeerError, DeadlineError, OSError) as error:  # OSError: the system starts no process
                self.why = str(error)
            self._process, self.state = None, "failed"
            changed()
            _LOG.warning("pnode_ended pnode=%s how=%s", self.pnode, self.why)
            delay_s = delays.after(self._clock.monotonic_ms() - started_ms)
            await asyncio.sleep(_CRASH_LOOP_S if delay_s is None else delay_s)

    def restart(self, pid: int) -> None:
        """End the process if it is still this one; `keep` starts another."""
        if self._process is not None and self._process.pid == pid:
            self._process.kill()

    def report(self, hosts: Sequence[str], resting: str) -> PNodeReport:
        """How it is; `hosts` are this machine's addresses, `resting` is why it is not to work now."""
        process, measured = self._process, self._settings.measured
        address = ""
        if process is not None:
            port = int(process.address.rpartition(":")[2])
            address = dial_address([host_port(host, port) for host in hosts])
        return PNodeReport(
            pnode=self.pnode,
            address=address,
            fingerprint=self._fingerprint,
            pid=process.pid if process is not None else 0,
            state=RESTING if resting and process is not None else self.state,
            why=resting or self.why,
            memory_bytes=_resident_bytes(process.pid) if process is not None else 0,
            free_memory_bytes=psutil.virtual_memory().available,
            device=self._settings.device,
            device_class=self._settings.device_class,
            facts=msgspec.json.encode(measured(self.pnode)) if measured is not None else b"",
        )

    async def close(self) -> None:
        """End the process."""
        if self._process is not None:
            await self._process.close()

    def _bootstrap(self) -> Bootstrap:
        credentials = self._secret.credentials
        return Bootstrap(
            pnode=self.pnode,
            cluster=self._own.cluster,
            certificate_pem=credentials.cert_pem.decode(),
            key_pem=credentials.key_pem.decode(),
            authority_pem=credentials.ca_pem.decode(),
            orchestrator_fingerprint=self._own.orchestrator_fingerprint,
            threads=self._settings.threads,
            stays=True,
            host=self._settings.host,
            cores=self._settings.cores,
            memory_bytes=self._settings.memory_bytes,
        )


class AgentPNodes:
    """All PNodes of this machine while it is in a cluster."""

    def __init__(
        self,
        own: OwnCluster,
        settings: PNodeSettings,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        changed: Callable[[], None],
    ) -> None:
        self._pnodes = [AgentPNode(secret, own, settings, clock) for secret in own.pnodes]
        self._keeping = [tasks.create_task(pnode.keep(changed)) for pnode in self._pnodes]
        self._settings = settings
        self._keeping.append(tasks.create_task(self._watch_owner()))
        self._resting = ""
        self.limits = ""

    def reports(self, hosts: Sequence[str]) -> tuple[PNodeReport, ...]:
        """How they are."""
        return tuple(pnode.report(hosts, self._resting) for pnode in self._pnodes)

    async def _watch_owner(self) -> None:
        while True:
            try:
                self._resting = await asyncio.to_thread(self._settings.may_work)
                self.limits = await asyncio.to_thread(self._settings.limits)
            except DcnrError as error:  # what he wants cannot be read: nothing is done against it
                self._resting = error.what
                _LOG.warning("owner_unreadable why=%s", error)
            await asyncio.sleep(_OWNER_S)

    def restart(self, pnode: PNodeId, pid: int) -> None:
        """End this process of a PNode, if it is still its process."""
        for each in self._pnodes:
            if each.pnode == pnode:
                each.restart(pid)

    async def close(self) -> None:
        """End them all."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        async with asyncio.TaskGroup() as closing:
            for pnode in self._pnodes:
                closing.create_task(pnode.close())


def _resident_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
