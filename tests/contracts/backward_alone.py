"""Runs backward of many VNodes from bytes alone. A script for a fresh interpreter, which saw no forward.

argv: an .npz with `<case>/form/` (JSON bytes of the VNode) and arrays `<case>/<params|saved|grads>/<name>`;
the .npz to write, with `<case>/input/<port>` and `<case>/param/<name>`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from dcnr_app.engine.reference import ReferenceBackend
from dcnr_app.nodes.contract import Context
from dcnr_app.nodes.registry import load_registry


def main(source: str, target: str) -> None:
    """Read, run, write."""
    registry = load_registry()
    backend = ReferenceBackend(threads=1)
    with np.load(source, allow_pickle=False) as archive:
        stored = {name: archive[name] for name in archive.files}
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for name, array in stored.items():
        case, _, rest = name.partition("/")
        group, _, own_name = rest.partition("/")
        parts = cases.setdefault(case, {"params": {}, "saved": {}, "grads": {}, "form": {}})
        parts[group][own_name] = array if group == "form" else backend.from_host(array)
    results: dict[str, Any] = {}
    for case, parts in cases.items():
        vnode = registry.decode(json.loads(parts["form"][""].tobytes()))
        grads = tuple(parts["grads"][str(port)] for port in range(len(parts["grads"])))
        backward = vnode.backward(Context(backend=backend), parts["params"], parts["saved"], grads)
        for port, gradient in enumerate(backward.in_grads):
            if gradient is not None:
                results[f"{case}/input/{port}"] = backend.to_host(gradient)
        for own_name, gradient in backward.param_grads.items():
            results[f"{case}/param/{own_name}"] = backend.to_host(gradient)
    backend.close()
    np.savez(target, **results)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
