from __future__ import annotations

import json
from math import prod
from pathlib import Path

import msgspec
import pytest

from dcnr_app.cli.plan_view import bottleneck_text, comparison_text
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.prediction import Bottleneck, beside, predict
from dcnr_app.ids import PNodeId
from tests.cli.calling import TINY, Cli
from tests.cluster.facts import cluster, device
from tests.sim.samples import SETTINGS, tiny


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


def facts_file(path: Path, *devices: DeviceFacts, **link: float) -> str:
    """A facts file of these devices."""
    path.write_bytes(msgspec.json.encode(cluster(*devices, **link)))
    return str(path)


def test_plan_predicts_time_memory_and_bytes_per_link(cli: Cli) -> None:
    found = cli("network", "plan", "tiny-gpt", "--workers", "2", "--json").json
    predicted = found["predicted"]
    parts = [predicted[name] for name in ("tasks_ms", "sync_ms", "update_ms", "overhead_ms")]
    assert predicted["step_ms"] == pytest.approx(sum(parts))
    assert max(pnode["compute_ms"] for pnode in found["pnodes"]) <= predicted["tasks_ms"]
    assert all(pnode["memory_bytes"] > 0 for pnode in found["pnodes"])
    embedding_bytes = 4 * 512 * 128  # tied: its gradient goes one way, its new value the other
    per_step = {(link["from"], link["to"]): link["bytes_per_step"] for link in predicted["links"]}
    assert per_step == {
        (hop["from"], hop["to"]): found["microbatches"] * hop["bytes_per_microbatch"] + embedding_bytes
        for hop in found["hops"]
    }
    text = cli("network", "plan", "tiny-gpt", "--workers", "2")
    assert "predicted step" in text.out
    assert "bottleneck: " in text.out
    assert "speeds are assumed" in text.err


def test_plan_says_when_fewer_workers_would_be_faster(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    found = cli("network", "plan", str(path), "--workers", "3", "--json").json
    assert "would be faster" in found["warnings"][0]
    assert "would be faster" in cli("network", "plan", str(path), "--workers", "3").err


def test_plan_takes_the_pnodes_of_a_facts_file(cli: Cli, tmp_path: Path) -> None:
    path = facts_file(
        tmp_path / "facts.json", device("one", flops=1e9), device("two", flops=3e9), round_trip_ms=0.1
    )
    found = cli("network", "plan", "tiny-gpt", "--facts", path, "--json").json
    shares = {pnode["pnode"]: pnode["flops_share"] for pnode in found["pnodes"]}
    assert shares["two"] > 2 * shares["one"] > 0
    assert found["warnings"] == []
    assert found["predicted"]["speeds_measured"] is True
    assert "assumed" not in cli("network", "plan", "tiny-gpt", "--facts", path).err


def test_plan_leaves_out_a_machine_that_makes_it_slower_and_says_so(cli: Cli, tmp_path: Path) -> None:
    path = facts_file(
        tmp_path / "facts.json", device("fast", flops=1e12), device("slow", flops=1e8), round_trip_ms=80.0
    )
    result = cli("network", "plan", "tiny-gpt", "--facts", path)
    assert "slow not used" in result.err
    assert "slow" not in result.out


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 6),
        ("[]", 6),
        ('{"devices": []}', 6),
        ('{"devices": [{"pnode": "a"}, {"pnode": "a"}]}', 6),
        ('{"devices": [{"pnode": "a", "memory_bytes_per_s": -1}]}', 6),
        (
            '{"devices": [{"pnode": "a"}], "links": [{"source": "a", "target": "b", "bytes_per_s": 0, '
            '"round_trip_ms": 1}]}',
            6,
        ),
        ('{"devices": [{"pnode": "a", "free_memory_bytes": 1000}]}', 6),
        (None, 2),
    ],
)
def test_plan_with_facts_that_are_none_names_the_file_or_what_is_missing(
    cli: Cli, tmp_path: Path, text: str | None, code: int
) -> None:
    path = tmp_path / "facts.json"
    if text is not None:
        path.write_text(text)
    result = cli("network", "plan", "tiny-gpt", "--facts", str(path))
    assert (result.code, result.out) == (code, "")
    assert "facts.json" in result.err or "memory" in result.err


def test_plan_reads_only_unless_it_is_asked_to_measure(cli: Cli) -> None:
    cli("network", "plan", "tiny-gpt")
    assert not cli.root.exists()
    found = cli("network", "plan", "tiny-gpt", "--measure", "--json").json
    assert found["predicted"]["speeds_measured"] is True
    assert list(cli.home.measured.iterdir())
    again = cli("network", "plan", "tiny-gpt", "--json").json
    assert again["predicted"]["step_ms"] == found["predicted"]["step_ms"]


@pytest.mark.parametrize(
    ("bottleneck", "words"),
    [
        (Bottleneck(kind="compute", where="a", busy_ms=3.0), "compute on a, busy for 3.0 ms"),
        (Bottleneck(kind="link", where="a>b", busy_ms=3.0), "the link from a to b, busy for 3.0 ms"),
        (Bottleneck(kind="memory", where="a"), "memory of a"),
        (Bottleneck(kind="waiting"), "more microbatches may help"),
    ],
)
def test_bottlenecks_are_told_in_words(bottleneck: Bottleneck, words: str) -> None:
    assert words in bottleneck_text(bottleneck)


def test_a_prediction_is_told_beside_the_measured_time() -> None:
    network = tiny()
    everything = {entry.name: PNodeId("a") for entry in network.nodes}
    prediction = predict(network, SETTINGS, cluster(device("a", flops=1e6)), everything)
    found = beside(prediction, 2 * prediction.step_ms, {PNodeId("a"): 5.0})
    assert found.ratio == pytest.approx(2.0)
    assert found.predicted_compute_ms == prediction.compute_ms()
    assert "2.00 times as long" in comparison_text(found)
