"""The example of rollouts: rewards rise while the weights change between batches."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_rewards_rise():
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "rl_rollouts.py"))
    rewards = example["main"](4)
    assert rewards[-1] > rewards[0]
