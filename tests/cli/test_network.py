from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest

from tests.cli.calling import TINY, Cli


def test_ls_has_bundled_networks_first_then_own_ones_even_broken(cli: Cli) -> None:
    cli.home.networks.mkdir(parents=True)
    (cli.home.networks / "mine.yaml").write_text(TINY)
    (cli.home.networks / "broken.yaml").write_text("network: [")
    found = {entry["name"]: entry for entry in cli("network", "ls", "--json").json}
    assert found["tiny-gpt"]["source"] == "bundled"
    assert found["tiny-gpt"]["parameters"] == 660_608
    assert (found["mine"]["source"], found["mine"]["vnodes"]) == ("own", 7)
    assert found["broken"]["problem"]
    assert "broken.yaml:1" in cli("network", "ls").out


def test_validate_names_the_place_of_a_mistake_and_exits_6(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "typo.yaml"
    path.write_text(TINY.replace("type: layernorm", "type: layernrom"))
    result = cli("network", "validate", str(path), "--json")
    told = json.loads(result.out)
    assert result.code == 6
    assert told["valid"] is False
    assert told["where"] == f"{path}:8:24"
    assert "layernorm" in told["fix"]
    assert f"{path}:8:24" in result.err
    assert cli("network", "validate", str(path)).out == ""


@pytest.mark.parametrize(
    "name", ["folder", "absent.yaml", "no-such-network", "x" * 300, "~nobody-lives-here/x.yaml"]
)
def test_validate_of_what_is_no_file_exits_2(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    result = cli("network", "validate", str(tmp_path / name) if name == "folder" else name)
    assert (result.code, result.out) == (2, "")
    assert "try:" in result.err or "why:" in result.err


def test_validate_of_a_binary_file_exits_6(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "noise.yaml"
    path.write_bytes(bytes(range(256)))
    assert cli("network", "validate", str(path)).code == 6


def test_show_sums_up_what_its_rows_say(cli: Cli) -> None:
    found = cli("network", "show", "tiny-gpt", "--json").json
    assert sum(row["parameters"] for row in found["nodes"]) == found["parameters"] == 660_608
    assert sum(row["flops"] for row in found["nodes"]) == found["flops"]
    assert found["training"]["optimizer"]["type"] == "adamw"
    text = cli("network", "show", "tiny-gpt").out
    assert "block/2/attention" in text
    assert "660,608" in text


@pytest.mark.parametrize("n_workers", [0, 1, 2, 3])
def test_plan_places_every_vnode_and_parameter_once(cli: Cli, n_workers: int) -> None:
    found = cli("network", "plan", "tiny-gpt", "--workers", str(n_workers), "--json").json
    shown = cli("network", "show", "tiny-gpt", "--json").json
    placed = [name for pnode in found["pnodes"] for name in pnode["vnodes"]]
    assert sorted(placed + found["orchestrator_vnodes"]) == sorted(row["name"] for row in shown["nodes"])
    assert len(found["pnodes"]) == max(1, n_workers)
    assert sum(pnode["parameters"] for pnode in found["pnodes"]) == shown["parameters"]
    assert sum(pnode["flops_share"] for pnode in found["pnodes"]) == pytest.approx(1.0)
    assert sorted(name for p in found["pnodes"] for part in p["segments"] for name in part) == sorted(placed)


def test_plan_counts_the_bytes_of_every_tensor_that_crosses(cli: Cli) -> None:
    found = cli("network", "plan", "tiny-gpt", "--workers", "2", "--json").json
    rows = cli("network", "show", "tiny-gpt", "--json").json["nodes"]
    first, second = (set(pnode["vnodes"]) for pnode in found["pnodes"])
    wanted = {name for row in rows if row["name"] in second for name in row["inputs"]}
    n_bytes = sum(4 * prod(row["shape"]) for row in rows if row["name"] in first & wanted)
    forward = [hop["bytes_per_microbatch"] for hop in found["hops"] if hop["from"] == "worker-1"]
    assert n_bytes > 0
    assert forward == [n_bytes]


def test_plan_over_too_many_workers_exits_6(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    result = cli("network", "plan", str(path), "--workers", "40")
    assert (result.code, result.out) == (6, "")
    assert "use at most" in result.err
