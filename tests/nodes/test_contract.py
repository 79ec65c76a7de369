"""The VNode contract, for every registered type: see tests/contracts/vnode.py for what an example is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.nodes.contract import VNode, tag_of
from dcnr_app.nodes.registry import load_registry, vnode_form
from tests.contracts import vnode as contract
from tests.contracts.vnode import EXAMPLES, case_of, check_gradient, gradient_targets, run_both, run_forward

NAMES = sorted(EXAMPLES)
GRADIENTS = [(name, target) for name in NAMES for target in gradient_targets(name)]
ROW_WISE = [name for name in NAMES if EXAMPLES[name].vnode.is_row_wise]
DIFFERENTIABLE = [name for name in NAMES if EXAMPLES[name].vnode.is_differentiable]


def test_every_registered_type_has_an_example() -> None:
    examples = {tag_of(type(example.vnode)) for example in EXAMPLES.values()}
    assert examples == set(load_registry().tags())


@pytest.mark.parametrize(("name", "target"), GRADIENTS)
def test_gradient_equals_central_differences(backend: ReferenceBackend, name: str, target: str) -> None:
    check_gradient(backend, name, target)


@pytest.mark.parametrize(("name", "target"), GRADIENTS)
def test_gradient_check_finds_a_tenth_of_a_percent(backend: ReferenceBackend, name: str, target: str) -> None:
    wrong = contract.scaled_backward(EXAMPLES[name].vnode, target, 1.001)
    with pytest.raises(AssertionError, match="differences say"):
        check_gradient(backend, name, target, wrong)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_shapes_tell_real_outputs(backend: ReferenceBackend, name: str, dtype: str) -> None:
    case = case_of(name, dtype)
    told = case.vnode.shapes(tuple(contract.spec_of(array) for array in case.ins))
    outs = run_forward(backend, case).outs
    assert [(tuple(out.shape), backend.dtype_of(out)) for out in outs] == [
        (spec.shape, dtype if name == "embedder" else spec.dtype) for spec in told
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_have_the_specs_of_what_they_belong_to(
    backend: ReferenceBackend, name: str, dtype: str
) -> None:
    case = case_of(name, dtype)
    _, (in_grads, param_grads) = run_both(backend, case)
    for gradient, x in zip(in_grads, case.ins, strict=True):
        if gradient is not None:
            assert contract.spec_of(backend.to_host(gradient)) == contract.spec_of(x)
    assert set(param_grads) == set(case.params)
    for own_name, gradient in param_grads.items():
        assert tuple(gradient.shape) == case.params[own_name].shape


@pytest.mark.parametrize("name", NAMES)
def test_parameter_laws_are_sound(name: str) -> None:
    for spec in EXAMPLES[name].vnode.params().values():
        assert all(length > 0 for length in spec.shape)
        assert (spec.std > 0) == (spec.init == "normal")
        assert spec.decays == (len(spec.shape) > 1)


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_a_whole_number(name: str) -> None:
    case = case_of(name)
    flops = case.vnode.flops(tuple(contract.spec_of(array) for array in case.ins))
    assert isinstance(flops, int)
    assert flops >= 0


@pytest.mark.parametrize("name", NAMES)
def test_registry_form_survives_the_wire(name: str) -> None:
    vnode = EXAMPLES[name].vnode
    registry = load_registry()
    form = vnode_form(vnode)
    assert registry.decode(msgspec.json.decode(msgspec.json.encode(form))) == vnode
    assert registry.decode(msgspec.msgpack.decode(msgspec.msgpack.encode(form))) == vnode
    assert set(form) == {"type", *(field.name for field in msgspec.structs.fields(vnode))}


@pytest.mark.parametrize("name", NAMES)
def test_unknown_field_is_refused(name: str) -> None:
    form = {**vnode_form(EXAMPLES[name].vnode), "no_such_field": 1}
    with pytest.raises(msgspec.ValidationError, match="no_such_field"):
        load_registry().decode(form)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_number_of_inputs_is_refused_by_name(name: str) -> None:
    vnode = EXAMPLES[name].vnode
    with pytest.raises(ValueError, match=rf"{type(vnode).__struct_config__.tag}.* expects .* input.*, got 0"):
        vnode.shapes(())


@pytest.mark.parametrize("tag", load_registry().tags())
def test_type_overrides_what_the_base_leaves_open(tag: str) -> None:
    vnode_type = load_registry().types()[tag]
    assert vnode_type.shapes is not VNode.shapes
    assert vnode_type.forward is not VNode.forward
    assert vnode_type.backward is not VNode.backward
    assert vnode_type.__doc__
    assert vnode_type.__struct_config__.frozen


@pytest.mark.parametrize("name", NAMES)
def test_nothing_writes_into_its_arguments(backend: ReferenceBackend, name: str) -> None:
    case = case_of(name)
    params = contract.to_device(backend, case.params)
    ins = tuple(backend.from_host(array) for array in case.ins)
    grads = tuple(backend.from_host(array) for array in case.grads)
    before = _bytes(backend, (*params.values(), *ins, *grads))
    forward = case.vnode.forward(contract.context(backend), params, ins)
    saved_before = _bytes(backend, forward.saved.values())
    outs_before = _bytes(backend, forward.outs)
    case.vnode.backward(contract.context(backend), params, forward.saved, grads)
    assert _bytes(backend, (*params.values(), *ins, *grads)) == before
    assert _bytes(backend, forward.saved.values()) == saved_before
    assert _bytes(backend, forward.outs) == outs_before


@pytest.mark.parametrize("name", NAMES)
def test_float32_agrees_with_float64(backend: ReferenceBackend, name: str) -> None:
    single, double = (run_both(backend, case_of(name, dtype)) for dtype in ("float32", "float64"))
    for actual, expected in zip(_arrays(single), _arrays(double), strict=True):
        wanted = backend.to_host(expected)
        largest = float(np.max(np.abs(wanted), initial=0.0))
        np.testing.assert_allclose(backend.to_host(actual), wanted, rtol=0, atol=2e-5 * max(largest, 1e-3))


@pytest.mark.parametrize("name", NAMES)
def test_integer_inputs_alone_have_no_gradient(backend: ReferenceBackend, name: str) -> None:
    _, backward = run_both(backend, case_of(name))
    is_integer = [isinstance(entry, contract.Integers) for entry in EXAMPLES[name].ins]
    assert [gradient is None for gradient in backward.in_grads] == is_integer


@pytest.mark.parametrize("name", ROW_WISE)
def test_rows_of_a_row_wise_type_do_not_know_each_other(backend: ReferenceBackend, name: str) -> None:
    case = case_of(name)
    outs = [backend.to_host(out) for out in run_forward(backend, case).outs]
    n_axes = outs[0].ndim - 1
    turned = case._replace(ins=tuple(np.flip(x, range(n_axes)).copy() for x in case.ins))
    for out, expected in zip(run_forward(backend, turned).outs, outs, strict=True):
        np.testing.assert_allclose(backend.to_host(out), np.flip(expected, range(n_axes)), rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_repeat_gives_the_same_bits(backend: ReferenceBackend, name: str) -> None:
    first, second = (run_both(backend, case_of(name, "float32")) for _ in range(2))
    assert _bytes(backend, _arrays(first)) == _bytes(backend, _arrays(second))


@pytest.mark.parametrize("name", NAMES)
def test_saved_holds_arrays_only(backend: ReferenceBackend, name: str) -> None:
    for own_name, array in run_forward(backend, case_of(name)).saved.items():
        assert isinstance(own_name, str)
        assert hasattr(array, "shape"), own_name
        assert backend.dtype_of(array)


def test_backward_needs_only_parameters_saved_and_gradients(
    backend: ReferenceBackend, tmp_path: Path
) -> None:
    stored: dict[str, Any] = {}
    expected: dict[str, bytes] = {}
    for name in DIFFERENTIABLE:
        case = case_of(name, "float32")
        forward, backward = run_both(backend, case)
        stored[f"{name}/form/"] = np.frombuffer(msgspec.json.encode(vnode_form(case.vnode)), np.uint8)
        stored |= {f"{name}/params/{own}": array for own, array in case.params.items()}
        stored |= {f"{name}/saved/{own}": backend.to_host(x) for own, x in forward.saved.items()}
        stored |= {f"{name}/grads/{port}": array for port, array in enumerate(case.grads)}
        for port, gradient in enumerate(backward.in_grads):
            if gradient is not None:
                expected[f"{name}/input/{port}"] = backend.to_host(gradient).tobytes()
        for own, gradient in backward.param_grads.items():
            expected[f"{name}/param/{own}"] = backend.to_host(gradient).tobytes()
    np.savez(tmp_path / "source.npz", **stored)
    script = Path(contract.__file__).with_name("backward_alone.py")
    paths = [str(tmp_path / "source.npz"), str(tmp_path / "result.npz")]
    subprocess.run([sys.executable, str(script), *paths], check=True, timeout=50)
    with np.load(tmp_path / "result.npz", allow_pickle=False) as archive:
        actual = {name: archive[name].tobytes() for name in archive.files}
    assert actual == expected


def _arrays(both: Any) -> list[Any]:
    forward, backward = both
    in_grads = [gradient for gradient in backward.in_grads if gradient is not None]
    return [*forward.outs, *in_grads, *(backward.param_grads[own] for own in sorted(backward.param_grads))]


def _bytes(backend: ReferenceBackend, arrays: Any) -> list[bytes]:
    return [backend.to_host(array).tobytes() for array in arrays]
