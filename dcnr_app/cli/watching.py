"""A Watcher that says nothing: for runs whose result is all that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dcnr_app.cluster.decision import Decision
from dcnr_app.cluster.messages import GradientsReady
from dcnr_app.cluster.plan import Plan
from dcnr_app.ids import PNodeId
from dcnr_app.nodes.graph.network import Network


class SilentWatcher:
    """Hears everything, tells nothing."""

    def planned(self, network: Network, plan: Plan) -> None:
        """A plan was made."""

    def ready(self, pnode: PNodeId, pid: int) -> None:
        """A PNode took up the plan."""

    def stepped(
        self, decision: Decision, reports: Mapping[PNodeId, GradientsReady], *, is_replay: bool
    ) -> None:
        """A step was committed."""

    def validated(self, step: int, loss: float) -> None:
        """A validation loss is known."""

    def recovering(self, reason: str) -> None:
        """A PNode was lost."""

    def replanned(self, network: Network, plan: Plan, step: int) -> None:
        """A new plan is taken up."""

    def no_sample(self, why: str) -> None:
        """Nothing: a session that only generates raises instead."""

    def sampling(self) -> None:
        """A sample is being written."""

    def stoppable(self, stop: Callable[[], None]) -> None:
        """The run can be stopped from now on."""
