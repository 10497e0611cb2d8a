"""The loss of a drafted token: cross-entropy, the probability of acceptance, and shares of both."""

from __future__ import annotations

import pytest
import torch

from slipstream.train.methods.draft_loss import draft_losses
from slipstream.train.options import CommonOptions


@pytest.fixture
def laws() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a drafter, and a target whose draft vocabulary lacks some of its probability."""
    torch.manual_seed(0)
    return torch.randn(6, 9), 0.9 * torch.randn(6, 9).mul(2).softmax(-1)


@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_the_share_overlap_is_minus_the_log_of_acceptance(laws, overlap):
    logits, p = laws
    for row, loss in enumerate(draft_losses(logits, p, overlap).tolist()):
        q = logits[row].softmax(-1)
        entropy = -sum(float(p[row, i]) * float(q[i].log()) for i in range(9))
        accepted = sum(min(float(p[row, i]), float(q[i])) for i in range(9))
        expected = (1 - overlap) * entropy - overlap * float(torch.tensor(accepted).log())
        assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_descending_the_loss_raises_acceptance(laws, overlap):
    logits, p = laws

    def acceptance(x: torch.Tensor) -> float:
        return float(x.detach().softmax(-1).minimum(p).sum(-1).mean())

    x = logits.clone().requires_grad_()
    for _ in range(200):
        (gradient,) = torch.autograd.grad(draft_losses(x, p, overlap).sum(), x)
        x = (x - gradient).detach().requires_grad_()
    assert acceptance(x) > acceptance(logits) + 0.05


def test_an_acceptance_of_nothing_gives_a_finite_loss():
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    loss = draft_losses(logits, torch.tensor([[0.0, 1e-30]]), 1.0).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("overlap", [-0.1, 1.5])
def test_a_share_outside_0_to_1_is_refused(overlap):
    with pytest.raises(ValueError, match=f"overlap is {overlap}; it must be between 0 and 1"):
        CommonOptions(overlap=overlap)
