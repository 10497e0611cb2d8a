"""Sizes of the experiments: the small language model, its data, and the steps of every training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """`layers`, `hidden`, `heads` and `intermediate` are those of the small language model."""

    layers: int = 6
    hidden: int = 256
    heads: int = 8
    intermediate: int = 704
    vocab: int = 2048
    length: int = 256  # tokens of a piece of text
    tokens: int = 16384  # of a batch
    steps: int = 800  # of a model that is trained from scratch
    rate: float = 2e-3
    head_steps: int = 500  # of a head on a frozen model
    exit_layer: int = 2
    exit_intermediate: int = 1024  # other than the model's, so that the block starts from random weights
    window: int = 32  # positions that both heads of experiment 1 attend to
    depth: int = 5
    prompts: int = 1536  # that the frozen model answers for the training of a head
    held_prompts: int = 96
    prompt: int = 48
    answer: int = 64
    evaluations: int = 8
    speed_prompts: int = 4
    speed_tokens: int = 96
    target_layers: int = 12  # of the target of experiment 4
    target_hidden: int = 512
    draft_budget: int = 2_900_000  # parameters of a draft model of experiment 4
    shapes: tuple[tuple[int, int], ...] = ((1, 416), (2, 320), (4, 224), (8, 160))  # layers and width of draft models


TINY = Sizes(
    layers=3,
    hidden=32,
    heads=4,
    intermediate=48,
    vocab=300,
    length=16,
    tokens=128,
    steps=2,
    head_steps=2,
    exit_layer=1,
    exit_intermediate=96,
    window=4,
    depth=3,
    prompts=4,
    held_prompts=2,
    prompt=8,
    answer=6,
    evaluations=2,
    speed_prompts=1,
    speed_tokens=8,
    target_layers=2,
    target_hidden=64,
    draft_budget=30_000,
    shapes=((1, 48), (2, 32)),
)
SIZES = {"small": Sizes(), "tiny": TINY}
