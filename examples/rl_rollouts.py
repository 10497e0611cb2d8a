"""Rollouts for reinforcement learning, drafted by the policy of a step ago.

Every step samples from the current weights under an exact rule, so the rollouts have the law of the policy itself, and
no importance weight is needed for the drafter. `log_probabilities` gives the policy's log-probability of every token,
which the gradient needs. Then the weights change, and the next batch is sampled from them. `ss.Engine` returns these
log-probabilities with every output, too: `engine.generate(..., logprobs=0)`.

    python examples/rl_rollouts.py
"""

from __future__ import annotations

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.core.loop import decode
from slipstream.core.rules import rules
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed

VOCAB, LENGTH, ROLLOUTS, WANTED = 32, 12, 32, 7  # the reward is the share of the token WANTED


def rollouts(policy: LlamaForCausalLM, older: LlamaForCausalLM, step: int) -> tuple[list[list[int]], float]:
    """Sample outputs of the policy, drafted by older weights, and the mean tokens per pass of the policy."""
    target, draft = TorchModel(copy.deepcopy(policy)), TorchModel(copy.deepcopy(older))
    sampling = Sampling(temperature=1.0, seed=step)
    rows = [Row(Request([1, 2, 3], sampling, LENGTH, sample=i)) for i in range(ROLLOUTS)]
    cycles = 0
    for steps in decode(rows, target, DraftModel(draft, VOCAB), rules.get("coupled")(), Fixed(3)):
        cycles += len(steps)
    return [row.output for row in rows], ROLLOUTS * LENGTH / cycles


def log_probabilities(policy: LlamaForCausalLM, outputs: list[list[int]]) -> torch.Tensor:
    """The policy's log-probability of every token, [rollouts, length], with a gradient."""
    ids = torch.tensor([[1, 2, 3, *output] for output in outputs])
    logits = policy(ids).logits[:, 2:-1].log_softmax(-1)
    return logits.gather(2, ids[:, 3:, None])[..., 0]


def main(steps: int = 12) -> list[float]:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    policy, rewards = LlamaForCausalLM(config).eval(), list[float]()
    older, optimiser = copy.deepcopy(policy), torch.optim.Adam(policy.parameters(), 3e-3)
    for step in range(steps):
        outputs, tau = rollouts(policy, older, step)
        reward = torch.tensor([output.count(WANTED) / LENGTH for output in outputs])
        older = copy.deepcopy(policy)
        loss = -(log_probabilities(policy, outputs).sum(1) * (reward - reward.mean())).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rewards.append(float(reward.mean()))
        print(f"step {step}: reward {rewards[-1]:.3f}, {tau:.2f} tokens per pass of the policy")
    return rewards


if __name__ == "__main__":
    main()
