"""`pnode ls` and `pnode show` as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from dcnr_app.cluster.agent_file import write_agent_file
from dcnr_app.ui.local_api import PNodeView
from tests.cli.calling import Cli
from tests.ui.recorded_api import TOKEN, RecordedApi, Served, served

KNOWN = PNodeView(
    pnode="aa-0", machine="aa", name="desk", presence="live", is_this_machine=True, state="training",
    address="10.0.0.2:5", pid=7, device="8 cores", memory_bytes=2_000_000, free_memory_bytes=3_000_000_000,
    vnodes=("embed", "head"), limits="4 cores, not on battery",
    device_facts={"gemm_flops": {"float32": 2.5e9}},
)  # fmt: skip
AWAY = PNodeView(pnode="bb-0", machine="bb", name="tower", presence="offline", is_this_machine=False)


class Two(RecordedApi):
    """Two PNodes, of one of which nothing is known."""

    async def pnodes(self) -> tuple[PNodeView, ...]:
        return (KNOWN, AWAY)


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served(Two()) as found:
        yield found


@pytest.fixture(autouse=True)
def _agent(shared: Served, cli: Cli) -> None:
    cli.home.ensure()
    write_agent_file(cli.home, shared.port, TOKEN)


def test_all_pnodes_are_listed_and_what_is_not_known_is_said(cli: Cli) -> None:
    head, desk, tower = cli("pnode", "ls").out.splitlines()
    assert head.split() == ["PNode", "machine", "machine", "is", "state", "memory", "VNodes", "device"]
    assert desk.split() == [
        "aa-0", "desk", "(here)", "live", "training", "2.0", "MB", "2", "8", "cores",
    ]  # fmt: skip
    assert tower.split() == ["bb-0", "tower", "offline", "n/a", "n/a", "0", "n/a"]


@pytest.mark.parametrize("name", ["aa-0", "aa", "desk"])
def test_one_pnode_is_shown_with_what_its_owner_lends_and_what_was_measured(cli: Cli, name: str) -> None:
    text = cli("pnode", "show", name).out
    for part in (
        "desk (aa), this one", "4 cores, not on battery", "float32 2.5 GFLOP/s", "embed, head",
        "2.0 MB taken, 3.0 GB free",
    ):  # fmt: skip
        assert part in text
    assert cli("pnode", "show", name, "--json").json == msgspec.json.decode(msgspec.json.encode(KNOWN))


def test_a_pnode_that_is_away_is_shown_without_figures(cli: Cli) -> None:
    shown = dict(line.split(maxsplit=1) for line in cli("pnode", "show", "tower").out.splitlines())
    assert (shown["state"], shown["process"], shown["VNodes"]) == ("n/a", "n/a", "none")


def test_a_pnode_that_nobody_knows_ends_with_2(cli: Cli) -> None:
    done = cli("pnode", "show", "rack")
    assert (done.code, done.out, "dcnr-app pnode ls" in done.err) == (2, "", True)
