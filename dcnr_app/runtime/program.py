"""What a segment executes, worked out once from Network and Segment: steps, last uses, gradient edges. Pure.

Which edges carry a gradient, and in which order a tensor's gradients are folded, are facts of the Network
alone; the segment only says which of them come from outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from dcnr_app.errors import InvalidError, InvariantError
from dcnr_app.nodes.contract import TensorSpec, VNode
from dcnr_app.nodes.graph.analysis import (
    gradient_references,
    infer_shapes,
    network_edges,
    nodes_by_name,
)
from dcnr_app.nodes.graph.network import Network, NetworkNode, ref, split_ref
from dcnr_app.runtime.keys import Phase

if TYPE_CHECKING:
    from dcnr_app.cluster.plan import Segment


class NetworkFacts(NamedTuple):
    """What the programs of all segments share.

    `gradient_keys` has, by reference, the keys of the edges that bring its gradient, in canonical fold order;
    `receivers` are the VNodes with a backward; `text_nodes` those that the logits depend on.
    """

    nodes: Mapping[str, NetworkNode]
    specs: Mapping[str, TensorSpec]
    gradient_keys: Mapping[str, tuple[str, ...]]
    carrying: frozenset[str]
    receivers: frozenset[str]
    loss: str
    logits: str | None
    text_nodes: frozenset[str]


class NodeStep(NamedTuple):
    """One VNode's execution. `drops` are the references whose last use in this program it is.

    `output_keys` has, per output port, the edges whose gradients are folded into that output's; `input_keys`,
    per input slot, the edge that carries its gradient on, or None.
    """

    name: str
    vnode: VNode
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    hash63: int
    has_backward: bool
    drops: tuple[str, ...]
    output_keys: tuple[tuple[str, ...], ...]
    input_keys: tuple[str | None, ...]


class Program(NamedTuple):
    """The steps of one segment in one phase, the references that enter and leave, and its gradient edges.

    `zero_gradients` are edges that leave by the plan but carry nothing by the Network.
    """

    segment: int
    steps: tuple[NodeStep, ...]
    needs: tuple[str, ...]
    gives: tuple[str, ...]
    gradients_in: tuple[str, ...]
    gradients_out: frozenset[str]
    zero_gradients: Mapping[str, TensorSpec]
    keeps: bool


def name_hash(name: str) -> int:
    """A stable 63-bit number for a VNode name (blake2b); part of its randomness key."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def network_facts(network: Network, rows: int) -> NetworkFacts:
    """Facts for microbatches of `rows` rows. Raises InvalidError if shapes do not fit."""
    nodes = nodes_by_name(network)
    wanted = gradient_references(network)
    sources = {split_ref(reference)[0] for reference in wanted}
    receivers = frozenset(
        node.name
        for node in network.nodes
        if node.vnode.is_differentiable and (node.vnode.is_cost or node.name in sources)
    )
    keys: dict[str, list[str]] = {}
    for edge in network_edges(network):
        if edge.reference in wanted and edge.target in receivers:
            keys.setdefault(edge.reference, []).append(edge.key)
    logits = network.outputs.get("logits")
    return NetworkFacts(
        nodes=nodes,
        specs=infer_shapes(network, rows),
        gradient_keys={reference: tuple(found) for reference, found in keys.items()},
        carrying=frozenset(key for found in keys.values() for key in found),
        receivers=receivers,
        loss=network.outputs["loss"],
        logits=logits,
        text_nodes=_ancestors(nodes, logits) if logits else frozenset(),
    )


def _ancestors(nodes: Mapping[str, NetworkNode], reference: str) -> frozenset[str]:
    found: set[str] = set()
    waiting = [split_ref(reference)[0]]
    while waiting:
        name = waiting.pop()
        if name in found or name not in nodes:
            continue
        found.add(name)
        waiting.extend(split_ref(entry)[0] for entry in nodes[name].inputs)
    return frozenset(found)


