"""Our side of the training benchmark: a session with its one PNode in this process, its store on the disk."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dcnr_app.app import App, make_backend
from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.feeds import SessionFeed
from dcnr_app.cluster.generation import Sampling
from dcnr_app.cluster.journal import SessionJournal
from dcnr_app.cluster.local_cluster import LOCAL, ClusterSettings
from dcnr_app.cluster.session import SessionJob, SessionTools, run_session
from dcnr_app.cluster.staff import local_staff
from dcnr_app.cluster.start_point import StartPoint
from dcnr_app.data.source import Microbatch
from dcnr_app.nodes.graph.load import LoadedNetwork
from dcnr_app.nodes.graph.network import encode_network, network_id
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.settings import Home
from dcnr_app.store.lock import HomeLock
from dcnr_app.store.sessions import SessionRecord, create_session, new_session_id
from dcnr_app.store.store import Store

WARM_UP_STEPS = 3
HostArray = np.ndarray[Any, Any]


class WorkFile(NamedTuple):
    """A BatchSource: the tokens (steps, batch, context + 1) of a work file, in microbatches."""

    tokens: HostArray
    microbatches: int

    def batch(self, step: int) -> tuple[Microbatch, ...]:
        """The microbatches of a step (from 1)."""
        return tuple(
            Microbatch(part[:, :-1].copy(), part[:, 1:].copy(), (), part.size - len(part))
            for part in np.split(self.tokens[step - 1], self.microbatches)
        )

    def validation(self) -> tuple[Microbatch, ...]:
        """The first step's batch."""
        return self.batch(1)


class Stopwatch:
    """A Watcher that notes when each step was committed, and the peak memory by then."""

    def __init__(self) -> None:
        self.times_ms: list[float] = []
        self.losses: list[float] = []
        self.peak_bytes = 0

    def planned(self, network: Any, plan: Any) -> None:
        """Nothing to note."""

    def ready(self, pnode: Any, pid: int) -> None:
        """Training begins."""
        self.times_ms.append(time.perf_counter() * 1000.0)

    def stepped(self, decision: Decision, reports: Mapping[Any, Any], *, is_replay: bool) -> None:
        """A step was committed."""
        self.times_ms.append(time.perf_counter() * 1000.0)
        self.losses.append(decision.loss)
        self.peak_bytes = peak_bytes()

    def validated(self, step: int, loss: float) -> None:
        """Nothing to note."""

    def recovering(self, reason: str) -> None:
        """No PNode is lost here."""

    def replanned(self, network: Any, plan: Any, step: int) -> None:
        """No plan changes here."""

    def no_sample(self, why: str) -> None:
        """Nobody reads it."""

    def sampling(self) -> None:
        """Nothing to note."""

    def stoppable(self, stop: Callable[[], None]) -> None:
        """Nobody stops it."""


class NoText:
    """The TextCoder of a session that writes no sample."""

    end_of_text = 0

    def encode(self, text: str) -> list[int]:
        """No ids: nobody asks."""
        return []

    def decode(self, ids: Sequence[int]) -> str:
        """No text: nobody asks."""
        return ""


def peak_bytes() -> int:
    """Most memory that this process has held at once. Not Linux's ru_maxrss: it begins with the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def record_session(
    store: Store, app: App, loaded: LoadedNetwork, settings: TrainingSettings
) -> SessionRecord:
    """The record of a new session, as `sessions.create` makes it for a dataset."""
    record = SessionRecord(
        session=new_session_id(app.clock.wall_ms(), 0),
        created_ms=app.clock.wall_ms(),
        status="running",
        step=0,
        network=network_id(loaded.network),
        network_name=loaded.network.name,
        dataset="",
        tokenizer="",
        settings={},
        device_class="",
        workers=(LOCAL,),
        pid=os.getpid(),
    )
    create_session(store, record, encode_network(loaded.network))
    return record


def run(work: Path, threads: int, folder: Path) -> dict[str, Any]:
    """Train over all batches of a work file; the figures of the steps after the warm-up."""
    with np.load(work) as file:
        facts = json.loads(file["facts"].tobytes())
        tokens = file["tokens"]
    settings = msgspec.convert(facts["settings"], TrainingSettings)
    app = App(Home(folder))
    app.home.ensure()
    loaded = app.network(facts["network"], facts["variables"])
    watch = Stopwatch()
    with HomeLock(app.home, "benchmark"):
        store = app.writer()
        record = record_session(store, app, loaded, settings)
        backend = make_backend(1)
        tools = SessionTools(
            staff=local_staff(
                ClusterSettings(n_workers=0, threads=threads, environment={}),
                app.registry,
                make_backend,
                app.clock,
            ),
            clock=app.clock,
            feed=SessionFeed(loaded.network, WorkFile(tokens, settings.microbatches), backend, {}),
            journal=SessionJournal(store, record.session, app.clock, lambda effect, parts: "", StartPoint),
            coder=NoText(),
            orchestrator_pid=os.getpid(),
        )
        job = SessionJob(
            session=record.session,
            generation=1,
            network=loaded.network,
            settings=settings,
            context=loaded.context,
            start=StartPoint(validated=frozenset({settings.steps})),
            sampling=Sampling(n_tokens=0, temperature=0.0, seed=0),
        )
        asyncio.run(run_session(job, tools, watch, None))
        backend.close()
        store.close()
    return {
        "losses": watch.losses,
        "step_ms": np.diff(watch.times_ms).tolist()[WARM_UP_STEPS:],
        "peak_bytes": watch.peak_bytes,
        "engine": f"{backend.name}, NumPy {np.__version__}, {backend.device_class()['blas']}",
    }


def main() -> None:
    """Run and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="own-session-") as folder:
        json.dump(run(arguments.work, arguments.threads, Path(folder)), sys.stdout)


if __name__ == "__main__":
    main()
