"""What drafting costs, as the policy measured it, in a form that can be shown to users."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.plan.policy.costs import CostModel


@dataclass(frozen=True)
class DraftingCost:
    """The cost of one drafted token for one request by itself. Costs are shares of a plain target pass."""

    drafting: float  # the drafter's own time
    scoring: float  # what the token adds to a target pass
    acceptance: float  # the probability that a drafted token of the latest requests is accepted, as estimated
    measured: bool  # False: no drafted token was scored yet, so the costs are guesses
    requested: int  # cycles in which the policy asked the drafter for tokens

    @property
    def total(self) -> float:
        return self.drafting + self.scoring


def drafting_cost(costs: CostModel, acceptance: float, requested: int) -> DraftingCost:
    """Summarise the cost model of a policy."""
    plain = costs.plain(1)
    return DraftingCost(costs.chain(1) / plain, costs.more(1)(1) / plain, acceptance, costs.priced, requested)
