"""Parameter gradients of one step: an accumulator per use site, folded on the owner. Knows no plan.

The order of every sum is fixed: microbatches in order within a site, then sites in canonical order.
"""

from __future__ import annotations

from collections.abc import Iterable

from dcnr_app.engine.backend import Array, Backend
from dcnr_app.errors import InvariantError
from dcnr_app.runtime.liveness import BufferLedger

Site = tuple[str, str]


def site_name(site: Site) -> str:
    """`node.own_name`: the canonical name of a use site."""
    return f"{site[0]}.{site[1]}"


class Accumulators:
    """Running gradient sums by use site, filled with microbatches 0, 1, ... of one step."""

    def __init__(self, backend: Backend, ledger: BufferLedger) -> None:
        self._backend = backend
        self._ledger = ledger
        self._totals: dict[Site, Array] = {}
        self._counts: dict[Site, int] = {}
        self._step: int | None = None

    def add(self, site: Site, step: int, microbatch: int, gradient: Array) -> None:
        """Add one microbatch's gradient, whose single use by the caller ends here.

        Raises InvariantError out of microbatch order, or if the sums of another step are still here.
        """
        expected = self._counts.get(site, 0)
        if microbatch != expected or (self._step is not None and step != self._step):
            raise InvariantError(
                f"gradient of {site_name(site)} for step {step} microbatch {microbatch} is out of order",
                why=f"step {step if self._step is None else self._step} microbatch {expected} is next: "
                "the sum's order fixes its bits",
            )
        self._step = step
        self._counts[site] = expected + 1
        total = self._totals.get(site)
        if total is None:
            self._totals[site] = self._own(gradient)
            return
        self._totals[site] = self._sum(total, gradient)

    def check_complete(self, sites: Iterable[Site], n_microbatches: int) -> None:
        """Raises InvariantError unless every site has all microbatches."""
        for site in sites:
            count = self._counts.get(site, 0)
            if count != n_microbatches:
                raise InvariantError(
                    f"the gradient of {site_name(site)} has {count} of {n_microbatches} microbatches"
                )

    def lend(self, site: Site) -> Array:
        """The sum of one site, for another PNode: it is not written into or released any more."""
        return self._ledger.disown(self._ledger.hold(self._totals[site]))

    def fold(self, parts: Iterable[tuple[Site, Array | None]]) -> Array:
        """The sum over use sites in the given order: the array from elsewhere, or None for the local sum.

        Local sums are used up; the result belongs to the caller alone. Raises InvariantError for no parts.
        """
        total: Array | None = None
        for site, remote in parts:
            part = self._totals.pop(site) if remote is None else self._ledger.hold(remote, is_foreign=True)
            total = self._own(part) if total is None else self._sum(total, part)
        if total is None:
            raise InvariantError("a parameter without use sites has no gradient")
        return self._ledger.surrender(total)

    def clear(self, sites: Iterable[Site] | None = None) -> None:
        """Forget sums: of these sites, or all, so that the next step can begin."""
        for site in list(self._counts) if sites is None else sites:
            if site in self._totals:
                self._ledger.drop(self._totals.pop(site))
            self._counts.pop(site, None)
        if not self._counts:
            self._step = None

    def _own(self, array: Array) -> Array:
        if self._ledger.is_sole(array):
            return array
        copy = self._ledger.hold(self._backend.copy(array))
        self._ledger.drop(array)
        return copy

    def _sum(self, total: Array, part: Array) -> Array:
        # The backend may write into the total, so it must have no other user (see _own).
        summed = self._ledger.hold(self._backend.accumulate(self._ledger.surrender(total), part))
        self._ledger.drop(part)
        return summed
