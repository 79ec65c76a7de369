"""A session on the cluster from the command line: started, stopped, resumed, while the agent is a process."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dcnr_app.cli.agent_client import AgentClient
from dcnr_app.cluster.agent_file import read_agent_file
from dcnr_app.cluster.journal import read_decisions
from dcnr_app.store.sqlite import SqliteStore
from tests.e2e.place import Place

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

STEPS = 150  # enough for the command that stops it to start meanwhile


def is_listening(place: Place) -> bool:
    """Whether the agent's PNode can be used."""
    found: Any = AgentClient.find(place.home).get("pnodes", object)
    return bool(found) and all(pnode["address"] for pnode in found)


def test_a_session_is_started_stopped_and_resumed_with_the_same_bits(
    place: Place, prepared: Place, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Place(tmp_path / "elsewhere", prepared.data)
    undisturbed = elsewhere.run(*elsewhere.demo(workers=0, steps=STEPS), "--json").result
    train = ("train", str(place.network), "--dataset", "latest", "--steps", str(STEPS), "--seed", "1")
    with place.running("up", "--loopback", "--headless", "--role", "orchestrator") as agent:
        agent.until(lambda: read_agent_file(place.home) is not None)
        agent.until(lambda: is_listening(place))
        with place.running(*train, "--cluster", "--json") as training:
            training.until_step(5)
            stopped = place.run("session", "stop", "latest", "--json")
            followed = training.ended()
        assert (stopped.code, stopped.result["status"]) == (0, "stopped"), stopped
        assert followed.result["status"] == "stopped"
        assert followed.code == followed.result["exit_code"]
        n_steps = place.n_commits()
        assert 5 <= n_steps == stopped.result["step"] < STEPS
        resumed = place.run("session", "resume", "latest", "--cluster", "--json")
        assert (resumed.code, resumed.result["status"]) == (0, "finished"), resumed
        agent.signal(signal.SIGTERM)
        ended = agent.ended(10)
        agent.no_worker_within(0.5)
    assert ended.code == 0
    ((session, _),) = place.commits().items()
    with closing(SqliteStore.open_reader(place.home)) as store:
        rows = read_decisions(store, session)
    assert [rows[step].loss for step in sorted(rows)] == undisturbed["losses"]
