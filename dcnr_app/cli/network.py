"""`dcnr-app network`: list, validate, show and plan networks. Reads only, but for `plan --measure`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dcnr_app.cli.output import json_option, pairs, path_text, say, table, write_json, write_text

if TYPE_CHECKING:
    from dcnr_app.app import App
    from dcnr_app.cluster.devices import ClusterFacts
    from dcnr_app.nodes.graph.load import LoadedNetwork


@click.group("network", epilog="Example: dcnr-app network show tiny-gpt")
def command() -> None:
    """Validate, show and plan networks: YAML graphs of virtual nodes."""


@command.command("ls", epilog="Example: dcnr-app network ls --json")
@json_option
def list_command(*, as_json: bool) -> None:
    """List the bundled networks and your own (in the home's `networks` folder)."""
    from dcnr_app.app import App

    app = App()
    entries = [_entry(app, path, source) for path, source in _network_files(app)]
    if as_json:
        write_json(entries)
        return
    columns = ("network", "from", ">VNodes", ">parameters", ">context", ">vocabulary")
    rows = [
        (e["name"], e["source"], e["problem"].splitlines()[0])
        if e["problem"]
        else (e["name"], e["source"], e["vnodes"], f"{e['parameters']:,}", e["context"], e["vocabulary"])
        for e in entries
    ]
    write_text(table(columns, [(*row, *[""] * (len(columns) - len(row))) for row in rows]))


@command.command("validate", epilog="Example: dcnr-app network validate my-network.yaml")
@click.argument("network", metavar="FILE")
@json_option
def validate_command(network: str, *, as_json: bool) -> None:
    """Check FILE (or a network's name): syntax, names, shapes, gradients. Exit code 6 if it is not valid."""
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_network
    from dcnr_app.errors import InvalidError

    try:
        facts = _facts(find_network(App(), network))
    except InvalidError as error:
        if as_json:
            told = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
            write_json({"file": network, "valid": False, **told})
        raise
    if as_json:
        write_json({"file": network, "valid": True, **facts})
        return
    write_text(
        f"{network} is valid: {facts['vnodes']} VNodes, {facts['parameters']:,} parameters, "
        f"context {facts['context']}, vocabulary {facts['vocabulary']}, id {facts['id']}"
    )


@command.command("show", epilog="Example: dcnr-app network show tiny-gpt --json")
@click.argument("network")
@json_option
def show_command(network: str, *, as_json: bool) -> None:
    """Show NETWORK (a name or a .yaml file), one row per VNode: inputs, shape, parameters, FLOPs."""
    import msgspec

    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_network
    from dcnr_app.nodes.graph.show import network_table
    from dcnr_app.nodes.graph.training import settings_form

    loaded = find_network(App(), network)
    shown = network_table(loaded.network, loaded.training.rows)
    facts = _facts(loaded)
    if as_json:
        facts |= {
            "flops": shown.flops,
            "rows_per_microbatch": shown.rows_per_microbatch,
            "variables": dict(loaded.variables),
            "inputs": msgspec.to_builtins(loaded.network.inputs),
            "outputs": dict(loaded.network.outputs),
            "training": settings_form(loaded.training),
            "nodes": msgspec.to_builtins(shown.rows),
        }
        write_json(facts)
        return
    columns = ("VNode", "type", "inputs", "shape", ">parameters", ">forward FLOPs")
    rows = [
        (
            row.name,
            row.type,
            _inputs(row.inputs),
            "×".join(map(str, row.shape)) or "scalar",
            f"{row.parameters:,}",
            f"{row.flops:,}",
        )
        for row in shown.rows
    ]
    write_text(table(columns, rows))
    write_text("")
    sums = {
        "network": f"{facts['name']} (id {facts['id']})",
        "VNodes": facts["vnodes"],
        "parameters": f"{facts['parameters']:,}",
        "context": facts["context"],
        "vocabulary": facts["vocabulary"],
        "forward": f"{shown.flops:,} FLOPs for {shown.rows_per_microbatch} sequences",
    }
    write_text(pairs(sums))


def _cluster_facts(app: App) -> ClusterFacts:
    """What the agents of the cluster measured of the PNodes that are there. Raises UnreachableError if there
    is no agent or no PNode."""
    from dcnr_app.cli.agent_client import AgentClient
    from dcnr_app.cluster.local_facts import told_facts
    from dcnr_app.errors import UnreachableError
    from dcnr_app.ui.local_api import PNodeView

    found = AgentClient.find(app.home).get("pnodes", list[PNodeView])
    told = [pnode.device_facts for pnode in found if pnode.device_facts and pnode.presence != "offline"]
    if not told:
        raise UnreachableError("no PNode of the cluster says what it can do", fix="dcnr-app pnode ls")
    return told_facts(told)


@command.command("plan", epilog="Example: dcnr-app network plan tiny-gpt --workers 3")
@click.argument("network")
@click.option("--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="Worker processes.")
@click.option(
    "--facts", metavar="FILE", help="Plan for the PNodes in FILE (JSON: devices and links) instead."
)
@click.option("--cluster", "on_cluster", is_flag=True, help="Plan for the PNodes of this machine's cluster.")
@click.option("--measure", "measures", is_flag=True, help="Measure this machine first, if it never was.")
@json_option
def plan_command(
    network: str, workers: int, facts: str | None, *, on_cluster: bool, measures: bool, as_json: bool
) -> None:
    """Show which VNode of NETWORK would run on which PNode, what would cross between them, and how long a
    step would take."""
    from dcnr_app.app import App
    from dcnr_app.cli.lookup import find_network
    from dcnr_app.cli.plan_view import plan_form, plan_text
    from dcnr_app.cli.planning import preview_cluster, preview_workers
    from dcnr_app.cluster.local_facts import read_facts

    app = App()
    loaded = find_network(app, network)
    if on_cluster:
        preview = preview_cluster(loaded, _cluster_facts(app))
    elif facts is None:
        preview = preview_workers(app, loaded, workers, measures=measures)
    else:
        preview = preview_cluster(loaded, read_facts(Path(facts)))
    form = plan_form(loaded.network, preview)
    if as_json:
        write_json(form)
        return
    write_text(plan_text(form))
    for warning in preview.warnings:
        say(f"note: {warning}")
    if not preview.is_measured:
        say("speeds are assumed: --measure measures this machine" if facts is None else "speeds are assumed")
    if on_cluster:
        say(f"train it so: dcnr-app train {network} --dataset latest --cluster")
    elif facts is None:
        say(f"train it so: dcnr-app demo --network {network} --workers {workers}")


def _network_files(app: App) -> list[tuple[Path, str]]:
    """Network files with where they come from: the bundled ones by name, then the person's, oldest first."""
    from dcnr_app.settings import asset_path

    bundled = [(path, "bundled") for path in sorted(asset_path("networks").glob("*.yaml"))]
    own = sorted(app.home.networks.glob("*.yaml"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    return bundled + [(path, "own") for path in own]


def _entry(app: App, path: Path, source: str) -> dict[str, Any]:
    from dcnr_app.errors import DcnrError

    place = {"name": path.stem, "source": source, "path": path_text(path)}
    try:
        facts = _facts(app.network(str(path)))
    except DcnrError as error:  # a broken file is listed as broken; the others are not hidden by it
        return {**place, "problem": str(error)}
    return {**facts, **place, "problem": ""}


def _facts(loaded: LoadedNetwork) -> dict[str, Any]:
    from math import prod

    from dcnr_app.nodes.graph.analysis import network_parameters
    from dcnr_app.nodes.graph.network import network_id

    parameters = network_parameters(loaded.network).values()
    return {
        "name": loaded.network.name,
        "id": network_id(loaded.network),
        "vnodes": len(loaded.network.nodes),
        "parameters": sum(prod(parameter.spec.shape) for parameter in parameters),
        "context": loaded.context,
        "vocabulary": loaded.vocabulary,
    }


def _inputs(references: tuple[str, ...]) -> str:
    """At most three inputs by name: a stack of many heads would fill the screen."""
    shown = ", ".join(references[:3])
    return shown if len(references) <= 3 else f"{shown}, … ({len(references)})"
