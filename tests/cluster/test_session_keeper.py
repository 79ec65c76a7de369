"""What keeps an agent's session running: no fault of disk or system ends the agent with it."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from dcnr_app.cluster.runner_lines import (
    RunnerBootstrap,
    RunnerEvent,
    SessionBegun,
    SessionEnded,
    SessionNoted,
    SessionRequest,
)
from dcnr_app.cluster.session_keeper import SessionKeeper
from dcnr_app.errors import UnreachableError

REQUEST = SessionRequest(network="tiny-gpt", dataset="latest")


def bootstrap(request: SessionRequest) -> RunnerBootstrap:
    """Of a cluster without PNodes."""
    return RunnerBootstrap(
        cluster="c", certificate_pem="", key_pem="", authority_pem="", hosts=(), members=(), request=request
    )


class Scene:
    """A keeper whose file is `file`, and what it told."""

    def __init__(self, file: Path, tasks: asyncio.TaskGroup, environment: dict[str, str]) -> None:
        self.told: list[RunnerEvent] = []
        self.keeper = SessionKeeper(file, bootstrap, environment, self.told.append, tasks)


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The system can start no process of ours."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "gone"))


@pytest.mark.usefixtures("no_interpreter")
def test_a_process_that_cannot_be_started_is_told_and_ends_nothing_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            scene = Scene(tmp_path / "session.json", tasks, {})
            with pytest.raises(UnreachableError, match="did not begin") as caught:
                await scene.keeper.start(REQUEST)
            assert "did not start" in caught.value.why
            assert "gone" in caught.value.why
            (ended,) = scene.told
            assert isinstance(ended, SessionEnded)
            assert (ended.status, ended.exit_code) == ("failed", 1)
            await scene.keeper.close()

    asyncio.run(test())


def test_a_session_that_cannot_be_written_down_runs_and_the_person_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way of a folder")

    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            scene = Scene(tmp_path / "file" / "session.json", tasks, {})
            scene.keeper._take(SessionBegun("s-1", "tiny", 3))
            noted, begun = scene.told
            assert isinstance(noted, SessionNoted)
            assert "will not go on by itself" in noted.text
            assert isinstance(begun, SessionBegun)
            assert scene.keeper.session == "s-1"
            scene.keeper._take(SessionEnded("s-1", "finished"))

    asyncio.run(test())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no file modes")
def test_a_running_session_is_remembered_for_the_owner_alone_until_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "cluster" / "session.json"

    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            scene = Scene(file, tasks, {})
            scene.keeper._take(SessionBegun("s-1", "tiny", 3))
            assert msgspec.json.decode(file.read_bytes()) == "s-1"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            scene.keeper._take(SessionEnded("s-1", "finished"))
            assert not file.exists()

    asyncio.run(test())


@pytest.mark.parametrize("text", ["", '"', "7", None])
def test_what_cannot_be_read_is_no_session_to_go_on_with(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "session.json"
    if text is not None:
        file.write_text(text)

    async def test() -> None:
        async with asyncio.TaskGroup() as tasks:
            assert Scene(file, tasks, {}).keeper.resume_wanted() == ""

    asyncio.run(test())
