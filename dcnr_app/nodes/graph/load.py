"""YAML text -> Network, training settings, variables: the one entrance for network files.

Pure but for `read_network_file`. Order: YAML, variables, inputs, nodes, outputs, training, whole graph.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping as AnyMapping
from pathlib import Path
from typing import get_args

import msgspec

from dcnr_app.engine.backend import DType
from dcnr_app.errors import InvalidError, UserError
from dcnr_app.ids import check_id
from dcnr_app.nodes.graph.analysis import infer_shapes
from dcnr_app.nodes.graph.expand import Expanded, expand_nodes
from dcnr_app.nodes.graph.expressions import Number
from dcnr_app.nodes.graph.network import MAX_ENDS, Dimension, Network, NetworkInput
from dcnr_app.nodes.graph.reading import (
    Variables,
    check_keys,
    read,
    read_list,
    read_mapping,
    read_name,
    read_text,
    required,
    resolve_scalar,
)
from dcnr_app.nodes.graph.spelling import did_you_mean
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.graph.training_form import read_training
from dcnr_app.nodes.graph.validate import check_network, sort_nodes
from dcnr_app.nodes.graph.values import Mapping, Mark, Scalar, Value, describe, refuse, shorten
from dcnr_app.nodes.graph.yaml_source import MAX_FILE_BYTES, parse_yaml
from dcnr_app.nodes.registry import Registry

MAX_VARIABLES = 200
MAX_AXIS = 2**31

_SECTIONS = ("network", "variables", "inputs", "nodes", "outputs", "training")
_NO_OVERRIDES: AnyMapping[str, Number] = {}


class LoadedNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """All that a network file says. `context` is tokens per sequence; `vocabulary` is the width of the
    logits (0 if the network has no `logits` output)."""

    network: Network
    training: TrainingSettings
    context: int
    vocabulary: int
    variables: AnyMapping[str, Number]


def read_network_file(path: Path) -> str:
    """Text of a network file. Raises UserError if it cannot be read, InvalidError if it is no small UTF-8."""
    try:
        if not path.is_file():
            raise UserError(f"there is no network file {str(path)!r}", fix="check the path")
        with path.open("rb") as opened:
            raw = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidError(
            f"the file is over {MAX_FILE_BYTES // 1024} KiB",
            where=f"{path}:1:1",
            fix="use `repeat:` for nodes that come many times",
        )
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - (raw[: error.start].rfind(b"\n") + 1) + 1
        raise InvalidError(
            f"the file is not UTF-8: byte 0x{raw[error.start]:02X}",
            where=f"{path}:{line}:{column}",
            fix="save it as plain UTF-8 text",
        ) from error


def load_network(
    text: str, *, file: str, registry: Registry, overrides: AnyMapping[str, Number] = _NO_OVERRIDES
) -> LoadedNetwork:
    """What the file says, checked. `overrides` replace the values of variables that the file declares.

    Raises InvalidError with where = file:line:column, what is wrong, why, and what to do.
    """
    root = parse_yaml(text, file)
    check_keys(root, _SECTIONS, "a network file")
    name = _network_name(root)
    variables = _read_variables(root, file, overrides)
    inputs, marks = _read_inputs(required(root, "inputs", "the file").value, variables)
    nodes = required(root, "nodes", "the file").value
    required(root, "outputs", "the file")
    expanded = expand_nodes(nodes, variables, dict(marks), registry)
    ordered = sort_nodes(expanded.nodes, expanded.places)
    outputs = _read_outputs(root.entries["outputs"].value, expanded, marks)
    network = Network(name=name, inputs=inputs, nodes=ordered, outputs=outputs)
    training = TrainingSettings()
    if "training" in root.entries:
        section = read_mapping(root.entries["training"].value, "training")
        training = read_training(section, variables)
    check_network(network, expanded.places, training.rows, marks)
    context, vocabulary = _sizes(network, training.rows)
    return LoadedNetwork(
        network=network, training=training, context=context, vocabulary=vocabulary, variables=variables
    )


def _network_name(root: Mapping) -> str:
    value = read_text(required(root, "network", "the file").value, {}, "network")
    try:
        return check_id(str(value.value), "network")
    except UserError as error:
        refuse(value.mark, f"{shorten(str(value.value))!r} is not a valid network name", why=error.why)


def _read_variables(root: Mapping, file: str, overrides: AnyMapping[str, Number]) -> dict[str, Number]:
    """Values by name; a variable may use those above it. Overrides win."""
    variables: dict[str, Number] = {}
    declared = root.entries.get("variables")
    section = read_mapping(declared.value, "variables").entries if declared else {}
    for name in overrides:
        if name not in section:
            raise InvalidError(
                f"the file has no variable {name!r}", where=file, fix=did_you_mean(name, section)
            )
    if len(section) > MAX_VARIABLES and declared:
        refuse(declared.value.mark, f"there are over {MAX_VARIABLES} variables")
    for name, entry in section.items():
        _check_variable_name(name, entry.key_mark)
        value = overrides[name] if name in overrides else _variable(entry.value, variables, name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or value != value
            or abs(value) > 1e18
        ):
            raise InvalidError(f"the variable {name!r} cannot be {value!r}", where=file, fix="give a number")
        variables[name] = value
    return variables


def _check_variable_name(name: str, mark: Mark) -> None:
    read_name(Scalar(mark, name), {}, "variable name")
    if not name.isidentifier() or keyword.iskeyword(name) or name in ("min", "max", "sqrt", "batch"):
        refuse(mark, f"a variable cannot be called {name!r}", fix="choose another name, without `-`")


def _variable(value: Value, variables: Variables, name: str) -> Number:
    found = resolve_scalar(value, variables) if isinstance(value, Scalar) else value
    number = found.value if isinstance(found, Scalar) else None
    if isinstance(number, bool) or not isinstance(number, int | float):
        refuse(value.mark, f"the variable {name!r} must be a number, got {describe(found)}")
    return number


def _read_inputs(value: Value, variables: Variables) -> tuple[tuple[NetworkInput, ...], dict[str, Mark]]:
    section = read_mapping(value, "inputs")
    if not section.entries:
        refuse(section.mark, "the network has no inputs")
    _check_count(section, "inputs")
    inputs: list[NetworkInput] = []
    marks: dict[str, Mark] = {}
    for name, entry in section.entries.items():
        read_name(Scalar(entry.key_mark, name), variables, "input name")
        what = f"the input {name!r}"
        form = read_mapping(entry.value, what)
        check_keys(form, ("shape", "dtype"), what)
        shape = read_list(required(form, "shape", what).value, f"the shape of {what}")
        lengths = tuple(_dimension(item, variables, index) for index, item in enumerate(shape.items))
        if not lengths:
            refuse(shape.mark, f"the shape of {what} is empty", fix="start it with `batch`")
        dtype_value = read_text(required(form, "dtype", what).value, variables, f"dtype of {what}")
        dtype = str(dtype_value.value)
        if dtype not in get_args(DType):
            refuse(dtype_value.mark, f"unknown dtype {dtype!r}", fix=did_you_mean(dtype, get_args(DType)))
        inputs.append(NetworkInput(name, lengths, msgspec.convert(dtype, DType)))
        marks[name] = entry.key_mark
    return tuple(inputs), marks


def _dimension(value: Value, variables: Variables, index: int) -> Dimension:
    found = resolve_scalar(value, variables) if isinstance(value, Scalar) else value
    length = found.value if isinstance(found, Scalar) else None
    if index == 0:
        if length != "batch":
            refuse(value.mark, f"the first axis of an input is `batch`, got {describe(found)}")
        return "batch"
    if length == "batch":
        refuse(value.mark, "only the first axis can be `batch`")
    size: int = read(value, int, variables, "an axis")
    if not 1 <= size < MAX_AXIS:
        refuse(value.mark, f"an axis has a length of at least 1, got {size}")
    return size


def _read_outputs(value: Value, expanded: Expanded, marks: dict[str, Mark]) -> dict[str, str]:
    """References by output name; adds their places to `marks`."""
    section = read_mapping(value, "outputs")
    if "loss" not in section.entries:
        refuse(section.mark, "outputs has no `loss`", fix="add `loss: <the cost node>`")
    _check_count(section, "outputs")
    outputs: dict[str, str] = {}
    for name, entry in section.entries.items():
        outputs[name] = expanded.references.resolve_one(entry.value, expanded.scope, f"outputs.{name}")
        marks[name] = entry.value.mark
    return outputs


def _check_count(section: Mapping, what: str) -> None:
    if len(section.entries) > MAX_ENDS:
        refuse(section.mark, f"the network has {len(section.entries)} {what}, at most {MAX_ENDS} are allowed")


def _sizes(network: Network, rows: int) -> tuple[int, int]:
    """(context, vocabulary)."""
    named = {entry.name: entry for entry in network.inputs}
    tokens = named.get("tokens", network.inputs[0])
    context = tokens.shape[1] if len(tokens.shape) > 1 else 1
    specs = infer_shapes(network, rows)
    logits = network.outputs.get("logits")
    vocabulary = specs[logits].shape[-1] if logits is not None and specs[logits].shape else 0
    return int(context), vocabulary
