"""What a PNode process does from its first line of stdin to the end of that pipe. IO."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, NamedTuple

import msgspec
import psutil

from dcnr_app.clock import Clock
from dcnr_app.cluster.compute import Compute
from dcnr_app.cluster.grpc_transport import GrpcTransport
from dcnr_app.cluster.identity import Credentials
from dcnr_app.cluster.open_files import allow_open_files
from dcnr_app.cluster.pnode import PNodeDriver, role_of
from dcnr_app.cluster.presence import keep_to_cores, keep_to_memory
from dcnr_app.cluster.processes import Bootstrap, Listening
from dcnr_app.cluster.transport import Member
from dcnr_app.engine.backend import Backend
from dcnr_app.errors import DcnrError, PeerError, first_error
from dcnr_app.failpoints import Failpoint, Failpoints
from dcnr_app.ids import ORCHESTRATOR
from dcnr_app.nodes.registry import Registry

SWITCH_INTERVAL_S = 0.0002
"""For every process with an event loop beside compute: a busy interpreter else makes a hop wait 5 ms."""
_GRACE_S = 1.0


class Parts(NamedTuple):
    """What a PNode is made of; `armed` are the failpoints of all processes."""

    registry: Registry
    make_backend: Callable[[int], Backend]
    clock: Clock
    armed: tuple[Failpoint, ...] = ()


def run_pnode_process(stdin: BinaryIO, stdout: BinaryIO, parts: Parts) -> None:
    """Serve as the PNode that the first line of `stdin` describes, until the pipe ends or the orchestrator
    leaves.

    Raises PeerError if that line is not a Bootstrap, and what ended the PNode if something did.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    allow_open_files()
    line = stdin.readline()
    if not line:
        return  # the parent ended before it could say anything
    try:
        bootstrap = msgspec.json.decode(line, type=Bootstrap)
    except msgspec.MsgspecError as error:
        raise PeerError("this command is started by an orchestrator, not by hand", why=str(error)) from error
    try:
        asyncio.run(_serve(bootstrap, stdin, stdout, parts))
    except* DcnrError as group:
        raise first_error(group) from None


async def _serve(bootstrap: Bootstrap, stdin: BinaryIO, stdout: BinaryIO, parts: Parts) -> None:
    credentials = Credentials(
        cert_pem=bootstrap.certificate_pem.encode(),
        key_pem=bootstrap.key_pem.encode(),
        ca_pem=bootstrap.authority_pem.encode(),
    )
    transport = GrpcTransport(
        bootstrap.pnode,
        credentials,
        bootstrap.cluster,
        host=bootstrap.host,
        failpoints=Failpoints(parts.armed, bootstrap.pnode),
    )
    compute = Compute(
        bootstrap.pnode, parts.registry, lambda: parts.make_backend(bootstrap.threads), parts.clock
    )
    driver = PNodeDriver(
        pnode=bootstrap.pnode,
        transport=transport,
        compute=compute,
        registry=parts.registry,
        clock=parts.clock,
        stays=bootstrap.stays,
    )
    _end_with_pipe(stdin, asyncio.get_running_loop(), driver.stop)
    address = await transport.start(driver)
    known = Member(
        pnode=ORCHESTRATOR,
        address="",
        fingerprint=bootstrap.orchestrator_fingerprint,
        role=role_of(ORCHESTRATOR),
    )
    transport.set_members([known])
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(driver.run())
            await driver.started()
            _keep_to_limits(bootstrap)  # what threads and libraries take is known by now
            line = msgspec.json.encode(Listening(address, os.getpid())) + b"\n"
            with suppress(BrokenPipeError):  # the parent is gone: the other pipe says so too
                os.write(stdout.fileno(), line)
            await running
    finally:
        await transport.close()
        compute.close()


def _keep_to_limits(bootstrap: Bootstrap) -> None:
    """Hold this process to what the machine's owner lends, where the system can do that; the plan keeps to it
    everywhere."""
    if bootstrap.cores:
        keep_to_cores(bootstrap.cores)
    if bootstrap.memory_bytes:
        keep_to_memory(max(0, bootstrap.memory_bytes - int(psutil.Process().memory_info().rss)))


def _end_with_pipe(stdin: BinaryIO, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """End when the parent's end of the pipe closes, for whatever reason: no orphan outlives its
    orchestrator."""

    descriptor = stdin.fileno()

    def wait_for_end() -> None:
        while os.read(descriptor, 4096):  # not stdin.read: its lock would hang the interpreter's end
            pass
        with suppress(RuntimeError):  # the loop is closed: the session ended, and this process is ending
            loop.call_soon_threadsafe(stop)
        time.sleep(_GRACE_S)
        os._exit(3)  # a long kernel must not keep the process alive

    threading.Thread(target=wait_for_end, name="parent-pipe", daemon=True).start()
