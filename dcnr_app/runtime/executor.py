"""Runs the steps of a Program on a backend. Keeps no state between calls; knows no plan and no optimizer.

Whatever crosses a VNode boundary is made contiguous, so that no kernel can see where a boundary lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dcnr_app.engine.backend import Array, Backend
from dcnr_app.errors import InvariantError, PeerError
from dcnr_app.nodes.contract import Context
from dcnr_app.runtime.keys import RunKey
from dcnr_app.runtime.liveness import BufferLedger
from dcnr_app.runtime.program import NodeStep, Program

Saved = dict[str, Mapping[str, Array]]
ParameterSource = Callable[[str], Mapping[str, Array]]
GradientSink = Callable[[tuple[str, str], RunKey, Array], None]


class Pass(NamedTuple):
    """What a forward leaves: outputs by reference, saved arrays by VNode, and the loss sum at the cost."""

    outputs: dict[str, Array]
    saved: Saved
    loss_sum: float | None


class Executor:
    """Forward and backward of programs. `sink` takes over parameter gradients, each held once."""

    def __init__(
        self,
        backend: Backend,
        ledger: BufferLedger,
        seed: int,
        parameters: ParameterSource,
        sink: GradientSink,
    ) -> None:
        self._backend = backend
        self._ledger = ledger
        self._seed = seed
        self._parameters = parameters
        self._sink = sink

    def forward(self, program: Program, key: RunKey, inputs: Mapping[str, Array]) -> Pass:
        """Run all steps; arrays go as soon as their last use is over.

        Raises InvariantError for missing inputs, PeerError that names the VNode for anything inside one.
        """
        _check_present("inputs", program, key, program.needs, inputs)
        values: dict[str, Array] = {}
        saved: Saved = {}
        loss_sum: float | None = None
        name = ""
        is_done = False
        try:
            for reference in program.needs:
                values[reference] = self._enter(inputs[reference])
            for step in program.steps:
                name = step.name
                self._forward_step(program, step, key, values, saved)
                if step.vnode.is_cost:
                    loss_sum = float(self._backend.to_host(values[step.outputs[0]]).item())
                for reference in step.drops:
                    self._ledger.drop(values.pop(reference))
            outputs = {reference: self._ledger.disown(values.pop(reference)) for reference in program.gives}
            is_done = True
        except Exception as error:
            raise _located(error, "forward", name, program, key) from error
        finally:
            for array in values.values():
                self._ledger.drop(array)
            if not is_done:
                self.forget(saved)
        return Pass(outputs, saved, loss_sum)

    def backward(
        self, program: Program, key: RunKey, saved: Saved, gradients: Mapping[str, Array], loss_seed: float
    ) -> dict[str, Array]:
        """Gradients of the edges that leave, from those that enter; uses up `saved`.

        Raises InvariantError for missing gradients, PeerError that names the VNode for anything inside one.
        """
        _check_present("gradients", program, key, program.gradients_in, gradients)
        pending: dict[str, Array] = {}
        name = ""
        try:
            for edge in program.gradients_in:
                pending[edge] = self._enter(gradients[edge])
            for step in reversed(program.steps):
                if step.has_backward:
                    name = step.name
                    self._backward_step(step, key, saved, pending, loss_seed)
            leaving = {edge: self._ledger.disown(pending.pop(edge)) for edge in program.gradients_out}
            for edge, spec in program.zero_gradients.items():
                leaving[edge] = self._backend.zeros(spec.shape, spec.dtype)
        except Exception as error:
            raise _located(error, "backward", name, program, key) from error
        finally:
            for array in pending.values():
                self._ledger.drop(array)
            self.forget(saved)
        return leaving

    def forget(self, saved: Saved) -> None:
        """Let saved arrays go."""
        while saved:
            _, arrays = saved.popitem()
            for array in arrays.values():
                self._ledger.drop(array)

    def _enter(self, array: Array) -> Array:
        return self._ledger.hold(self._backend.contiguous(array), is_foreign=True)

    def _accept(self, arrays: Iterable[Array]) -> list[Array]:
        # All are held before the first is replaced: they may be views of one buffer.
        held = [self._ledger.hold(array) for array in arrays]
        for index, array in enumerate(held):
            contiguous = self._backend.contiguous(array)
            if contiguous is not array:
                held[index] = self._ledger.hold(contiguous)
                self._ledger.drop(array)
        return held

    def _context(self, step: NodeStep, key: RunKey) -> Context:
        return Context(
            backend=self._backend,
            is_training=key.phase == "train",
            key=(self._seed, key.step, key.microbatch, step.hash63),
        )

    def _forward_step(
        self, program: Program, step: NodeStep, key: RunKey, values: dict[str, Array], saved: Saved
    ) -> None:
        ins = tuple([values[reference] for reference in step.inputs])
        outs, kept = step.vnode.forward(self._context(step, key), self._parameters(step.name), ins)
        if len(outs) != len(step.outputs):
            raise InvariantError(f"forward gave {len(outs)} outputs, its shapes say {len(step.outputs)}")
        if program.keeps and step.has_backward:
            saved[step.name] = kept
            for array in kept.values():
                self._ledger.hold(array)
        values.update(zip(step.outputs, self._accept(outs), strict=True))

    def _backward_step(
        self, step: NodeStep, key: RunKey, saved: Saved, pending: dict[str, Array], loss_seed: float
    ) -> None:
        grads = tuple(
            [self._output_gradient(step, port, pending, loss_seed) for port in range(len(step.outputs))]
        )
        parameters = self._parameters(step.name)
        in_grads, param_grads = step.vnode.backward(
            self._context(step, key), parameters, saved[step.name], grads
        )
        if len(in_grads) != len(step.inputs) or param_grads.keys() != parameters.keys():
            raise InvariantError(
                f"backward gave {len(in_grads)} input gradients and {sorted(param_grads)}, "
                f"expected {len(step.inputs)} and {sorted(parameters)}"
            )
        flowing = {
            edge: gradient
            for edge, gradient in zip(step.input_keys, in_grads, strict=True)
            if edge is not None
        }
        missing = [edge for edge, gradient in flowing.items() if gradient is None]
        if missing:
            raise InvariantError(f"backward gave no gradient for {missing}, through which one flows")
        held = self._accept((*flowing.values(), *param_grads.values()))
        pending.update(zip(flowing, held, strict=False))
        for array in (*grads, *saved.pop(step.name).values()):
            self._ledger.drop(array)
        for own_name, gradient in zip(param_grads, held[len(flowing) :], strict=True):
            self._sink((step.name, own_name), key, gradient)

    def _output_gradient(
        self, step: NodeStep, port: int, pending: dict[str, Array], loss_seed: float
    ) -> Array:
        spec = step.specs[port]
        if step.vnode.is_cost:
            return self._ledger.hold(self._backend.full(spec.shape, loss_seed, spec.dtype))
        keys = step.output_keys[port]
        if not keys:
            return self._ledger.hold(self._backend.zeros(spec.shape, spec.dtype))
        total = pending.pop(keys[0])
        for index, edge in enumerate(keys[1:]):
            part = pending.pop(edge)
            if index == 0:
                # A new array: the first gradient may be an alias of one that goes elsewhere too.
                summed = self._ledger.hold(total + part)
                self._ledger.drop(total)
            else:
                summed = self._ledger.hold(self._backend.accumulate(self._ledger.surrender(total), part))
            self._ledger.drop(part)
            total = summed
        return total


def _check_present(
    kind: str, program: Program, key: RunKey, wanted: tuple[str, ...], given: Mapping[str, Array]
) -> None:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise InvariantError(f"{kind} {', '.join(missing)} are missing", where=_where(program, key))


def _where(program: Program, key: RunKey) -> str:
    return f"segment {program.segment}, {key.phase} step {key.step}, microbatch {key.microbatch}"


def _located(error: Exception, direction: str, name: str, program: Program, key: RunKey) -> Exception:
    kind = InvariantError if isinstance(error, InvariantError) else PeerError
    return kind(
        f"VNode {name!r} failed in {direction}",
        where=_where(program, key),
        why=f"{type(error).__name__}: {error}",
    )
