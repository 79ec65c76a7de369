"""Which tensors a message may carry under a Plan: checked before any memory is allocated. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from dcnr_app.cluster.messages import (
    AnyMessage,
    Configure,
    EvalRequest,
    GenerateRequest,
    GenerateResponse,
    Hop,
    LoadState,
    ParameterCopy,
    SiteGradient,
    StatePart,
    TensorHeader,
    TrainRequest,
)
from dcnr_app.nodes.contract import TensorSpec
from dcnr_app.nodes.graph.analysis import infer_shapes, network_parameters
from dcnr_app.nodes.graph.network import Network
from dcnr_app.nodes.graph.training import TrainingSettings


class Expectations(msgspec.Struct, frozen=True):
    """Specs of activations by reference and of parameters by name, for one session."""

    tensors: Mapping[str, TensorSpec]
    parameters: Mapping[str, TensorSpec]
    slots: tuple[str, ...]
    logits: str


def expectations_of(network: Network, settings: TrainingSettings, slots: tuple[str, ...]) -> Expectations:
    """What a session's messages may carry; `slots` are the optimizer's."""
    return Expectations(
        tensors=infer_shapes(network, settings.rows),
        parameters={
            name: TensorSpec(parameter.spec.shape, "float32")
            for name, parameter in network_parameters(network).items()
        },
        slots=("weight", *slots),
        logits=network.outputs.get("logits", ""),
    )


def why_unexpected(
    expected: Expectations | None, message: AnyMessage, headers: Sequence[TensorHeader]
) -> str:
    """Why a message's tensors are not what the session has, or an empty text. `expected` is None outside
    one."""
    if not headers:
        return ""
    if expected is None or isinstance(message, Configure):
        return "no tensors are expected here"
    for header in headers:
        spec = _spec_of(expected, message, header.name)
        if spec is None:
            return f"tensor {header.name!r} is not expected in {type(message).__struct_config__.tag}"
        if header.shape != spec.shape or header.dtype != spec.dtype:
            return (
                f"tensor {header.name!r} should be {spec.dtype} {list(spec.shape)}, "
                f"not {header.dtype} {list(header.shape)}"
            )
    return ""


def _spec_of(expected: Expectations, message: AnyMessage, name: str) -> TensorSpec | None:
    match message:
        case TrainRequest() | EvalRequest() | GenerateRequest():
            return expected.tensors.get(name)
        case Hop():
            # a gradient has the shape of the tensor that its edge carries
            reference = name.partition(">")[0] if message.direction == "B" else name
            return expected.tensors.get(reference) if name == message.slot else None
        case SiteGradient():
            return expected.parameters.get(message.parameter) if name == "gradient" else None
        case ParameterCopy():
            return expected.parameters.get(message.parameter) if name == "weight" else None
        case LoadState() | StatePart():
            return expected.parameters.get(message.parameter) if name in expected.slots else None
        case GenerateResponse():
            logits = expected.tensors.get(expected.logits)
            return TensorSpec((1, 1, logits.shape[-1]), logits.dtype) if logits and name == "logits" else None
        case _:
            return None
