"""Whether a checkpoint has all that its own network and optimizer need to go on. Opens no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from dcnr_app.engine.optimizers import slot_names
from dcnr_app.errors import DcnrError, StoreError
from dcnr_app.nodes.graph.analysis import network_parameters
from dcnr_app.nodes.graph.network import Network, decode_network, network_id
from dcnr_app.nodes.graph.training import TrainingSettings
from dcnr_app.nodes.registry import Registry
from dcnr_app.store.checkpoints import read_manifest
from dcnr_app.store.manifest import NETWORK_FILE, Manifest
from dcnr_app.store.shelf import WhyUnfit

_SHOWN = 3


def fitness(registry: Registry) -> WhyUnfit:
    """For `latest_checkpoint`: why training cannot go on from a checkpoint, in one line; empty if it can."""

    def why_unfit(path: Path, manifest: Manifest) -> str:
        try:
            network = decode_network((path / NETWORK_FILE).read_bytes(), registry)
            settings = msgspec.convert(manifest.facts.settings, TrainingSettings)
        except (DcnrError, msgspec.ValidationError, OSError) as error:
            return " ".join(f"its network or settings cannot be read: {error}".split())
        return _why_unfit(network, settings, manifest)

    return why_unfit


def check_fit(path: Path, registry: Registry) -> None:
    """Raise StoreError if the checkpoint in this folder cannot be gone on from."""
    why = fitness(registry)(path, read_manifest(path))
    if why:
        raise StoreError(
            "this checkpoint cannot be gone on from",
            where=str(path),
            why=why,
            fix="use another copy or an older checkpoint (`latest` finds the newest that fits)",
        )


def _why_unfit(network: Network, settings: TrainingSettings, manifest: Manifest) -> str:
    found = network_id(network)
    if found != manifest.facts.network:
        return f"its network has the id {found}, the manifest says {manifest.facts.network}"
    needed = _needed(network, settings)
    lacking = [name for name in needed if name not in manifest.tensors]
    if lacking:
        return f"it lacks {_some(lacking)}"
    foreign = sorted(manifest.tensors.keys() - needed.keys())
    if foreign:
        return f"its network has no {_some(foreign)}"
    for name, shape in needed.items():
        if manifest.tensors[name].shape != shape:
            return f"{name} has the shape {manifest.tensors[name].shape}, its network needs {shape}"
    return ""


def _needed(network: Network, settings: TrainingSettings) -> Mapping[str, tuple[int, ...]]:
    """Shape of each tensor by its name in a checkpoint."""
    slots = ("weight", *slot_names(settings.optimizer.type))
    return {
        f"{name}/{slot}": tuple(parameter.spec.shape)
        for name, parameter in network_parameters(network).items()
        for slot in slots
    }


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
