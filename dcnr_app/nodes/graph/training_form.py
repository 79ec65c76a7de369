"""The `training:` section of a file, and command line flags, -> TrainingSettings. Knows no network."""

from __future__ import annotations

from typing import Any

import msgspec

from dcnr_app.errors import UserError
from dcnr_app.nodes.graph.reading import Variables, check_keys, read, read_mapping
from dcnr_app.nodes.graph.spelling import did_you_mean
from dcnr_app.nodes.graph.training import Optimizer, Schedule, TrainingSettings, check_training, settings_form
from dcnr_app.nodes.graph.values import Mapping, refuse

_SECTIONS: dict[str, type[Optimizer] | type[Schedule]] = {"optimizer": Optimizer, "schedule": Schedule}


def read_training(section: Mapping, variables: Variables) -> TrainingSettings:
    """Settings of a `training:` section; what it leaves out has its default. Raises InvalidError."""
    settings: TrainingSettings = _read_struct(section, TrainingSettings, "training", variables)
    try:
        return check_training(settings)
    except ValueError as error:
        entry = section.entries.get("batch") or section.entries.get("microbatches")
        refuse(entry.value.mark if entry else section.mark, f"training: {error}")


def _read_struct(section: Mapping, kind: type[Any], title: str, variables: Variables) -> Any:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    check_keys(section, fields, title)
    values: dict[str, Any] = {}
    for key, entry in section.entries.items():
        what = f"{title}.{key}"
        if kind is TrainingSettings and key in _SECTIONS:
            inner = read_mapping(entry.value, what)
            values[key] = _read_struct(inner, _SECTIONS[key], what, variables)
        else:
            values[key] = read(entry.value, fields[key], variables, what)
    return kind(**values)


def resolve_training(defaults: TrainingSettings, **flags: object) -> TrainingSettings:
    """`defaults` with the flags that are not None. Flags are the fields of TrainingSettings, Optimizer and
    Schedule by name; `optimizer` and `schedule` give the section's type.

    Raises UserError for an unknown flag or a value that does not fit.
    """
    form = settings_form(defaults)
    homes: dict[str, dict[str, Any]] = dict.fromkeys(form, form)
    for section in _SECTIONS:
        homes |= {name: form[section] for name in form[section] if name != "type"}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in homes:
            raise UserError(f"there is no training setting {name!r}", fix=did_you_mean(name, homes))
        if name in _SECTIONS:
            form[name]["type"] = value
        else:
            homes[name][name] = value
    try:
        return check_training(msgspec.convert(form, TrainingSettings))
    except ValueError as error:  # msgspec.ValidationError is one
        given = ", ".join(f"{name}={value}" for name, value in flags.items() if value is not None)
        raise UserError(f"the training settings do not fit: {error}", why=f"given: {given}") from error
