"""What protects a claim, one switch a guard: a model in which one is off must be found broken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guards:
    """All on is the product. The first group stands in queries.sql, the second in what decides."""

    settle_matches_token: bool = True
    settle_matches_owner: bool = True
    settle_matches_running: bool = True
    settle_clears_owner: bool = True
    put_back_raises_token: bool = True
    claim_raises_token: bool = True
    reclaim_matches_expiry: bool = True
    reclaim_matches_token: bool = True

    reclaimer_is_patient: bool = True
    reclaimer_tries_to_write: bool = True
    late_looks_prove_little: bool = True
    patience: float = 1.0  # as a part of the product's
    only_what_began_is_charged: bool = True
    charge_names_its_claim: bool = True
    recovery_looks_again: bool = True


ALL = Guards()
