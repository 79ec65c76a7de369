"""Device facts: what fixes the bits is named, and changes the class."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr_app.engine.device import device_class, device_summary, reference_facts
from dcnr_app.engine.reference import ReferenceBackend


def test_facts_name_everything_that_fixes_the_bits() -> None:
    backend = ReferenceBackend()
    facts = backend.device_class()
    backend.close()
    assert facts["numpy"] == np.__version__
    assert facts["engine"] == "reference"
    assert facts["blas"] != "none"
    assert facts["cpu_features"]
    assert set(facts) == set(reference_facts())


@pytest.mark.parametrize("name", sorted(reference_facts()))
def test_any_other_fact_is_another_class(name: str) -> None:
    facts = reference_facts()
    assert device_class(facts) == device_class(dict(reversed(facts.items())))
    assert device_class(facts) != device_class({**facts, name: "other"})
    assert len(device_class(facts)) == 12


def test_thread_count_is_no_part_of_the_class() -> None:
    one, three = ReferenceBackend(1), ReferenceBackend(3)
    assert device_class(one.device_class()) == device_class(three.device_class())
    one.close()
    three.close()


def test_summary_describes_a_machine_that_exists() -> None:
    summary = device_summary()
    assert summary.processor
    assert summary.n_cores >= 1
    assert 0 < summary.free_memory_bytes <= summary.memory_bytes
