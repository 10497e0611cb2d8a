"""Search for the blocks to skip: Thompson sampling with a linear model of what each skipped block costs in agreement.

The logarithm of a set's agreement with the target is modelled as the sum of one effect per skipped block, with Gaussian
prior and noise. The prior says that blocks at the ends of a network matter most. The posterior of the effects is
Gaussian and has a closed form. In every step the effects are drawn from the posterior, and the set that is best under
them and within the budget is tried. So sets that may be good are tried often, and those that are known to be bad are
not. The state is the posterior, so a search resumes from it.
"""

from __future__ import annotations

import torch
from torch import nn

from slipstream.core.array_types import Bool, Float, Tensor
from slipstream.kernels.cpu.decoder import SkippedBlocks

PRIOR_MIDDLE, PRIOR_END, PRIOR_SD = -0.05, -0.4, 0.15  # of the effect of a block in the middle and at either end
NOISE_SD = 0.3  # of a measured value around the sum of effects
WORST = -5.0  # smaller values are clipped, because a set cannot get worse than useless


class SkipSearch(nn.Module):
    """`cost`: the weights of each block, attention in row 0 and MLPs in row 1. `budget`: the most that is skipped."""

    precision: Tensor
    moment: Tensor
    count: Tensor

    def __init__(self, cost: Float[Tensor, "2 layers"], budget: float) -> None:
        super().__init__()
        self._cost, self._budget = cost.double().cpu(), budget
        blocks = cost.numel()
        self.register_buffer("precision", torch.eye(blocks, dtype=torch.float64) / PRIOR_SD**2)
        end = torch.linspace(-1, 1, cost.shape[1], dtype=torch.float64).square().repeat(2)  # 1 at both ends, 0 between
        self.register_buffer("moment", (PRIOR_MIDDLE + (PRIOR_END - PRIOR_MIDDLE) * end) / PRIOR_SD**2)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def propose(self, seed: int) -> SkippedBlocks:
        """The set to try next: the best one under effects drawn from the posterior."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + int(self.count))
        noise = torch.randn(len(self.moment), generator=generator, dtype=torch.float64)
        root = torch.linalg.cholesky(self.precision)
        return self._best_under(self._mean() + torch.linalg.solve_triangular(root.T, noise[:, None], upper=True)[:, 0])

    def learn(self, skipped: SkippedBlocks, value: float) -> None:
        """Update the posterior with the measured logarithm of a set's agreement."""
        tried = self._indicator(skipped)
        self.precision += torch.outer(tried, tried) / NOISE_SD**2
        self.moment += tried * max(WORST, value) / NOISE_SD**2
        self.count += 1

    @property
    def best(self) -> SkippedBlocks:
        """The best set under the expected effects."""
        return self._best_under(self._mean())

    def _mean(self) -> Float[Tensor, " blocks"]:
        mean: Tensor = torch.linalg.solve(self.precision, self.moment)
        return mean

    def _best_under(self, effect: Float[Tensor, " blocks"]) -> SkippedBlocks:
        """Skip blocks in the order of effect per weight, as long as the budget allows it. At least one is skipped."""
        cost = self._cost.flatten()
        chosen, total = list[int](), 0.0
        for block in (effect / cost).argsort(descending=True).tolist():
            if not chosen or total + float(cost[block]) <= self._budget:
                chosen.append(block)
                total += float(cost[block])
        layers = self._cost.shape[1]
        attention, mlp = (frozenset(b % layers for b in chosen if b // layers == row) for row in (0, 1))
        return SkippedBlocks(attention, mlp)

    def _indicator(self, skipped: SkippedBlocks) -> Float[Tensor, " blocks"]:
        tried: Bool[Tensor, "2 layers"] = torch.zeros(self._cost.shape, dtype=torch.bool)
        tried[0, sorted(skipped.attention)] = True
        tried[1, sorted(skipped.mlp)] = True
        return tried.flatten().double()