def compile_segment(facts: NetworkFacts, segment: Segment, phase: Phase) -> Program:
    """The program of `segment` in `phase`.

    VNodes that feed neither what the segment gives nor the loss are left out; in generation those that the
    logits do not depend on. Raises InvalidError for generation without logits, and InvariantError where the
    segment's gradient edges contradict the Network.
    """
    if phase == "generate" and facts.logits is None:
        raise InvalidError("this network cannot generate text", why="it has no output named 'logits'")
    members = set(segment.nodes)
    candidates = [name for name in facts.nodes if name in members]
    gives = list(segment.gives)
    if phase == "generate":
        candidates = [name for name in candidates if name in facts.text_nodes]
        gives = [reference for reference in gives if split_ref(reference)[0] in facts.text_nodes]
        if facts.logits not in gives and split_ref(facts.logits or "")[0] in candidates:
            gives.append(facts.logits or "")
    executed = _executed(facts, candidates, {*gives, facts.loss})
    steps = _with_drops([_step(facts, name) for name in executed], frozenset(gives))
    produced = {reference for step in steps for reference in step.outputs}
    needs = dict.fromkeys(
        reference for step in steps for reference in step.inputs if reference not in produced
    )
    keeps = phase == "train" and segment.has_backward
    program = Program(
        segment=segment.index,
        steps=steps,
        needs=tuple(needs),
        gives=tuple(gives),
        gradients_in=_gradients_in(steps) if keeps else (),
        gradients_out=facts.carrying & frozenset(segment.gradients_out),
        zero_gradients={
            key: facts.specs[key.rpartition(">")[0]]
            for key in segment.gradients_out
            if key not in facts.carrying
        },
        keeps=keeps,
    )
    if phase == "train":
        _check_edges(facts, segment, program)
    return program


def _executed(facts: NetworkFacts, candidates: list[str], wanted: set[str]) -> list[str]:
    needed, executed = set(wanted), []
    for name in reversed(candidates):
        if any(reference in needed for reference in _outputs(facts, name)):
            executed.append(name)
            needed.update(facts.nodes[name].inputs)
    return executed[::-1]


def _outputs(facts: NetworkFacts, name: str) -> tuple[str, ...]:
    outputs: list[str] = []
    while (reference := ref(name, len(outputs))) in facts.specs:
        outputs.append(reference)
    return tuple(outputs)


def _step(facts: NetworkFacts, name: str) -> NodeStep:
    node = facts.nodes[name]
    outputs = _outputs(facts, name)
    keys = tuple(f"{reference}>{name}:{slot}" for slot, reference in enumerate(node.inputs))
    return NodeStep(
        name=name,
        vnode=node.vnode,
        inputs=node.inputs,
        outputs=outputs,
        specs=tuple(facts.specs[reference] for reference in outputs),
        hash63=name_hash(name),
        has_backward=name in facts.receivers,
        drops=(),
        output_keys=tuple(facts.gradient_keys.get(reference, ()) for reference in outputs),
        input_keys=tuple(key if key in facts.carrying else None for key in keys),
    )


def _with_drops(steps: list[NodeStep], kept: frozenset[str]) -> tuple[NodeStep, ...]:
    last_use: dict[str, int] = {}
    for index, step in enumerate(steps):
        for reference in (*step.inputs, *step.outputs):
            last_use[reference] = index
    drops: dict[int, list[str]] = {}
    for reference, index in last_use.items():
        if reference not in kept:
            drops.setdefault(index, []).append(reference)
    return tuple(step._replace(drops=tuple(drops.get(index, ()))) for index, step in enumerate(steps))


def _gradients_in(steps: tuple[NodeStep, ...]) -> tuple[str, ...]:
    own = {key for step in steps if step.has_backward for key in step.input_keys}
    needed = (key for step in steps if step.has_backward for keys in step.output_keys for key in keys)
    return tuple(key for key in needed if key not in own)


def _check_edges(facts: NetworkFacts, segment: Segment, program: Program) -> None:
    own = {reference for step in program.steps for reference in step.outputs}
    leaving = {
        key
        for step in program.steps
        for key, reference in zip(step.input_keys, step.inputs, strict=True)
        if step.has_backward and key is not None and reference not in own
    }
    missing_in = set(program.gradients_in) - set(segment.gradients_in)
    missing_out = leaving - set(segment.gradients_out)
    has_receiver = any(step.has_backward for step in program.steps)
    if missing_in or missing_out or (has_receiver and not segment.has_backward):
        raise InvariantError(
            f"segment {segment.index} of the plan does not fit the network",
            why=f"it lacks incoming gradients {sorted(missing_in)}, outgoing {sorted(missing_out)}, "
            f"has_backward={segment.has_backward}",
        )
    unknown = [reference for reference in program.gives if reference not in own]
    if unknown:
        raise InvariantError(f"segment {segment.index} gives what it does not make: {', '.join(unknown)}")
