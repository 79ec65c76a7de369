"""A Plan as plain data and as text. Pure."""

from __future__ import annotations

from math import prod
from typing import Any

from dcnr_app.cli.output import show_bytes, table
from dcnr_app.cluster.plan import Plan
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network


def plan_form(network: Network, plan: Plan) -> dict[str, Any]:
    """What `network plan --json` prints. FLOPs are a step's, forward and backward; bytes a microbatch's, both
    ways."""
    parameters = network_parameters(network).values()
    total_flops = sum(plan.predicted_flops.values()) or 1
    pnodes = []
    for pnode in plan.pnodes:
        own = [parameter for parameter in parameters if plan.assignment[parameter.sites[0][0]] == pnode]
        pnodes.append(
            {
                "pnode": pnode,
                "vnodes": [node.name for node in network.nodes if plan.assignment[node.name] == pnode],
                "segments": [list(segment.nodes) for segment in plan.segments if segment.pnode == pnode],
                "parameters": sum(prod(parameter.spec.shape) for parameter in own),
                "flops": plan.predicted_flops[pnode],
                "flops_share": plan.predicted_flops[pnode] / total_flops,
            }
        )
    hops = []
    for key, n_bytes in plan.hop_bytes.items():
        source, _, target = key.partition(">")
        hops.append({"from": source, "to": target, "bytes_per_microbatch": n_bytes})
    host = [node.name for node in network.nodes if node.vnode.is_host]
    return {
        "network": network.name,
        "microbatches": plan.n_microbatches,
        "in_flight": plan.in_flight,
        "orchestrator_vnodes": host,
        "pnodes": pnodes,
        "hops": hops,
    }


def plan_text(form: dict[str, Any]) -> str:
    """The plan as a table of PNodes and one of hops."""
    rows = [
        (
            entry["pnode"],
            len(entry["segments"]),
            len(entry["vnodes"]),
            _range(entry["vnodes"]),
            f"{entry['parameters']:,}",
            f"{100 * entry['flops_share']:.1f} %",
        )
        for entry in form["pnodes"]
    ]
    columns = ("PNode", ">segments", ">VNodes", "from … to", ">parameters", ">FLOPs")
    text = (
        f"plan for {form['network']}: {form['microbatches']} microbatches, {form['in_flight']} in flight\n\n"
        + table(columns, rows)
    )
    if not form["hops"]:
        return text
    hops = [(hop["from"], hop["to"], show_bytes(hop["bytes_per_microbatch"])) for hop in form["hops"]]
    return f"{text}\n\n{table(('from', 'to', '>per microbatch'), hops)}"


def _range(vnodes: list[str]) -> str:
    return vnodes[0] if len(vnodes) == 1 else f"{vnodes[0]} … {vnodes[-1]}"
