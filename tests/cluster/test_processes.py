"""Worker processes: however their start ends, none is left, and the reason is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dcnr_app.cluster import processes
from dcnr_app.cluster.identity import ClusterAuthority
from dcnr_app.cluster.processes import Bootstrap, start_worker
from dcnr_app.errors import DeadlineError, PeerError
from dcnr_app.ids import PNodeId
from dcnr_app.settings import child_environment
from tests.contracts.transport import run

pytestmark = pytest.mark.e2e


def bootstrap() -> Bootstrap:
    """For worker-1 of a cluster of its own."""
    issued = ClusterAuthority.create("local").issue(PNodeId("worker-1"), "local", "worker")
    return Bootstrap(
        pnode=PNodeId("worker-1"),
        cluster="local",
        certificate_pem=issued.cert_pem.decode(),
        key_pem=issued.key_pem.decode(),
        authority_pem=issued.ca_pem.decode(),
        orchestrator_fingerprint="0" * 64,
        threads=1,
    )


def children() -> set[int]:
    """Pids of the processes that this one has started and that live."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def environment(tmp_path: Path, startup: str) -> dict[str, str]:
    """In which every Python process runs `startup` before anything else."""
    (tmp_path / "sitecustomize.py").write_text(startup)
    return {**child_environment(), "PYTHONPATH": str(tmp_path)}


def test_a_started_worker_listens_and_ends_when_it_is_closed() -> None:
    async def test() -> None:
        worker = await start_worker(bootstrap(), child_environment())
        assert worker.pid in children()
        assert worker.address.startswith("127.0.0.1:")
        await worker.close()
        assert worker.how_it_ended() == f"its process {worker.pid} ended with code 0"
        assert not worker.was_killed

    run(test)


def test_a_killed_worker_is_told_apart_from_one_that_ended() -> None:
    async def test() -> None:
        worker = await start_worker(bootstrap(), child_environment())
        psutil.Process(worker.pid).kill()
        await worker.ended()
        assert worker.how_it_ended() == f"its process {worker.pid} was killed by signal 9 (Killed)"
        assert worker.was_killed
        await worker.close()

    run(test)


def test_killing_a_worker_that_is_just_dying_does_not_hide_how_it_ended(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def test() -> None:
        for _ in range(4):  # the fault that this keeps away came every other time
            worker = await start_worker(bootstrap(), child_environment())
            psutil.Process(worker.pid).kill()
            while psutil.pid_exists(worker.pid):
                worker.kill()
            await worker.ended()
            assert worker.how_it_ended() == f"its process {worker.pid} was killed by signal 9 (Killed)"

    run(test)
    assert capfd.readouterr().err == ""


def test_a_cancelled_start_leaves_no_process() -> None:
    async def test() -> None:
        before = children()
        starting = asyncio.ensure_future(start_worker(bootstrap(), child_environment()))
        while children() == before:
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert children() == before

    run(test)


@pytest.mark.parametrize(
    ("startup", "said"),
    [
        ("import os; os._exit(7)", "PNode worker-1 ended with code 7 before it could be reached"),
        ("import os; os.kill(os.getpid(), 9)", "PNode worker-1 was killed by signal 9 (Killed) before"),
        ("print('good morning', flush=True)", "PNode worker-1 did not say where it listens"),
    ],
)
def test_a_start_that_fails_tells_how_and_leaves_no_process(tmp_path: Path, startup: str, said: str) -> None:
    async def test() -> None:
        before = children()
        with pytest.raises(PeerError) as caught:
            await start_worker(bootstrap(), environment(tmp_path, startup))
        assert said in caught.value.what
        assert children() == before

    run(test)


def test_a_worker_that_never_listens_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_START_S", 0.3)

    async def test() -> None:
        before = children()
        with pytest.raises(DeadlineError, match="PNode worker-1 did not start within"):
            await start_worker(bootstrap(), environment(tmp_path, "import time; time.sleep(60)"))
        assert children() == before

    run(test)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (b"", 0, b""),
        (b"hello\n", 1, b"this command is started by an orchestrator, not by hand"),
        (b'{"pnode": "worker-1"}\n', 1, b"not by hand"),
    ],
)
def test_a_worker_that_is_told_nothing_or_nonsense_ends(line: bytes, code: int, said: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dcnr_app", "pnode-process"],
        input=line, capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr
    assert bool(said) == bool(done.stderr)
    assert b"Traceback" not in done.stderr
