"""A Plan with its prediction as plain data and as text. Pure."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from dcnr_app.cli.output import show_bytes, table
from dcnr_app.cluster.prediction import Bottleneck, Comparison, Prediction
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network

if TYPE_CHECKING:
    from dcnr_app.cli.planning import Preview


def plan_form(network: Network, preview: Preview) -> dict[str, Any]:
    """What `network plan --json` prints. FLOPs are a step's, forward and backward; bytes a microbatch's or a
    step's, as their names say."""
    plan, prediction = preview.plan, preview.prediction
    parameters = network_parameters(network).values()
    total_flops = sum(plan.predicted_flops.values()) or 1
    shares = {share.pnode: share for share in prediction.pnodes}
    pnodes = []
    for pnode in plan.pnodes:
        own = [parameter for parameter in parameters if plan.assignment[parameter.sites[0][0]] == pnode]
        share = shares[pnode]
        pnodes.append(
            {
                "pnode": pnode,
                "vnodes": [node.name for node in network.nodes if plan.assignment[node.name] == pnode],
                "segments": [list(segment.nodes) for segment in plan.segments if segment.pnode == pnode],
                "parameters": sum(prod(parameter.spec.shape) for parameter in own),
                "flops": plan.predicted_flops[pnode],
                "flops_share": plan.predicted_flops[pnode] / total_flops,
                "compute_ms": share.compute_ms,
                "memory_bytes": share.memory_bytes,
                "free_memory_bytes": share.free_memory_bytes,
            }
        )
    hops = []
    for key, n_bytes in plan.hop_bytes.items():
        source, _, target = key.partition(">")
        hops.append({"from": source, "to": target, "bytes_per_microbatch": n_bytes})
    return {
        "network": network.name,
        "microbatches": plan.n_microbatches,
        "in_flight": plan.in_flight,
        "orchestrator_vnodes": [node.name for node in network.nodes if node.vnode.is_host],
        "pnodes": pnodes,
        "hops": hops,
        "predicted": _predicted(prediction, is_measured=preview.is_measured),
        "warnings": list(preview.warnings),
    }


def _predicted(prediction: Prediction, *, is_measured: bool) -> dict[str, Any]:
    return {
        "step_ms": prediction.step_ms,
        "tasks_ms": prediction.tasks_ms,
        "sync_ms": prediction.sync_ms,
        "update_ms": prediction.update_ms,
        "overhead_ms": prediction.overhead_ms,
        "speeds_measured": is_measured,
        "bottleneck": {
            "kind": prediction.bottleneck.kind,
            "where": prediction.bottleneck.where,
            "text": bottleneck_text(prediction.bottleneck),
        },
        "links": [
            {
                "from": link.source,
                "to": link.target,
                "bytes_per_step": link.bytes_per_step,
                "sending_ms": link.sending_ms,
            }
            for link in prediction.links
        ],
    }


def bottleneck_text(bottleneck: Bottleneck) -> str:
    """What a step waits for most, in words."""
    match bottleneck.kind:
        case "compute":
            return f"compute on {bottleneck.where}, busy for {bottleneck.busy_ms:.1f} ms"
        case "link":
            source, _, target = bottleneck.where.partition(">")
            return f"the link from {source} to {target}, busy for {bottleneck.busy_ms:.1f} ms"
        case "memory":
            return f"memory of {bottleneck.where}: a faster plan does not fit"
        case "waiting":
            return "waiting: hops and a pipeline that fills and drains; more microbatches may help"


def comparison_text(comparison: Comparison) -> str:
    """A run's prediction beside what it took."""
    return (
        f"a step took {comparison.measured_step_ms:.1f} ms; {comparison.predicted_step_ms:.1f} ms were "
        f"predicted ({comparison.ratio:.2f} times as long)"
    )


def plan_text(form: dict[str, Any]) -> str:
    """The plan as a table of PNodes and one of links, with the predicted step."""
    rows = [
        (
            entry["pnode"],
            len(entry["segments"]),
            len(entry["vnodes"]),
            _range(entry["vnodes"]),
            f"{entry['parameters']:,}",
            f"{100 * entry['flops_share']:.1f} %",
            f"{entry['compute_ms']:.1f} ms",
            show_bytes(entry["memory_bytes"]),
        )
        for entry in form["pnodes"]
    ]
    columns = (
        "PNode", ">segments", ">VNodes", "from … to", ">parameters", ">FLOPs", ">compute", ">memory",
    )  # fmt: skip
    text = (
        f"plan for {form['network']}: {form['microbatches']} microbatches, {form['in_flight']} in flight\n\n"
        + table(columns, rows)
    )
    predicted = form["predicted"]
    per_microbatch = {(hop["from"], hop["to"]): hop["bytes_per_microbatch"] for hop in form["hops"]}
    links = [
        (
            link["from"],
            link["to"],
            show_bytes(per_microbatch.get((link["from"], link["to"]), 0)),
            show_bytes(link["bytes_per_step"]),
            f"{link['sending_ms']:.1f} ms",
        )
        for link in predicted["links"]
    ]
    if links:
        text += "\n\n" + table(("from", "to", ">per microbatch", ">per step", ">sending"), links)
    return (
        f"{text}\n\npredicted step: {predicted['step_ms']:.1f} ms; "
        f"bottleneck: {predicted['bottleneck']['text']}"
    )


def _range(vnodes: list[str]) -> str:
    return vnodes[0] if len(vnodes) == 1 else f"{vnodes[0]} … {vnodes[-1]}"
