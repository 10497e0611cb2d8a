"""The target's own answers, kept in shards on disk, and batches of them in an order that only the seed decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slipstream.core.array_types import Bool, Int, Tensor
from slipstream.train.prompts import Prompt

STEP = 64  # lengths are padded to a multiple of this, so that few shapes occur
WINDOW = 4096  # samples that are sorted by length among themselves


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples side by side, padded on the right. Position i is supervised where token i + 1 is the target's own."""

    tokens: Int[Tensor, "rows length"]
    prompt: Int[Tensor, " rows"]  # tokens of the prompt
    whole: Int[Tensor, " rows"]  # tokens of prompt and answer
    greedy: Bool[Tensor, " rows"]
    task: tuple[str, ...] = ()

    def to(self, device: torch.device) -> Batch:
        tokens, prompt, whole, greedy = (
            part.to(device, non_blocking=True) for part in (self.tokens, self.prompt, self.whole, self.greedy)
        )
        return Batch(tokens, prompt, whole, greedy, self.task)

    @property
    def supervised(self) -> Bool[Tensor, "rows length"]:
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (place >= self.prompt[:, None] - 1) & (place <= self.whole[:, None] - 2)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Samples end to end: prompt and answer of each."""

    tokens: Int[Tensor, " all"]
    offset: Int[Tensor, " samples+1"]
    prompt: Int[Tensor, " samples"]
    greedy: Bool[Tensor, " samples"]
    tasks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt)

    @property
    def lengths(self) -> Int[Tensor, " samples"]:
        return self.offset[1:] - self.offset[:-1]

    @property
    def answered(self) -> int:
        """Tokens that are the target's own."""
        return int(self.lengths.sum() - self.prompt.sum())

    def batch(self, samples: Sequence[int]) -> Batch:
        index = torch.tensor(samples)
        whole = self.lengths[index]
        longest = -(-int(whole.max()) // STEP) * STEP
        place = torch.arange(longest)
        source = (self.offset[index][:, None] + place).clamp(max=len(self.tokens) - 1)
        tokens = torch.where(place < whole[:, None], self.tokens[source].long(), 0)
        task = tuple(self.tasks[i] for i in samples) if self.tasks else ()
        return Batch(tokens, self.prompt[index].long(), whole.long(), self.greedy[index], task)

    def batches(self, tokens: int, seed: int) -> Iterator[list[int]]:
        """Batches of about so many tokens for ever: every sample once an epoch, those of a batch about equally long."""
        epoch = 0
        while True:
            yield from self.epoch(tokens, seed + epoch)
            epoch += 1

    def epoch(self, tokens: int, seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator).tolist()
        lengths = self.lengths.tolist()
        found: list[list[int]] = []
        for start in range(0, len(order), WINDOW):
            batch: list[int] = []
            for sample in sorted(order[start : start + WINDOW], key=lengths.__getitem__):
                longest = -(-lengths[sample] // STEP) * STEP
                if batch and longest * (len(batch) + 1) > tokens:
                    found.append(batch)
                    batch = []
                batch.append(sample)
            found += [batch] if batch else []
        return [found[i] for i in torch.randperm(len(found), generator=generator).tolist()]


Answer = Callable[[Sequence[Prompt], Sequence[float], int], list[list[int]]]
"""Answers to prompts at these temperatures, from this seed."""


@dataclass(frozen=True)
class Shard:
    """Prompts of about one length that are answered together."""

    prompts: list[Prompt]
    temperatures: list[float]
    seed: int


def shards(prompts: Sequence[Prompt], temperatures: Sequence[float], size: int, seed: int) -> list[Shard]:
    """Every prompt at every temperature, in groups of similar length, the groups in random order: a run that is cut
    short has seen all lengths."""
    every = sorted(
        ((prompt, warm) for prompt in prompts for warm in temperatures), key=lambda pair: len(pair[0].tokens)
    )
    groups = [every[i : i + size] for i in range(0, len(every), size)]
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        Shard([prompt for prompt, _ in groups[g]], [warm for _, warm in groups[g]], seed * 1000003 + g) for g in order
    ]


def collect(folder: Path, work: Sequence[Shard], answer: Answer, told: Callable[[int], None]) -> Corpus:
    """Answer what is not answered yet, shard by shard, and read all of it; a killed run goes on where it was."""
    folder.mkdir(parents=True, exist_ok=True)
    for n, shard in enumerate(work):
        path = folder / f"{n:05}.safetensors"
        if not whole(path):
            answers = answer(shard.prompts, shard.temperatures, shard.seed)
            save(path, pack(shard, answers))
        told(n + 1)
    return read([folder / f"{n:05}.safetensors" for n in range(len(work))], work)


def pack(shard: Shard, answers: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    lines = [[*prompt.tokens, *answer] for prompt, answer in zip(shard.prompts, answers, strict=True)]
    return {
        "tokens": torch.tensor([token for line in lines for token in line], dtype=torch.int32),
        "lengths": torch.tensor([len(line) for line in lines]),
        "prompt": torch.tensor([len(prompt.tokens) for prompt in shard.prompts]),
        "greedy": torch.tensor([warm == 0 for warm in shard.temperatures]),
    }


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def whole(path: Path) -> bool:
    try:
        return path.exists() and bool(load_file(path))
    except (SafetensorError, OSError):
        return False


def read(paths: Sequence[Path], work: Sequence[Shard]) -> Corpus:
    parts = [load_file(path) for path in paths]
    lengths = torch.cat([part["lengths"] for part in parts])
    offset = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    tokens, prompt, greedy = (torch.cat([part[name] for part in parts]) for name in ("tokens", "prompt", "greedy"))
    return Corpus(tokens, offset, prompt, greedy, tuple(prompt.task for shard in work for prompt in shard.prompts))
