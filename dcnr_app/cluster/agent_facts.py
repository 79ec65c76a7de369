"""What other machines' agents say of their devices, read so that nothing they say can do harm."""

from __future__ import annotations

import logging

import msgspec

from dcnr_app.cluster.agent_messages import PNodeReport
from dcnr_app.cluster.devices import DeviceFacts
from dcnr_app.cluster.local_facts import told_facts
from dcnr_app.errors import InvalidError

_LOG = logging.getLogger(__name__)


def checked_report(report: PNodeReport) -> PNodeReport:
    """The report, without its facts if they cannot be read or are another PNode's."""
    if report.facts and device_of(report) is None:
        return msgspec.structs.replace(report, facts=b"")
    return report


def device_of(report: PNodeReport) -> DeviceFacts | None:
    """What was measured of a PNode's device; None where that is not known or cannot be reckoned with."""
    if not report.facts:
        return None
    try:
        (facts,) = told_facts([msgspec.json.decode(report.facts)]).devices
    except (InvalidError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        _LOG.warning("device_facts_unreadable pnode=%s why=%s", report.pnode, error)
        return None
    if facts.pnode != report.pnode:
        _LOG.warning("device_facts_unreadable pnode=%s why=they are of %s", report.pnode, facts.pnode)
        return None
    return facts
