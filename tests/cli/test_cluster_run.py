"""Sessions on the cluster: what `train` and `session resume` ask of the agent, and what they tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from dcnr_app.cluster.agent_file import write_agent_file
from dcnr_app.ui.local_api import SessionView, StartSession
from tests.cli.calling import TINY, Cli
from tests.ui.recorded_api import TOKEN, RecordedApi, Served, served

BEGUN = SessionView(session="s-1", status="starting", steps=3)
RUNNING = msgspec.structs.replace(BEGUN, status="running", step=1, loss=4.5, events=("one", "two"))
FINISHED = msgspec.structs.replace(RUNNING, status="finished", step=3, events=("two", "three"))
FAILED = msgspec.structs.replace(RUNNING, status="failed", error="no PNode is left", exit_code=3)


class Training(RecordedApi):
    """A session that goes one step on each time it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[SessionView] = []

    async def start_session(self, request: StartSession) -> SessionView:
        await super().start_session(request)
        return BEGUN

    async def session(self) -> SessionView:
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Training, Served]]:
    api = Training()
    with served(api) as found:
        yield api, found


@pytest.fixture
def api(shared: tuple[Training, Served], monkeypatch: pytest.MonkeyPatch) -> Training:
    """With nothing asked of it yet, and followed without pauses."""
    shared[0].calls.clear()
    monkeypatch.setattr("dcnr_app.cli.cluster_run._POLL_S", 0.0)
    return shared[0]


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return path


def run_by(cli: Cli, server: Served) -> Cli:
    """The command line of a home whose agent is this server."""
    cli.home.ensure()
    write_agent_file(cli.home, server.port, TOKEN)
    return cli


def asked(api: Training) -> StartSession:
    ((verb, (request,)),) = api.calls
    assert verb == "start-session"
    assert isinstance(request, StartSession)
    return request


def test_training_asks_for_what_was_said_and_tells_each_event_once(
    cli: Cli, api: Training, shared: tuple[Training, Served], network: Path
) -> None:
    api.steps = [BEGUN, RUNNING, RUNNING, FINISHED]
    verb = ("train", str(network), "--dataset", "latest", "--cluster", "--steps", "3", "--lr", "0.5")
    done = run_by(cli, shared[1])(*verb)
    assert (done.code, done.out) == (0, "session s-1 is finished at step 3 of 3\n")
    lines = done.err.splitlines()
    assert [line for line in lines if line in ("one", "two", "three")] == ["one", "two", "three"]
    assert "step 1/3  loss 4.5000" in lines
    assert asked(api) == StartSession(
        network=str(network), dataset="latest", settings={"steps": 3, "learning_rate": 0.5}
    )


def test_training_ends_with_the_sessions_code(
    cli: Cli, api: Training, shared: tuple[Training, Served], network: Path
) -> None:
    api.steps = [RUNNING, FAILED]
    run = run_by(cli, shared[1])
    done = run("train", str(network), "--dataset", "latest", "--cluster")
    assert (done.code, done.out, done.err.splitlines()[-1]) == (3, "", "error: no PNode is left")
    as_json = run("train", str(network), "--dataset", "latest", "--cluster", "--json")
    assert (as_json.code, json.loads(as_json.out)["error"]) == (3, "no PNode is left")


def test_ctrl_c_leaves_the_session_running_and_says_so(
    cli: Cli,
    api: Training,
    shared: tuple[Training, Served],
    network: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    api.steps = [RUNNING]
    monkeypatch.setattr("dcnr_app.cli.cluster_run.time.sleep", interrupt)
    done = run_by(cli, shared[1])("train", str(network), "--dataset", "latest", "--cluster")
    assert (done.code, "dcnr-app session stop s-1" in done.err) == (0, True)
    assert "stop-session" not in [verb for verb, _ in api.calls]


def test_an_agent_that_ends_meanwhile_is_said_with_how_to_go_on(
    cli: Cli, network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Training()
    api.steps = [RUNNING]
    with ExitStack() as life:
        run = run_by(cli, life.enter_context(served(api)))
        monkeypatch.setattr("dcnr_app.cli.cluster_run.time.sleep", lambda _: life.close())
        done = run("train", str(network), "--dataset", "latest", "--cluster")
    assert done.code == 3
    assert "session s-1 goes on when it runs again" in done.err
    assert "try: dcnr-app up" in done.err


def test_a_recorded_session_is_resumed_on_the_cluster(
    on_copy: Callable[[], Cli], api: Training, shared: tuple[Training, Served]
) -> None:
    api.steps = [FINISHED]
    cli = run_by(on_copy(), shared[1])
    recorded = cli("session", "show", "latest", "--json").json["session"]
    assert cli("session", "resume", "latest", "--cluster").code == 0
    assert asked(api) == StartSession(session=recorded)


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_without_an_agent_nothing_is_started(on_finished: Cli, network: Path, verb: str) -> None:
    asked_for = (
        ("train", str(network), "--dataset", "latest") if verb == "train" else ("session", "resume", "latest")
    )
    done = on_finished(*asked_for, "--cluster")
    assert (done.code, done.out, "dcnr-app up" in done.err) == (3, "", True)
