"""The composition root: builds the registry, backends, stores and sessions, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dcnr_app.clock import Clock, SystemClock
from dcnr_app.cluster.local_cluster import ClusterSettings
from dcnr_app.cluster.staff import Staff, local_staff
from dcnr_app.data.dataset import Dataset, load_dataset
from dcnr_app.data.tokenizer import Tokenizer, load_tokenizer
from dcnr_app.engine.backend import Backend
from dcnr_app.engine.device import device_summary
from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.errors import DcnrError, UserError, first_error
from dcnr_app.nodes.graph.load import LoadedNetwork, load_network, read_network_file
from dcnr_app.nodes.registry import Registry, load_registry
from dcnr_app.sessions import Workshop
from dcnr_app.settings import HOME_VARIABLE, Home, asset_path, child_environment, find_home, load_limits
from dcnr_app.store.sessions import SessionRecord, settle_sessions
from dcnr_app.store.sqlite import SqliteStore
from dcnr_app.stored import find_folder, session_dataset_folder, tokenizer_folder, usable_path

if TYPE_CHECKING:
    from dcnr_app.cluster.agent import Agent
    from dcnr_app.cluster.devices import DeviceFacts
    from dcnr_app.ids import PNodeId


def make_backend(threads: int) -> Backend:
    """The engine of this machine: `threads` threads of the NumPy engine."""
    return ReferenceBackend(threads)


class App:
    """Everything of this app that one process uses, built once."""

    def __init__(self, home: Home | None = None, clock: Clock | None = None) -> None:
        self.home = home or find_home()
        self.clock = clock or SystemClock()
        self.registry: Registry = load_registry()

    # ---- stores

    def writer(self) -> SqliteStore:
        """The store for the process that holds the home's lock; sessions of dead processes are settled."""
        store = SqliteStore.open_writer(self.home, self.clock)
        settle_sessions(store)
        return store

    def reader(self) -> SqliteStore:
        """The store for reading, at any time."""
        return SqliteStore.open_reader(self.home)

    # ---- networks, data

    def network(self, name_or_path: str, overrides: Mapping[str, int | float] | None = None) -> LoadedNetwork:
        """A network by the name of a bundled or own file, or by path. Raises UserError or InvalidError."""
        with usable_path(name_or_path):
            path = self._network_path(name_or_path)
        return load_network(
            read_network_file(path), file=str(path), registry=self.registry, overrides=overrides or {}
        )

    def _network_path(self, name_or_path: str) -> Path:
        path = Path(name_or_path)
        if path.suffix in (".yaml", ".yml") or path.is_file():
            return path
        own = self.home.networks / f"{name_or_path}.yaml"
        if own.is_file():
            return own
        folders = (asset_path("networks"), self.home.networks)
        known = sorted(path.stem for folder in folders for path in folder.glob("*.yaml"))
        if name_or_path not in known:
            raise UserError(
                f"there is no network {name_or_path!r}",
                why=f"known are {', '.join(known)}",
                fix="give one of these names, or the path of a .yaml file",
            )
        return asset_path(f"networks/{name_or_path}.yaml")

    def dataset(self, name: str) -> tuple[Dataset, Tokenizer]:
        """A prepared dataset (id, the beginning of one, or `latest`) with its tokenizer.

        Raises UserError if there is none, StoreError if it or its tokenizer cannot be read.
        """
        return self._load(find_folder(self.home.datasets, name, "dataset"))

    def dataset_of(self, record: SessionRecord) -> tuple[Dataset, Tokenizer]:
        """The dataset of a session; its absence is told with how to make it anew. Raises as `dataset`."""
        folder = session_dataset_folder(self.home, record.session, record.dataset, record.tokenizer)
        return self._load(folder)

    def _load(self, folder: Path) -> tuple[Dataset, Tokenizer]:
        dataset = load_dataset(folder)
        where = tokenizer_folder(self.home, dataset.manifest.tokenizer_id, dataset.manifest.id)
        return dataset, load_tokenizer(where)

    # ---- sessions

    def workshop(self, n_workers: int) -> Workshop:
        """What running sessions with so many worker processes needs (0: one PNode in this process)."""
        n_cores = device_summary().n_cores
        settings = ClusterSettings(
            n_workers=n_workers,
            threads=max(1, n_cores // max(1, n_workers)),
            environment=child_environment(),
            restarts=True,
        )
        return self.workshop_of(local_staff(settings, self.registry, make_backend, self.clock))

    def workshop_of(self, staff: Staff) -> Workshop:
        """What running sessions on these PNodes needs."""
        return Workshop(
            home=self.home,
            clock=self.clock,
            registry=self.registry,
            make_backend=make_backend,
            staff=staff,
            pid=os.getpid(),
        )

    # ---- agents

    def agent(
        self, *, starts_cluster: bool = False, cluster_name: str = "", is_loopback: bool = False
    ) -> Agent:
        """This machine's agent, not yet running."""
        from dcnr_app.cluster.agent import Agent, AgentSettings
        from dcnr_app.cluster.agent_pnodes import PNodeSettings
        from dcnr_app.cluster.builds import this_build
        from dcnr_app.cluster.limits import threads_for
        from dcnr_app.cluster.local_facts import Device, device_facts
        from dcnr_app.cluster.pairing_messages import AGENT_PORT
        from dcnr_app.cluster.presence import verdict_now
        from dcnr_app.engine.measure import measured, memory_now
        from dcnr_app.limits import in_words

        summary, limits = device_summary(), load_limits(self.home)
        threads = threads_for(limits, summary.n_cores)
        backend = make_backend(threads)
        try:
            measurement = measured(self.home.measured, backend, threads, self.clock)
        finally:
            backend.close()

        def facts(pnode: PNodeId) -> DeviceFacts:
            device = Device(pnode.rpartition("-")[0], name=summary.processor)
            return device_facts(pnode, device, measurement, memory_now(), limits)

        pnode = PNodeSettings(
            environment={**child_environment(), HOME_VARIABLE: str(self.home.root)},
            threads=threads,
            host="127.0.0.1" if is_loopback else "0.0.0.0",  # noqa: S104  # mutual TLS, members only
            agent_port=0 if is_loopback else AGENT_PORT,
            cores=limits.cores or 0,
            memory_bytes=limits.memory_bytes or 0,
            device=f"{summary.processor}, {threads} cores, {summary.memory_bytes >> 30} GiB",
            device_class=measurement.device_class,
            measured=facts,
            may_work=lambda: verdict_now(load_limits(self.home)).reason,
            limits=lambda: in_words(load_limits(self.home)),
        )
        settings = AgentSettings(
            home=self.home,
            build=this_build(measurement.device_class),
            pnode=pnode,
            cluster_name=cluster_name,
            starts_cluster=starts_cluster,
            is_loopback=is_loopback,
        )
        return Agent(settings, self.clock)

    def run_agent(self, agent: Agent) -> None:
        """Run an agent until it is told to end or a signal comes. Raises RefusedError if one runs in this
        home, and what keeps it from starting."""
        import asyncio
        import secrets

        from dcnr_app.cluster.agent_file import drop_agent_file, held_by_agent, write_agent_file
        from dcnr_app.local_agent import LocalAgent
        from dcnr_app.ui.web.server import LocalApiServer

        async def serve() -> Callable[[], Awaitable[None]]:
            token = secrets.token_urlsafe(32)
            server = LocalApiServer(LocalAgent(agent, self.clock, os.getpid()), token)
            write_agent_file(self.home, await server.start(), token)

            async def close() -> None:
                drop_agent_file(self.home)
                await server.close()

            return close

        try:
            with held_by_agent(self.home):
                asyncio.run(agent.run(serve))
        except* DcnrError as group:
            raise first_error(group) from None
