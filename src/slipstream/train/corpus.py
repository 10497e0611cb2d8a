"""The target's answers, kept in shards on disk, and batches of them in an order that depends on the seed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.train.prompts import TrainingPrompt

MULTIPLE = 64  # lengths are padded to a multiple of this, so that few shapes occur
WINDOW = 4096  # samples that are sorted by length among themselves


@dataclass(frozen=True, eq=False)
class SampleBatch:
    """Samples side by side, padded on the right. Position i is supervised where token i + 1 belongs to the answer."""

    tokens: Int[Tensor, "rows length"]
    prompt_length: Int[Tensor, " rows"]
    length: Int[Tensor, " rows"]  # prompt and answer together
    temperature: Float[Tensor, " rows"]  # that the answer was sampled at
    task: tuple[str, ...] = ()

    def to(self, device: torch.device) -> SampleBatch:
        tokens, prompt_length, length, temperature = (
            part.to(device, non_blocking=True)
            for part in (self.tokens, self.prompt_length, self.length, self.temperature)
        )
        return SampleBatch(tokens, prompt_length, length, temperature, self.task)

    @property
    def supervised(self) -> Bool[Tensor, "rows length"]:
        position = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (position >= self.prompt_length[:, None] - 1) & (position <= self.length[:, None] - 2)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Samples end to end: prompt and answer of each."""

    tokens: Int[Tensor, " all"]
    offset: Int[Tensor, " samples+1"]
    prompt_length: Int[Tensor, " samples"]
    temperature: Float[Tensor, " samples"]
    tasks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.prompt_length)

    @property
    def lengths(self) -> Int[Tensor, " samples"]:
        return self.offset[1:] - self.offset[:-1]

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers, without the prompts."""
        return int(self.lengths.sum() - self.prompt_length.sum())

    def batch(self, samples: Sequence[int]) -> SampleBatch:
        index = torch.tensor(samples)
        length = self.lengths[index]
        position = torch.arange(_padded(int(length.max())))
        source = (self.offset[index][:, None] + position).clamp(max=len(self.tokens) - 1)
        tokens = torch.where(position < length[:, None], self.tokens[source].long(), 0)
        task = tuple(self.tasks[i] for i in samples) if self.tasks else ()
        return SampleBatch(tokens, self.prompt_length[index].long(), length.long(), self.temperature[index], task)

    def batches(self, tokens: int, seed: int) -> Iterator[list[int]]:
        """Endless batches of about `tokens` tokens: every sample once an epoch, samples of similar length together."""
        epoch = 0
        while True:
            yield from self.epoch(tokens, seed + epoch)
            epoch += 1

    def epoch(self, tokens: int, seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self), generator=generator).tolist()
        lengths = self.lengths.tolist()
        batches: list[list[int]] = []
        for start in range(0, len(order), WINDOW):
            batch: list[int] = []
            for sample in sorted(order[start : start + WINDOW], key=lengths.__getitem__):
                if batch and _padded(lengths[sample]) * (len(batch) + 1) > tokens:
                    batches.append(batch)
                    batch = []
                batch.append(sample)
            batches += [batch] if batch else []
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


def _padded(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE


Answer = Callable[[Sequence[TrainingPrompt], Sequence[float], int], list[list[int]]]
"""Answers prompts, each at its temperature, from a seed."""


@dataclass(frozen=True)
class Shard:
    """Prompts of similar length that are answered in one batch."""

    prompts: list[TrainingPrompt]
    temperatures: list[float]
    seed: int


def shards(prompts: Sequence[TrainingPrompt], temperatures: Sequence[float], size: int, seed: int) -> list[Shard]:
    """Every prompt at every temperature, in groups of similar length and in random order.

    The random order lets a run that is cut short see all lengths.
    """
    requests = sorted(
        ((prompt, temperature) for prompt in prompts for temperature in temperatures),
        key=lambda request: len(request[0].tokens),
    )
    groups = [requests[i : i + size] for i in range(0, len(requests), size)]
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        Shard([prompt for prompt, _ in groups[g]], [temperature for _, temperature in groups[g]], seed * 1000003 + g)
        for g in order
    ]


def collect(folder: Path, work: Sequence[Shard], answer: Answer, on_answers: Callable[[int], None]) -> Corpus:
    """Answer the shards that are not on disk yet and read all of them. `on_answers` is told how many answers exist."""
    folder.mkdir(parents=True, exist_ok=True)
    done = 0
    on_answers(done)
    for n, shard in enumerate(work):
        path = folder / f"{n:05}.safetensors"
        if not is_complete(path):
            answers = answer(shard.prompts, shard.temperatures, shard.seed)
            save(path, pack(shard, answers))
        done += len(shard.prompts)
        on_answers(done)
    return read([folder / f"{n:05}.safetensors" for n in range(len(work))], work)


def pack(shard: Shard, answers: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    samples = [[*prompt.tokens, *answer] for prompt, answer in zip(shard.prompts, answers, strict=True)]
    return {
        "tokens": torch.tensor([token for sample in samples for token in sample], dtype=torch.int32),
        "lengths": torch.tensor([len(sample) for sample in samples]),
        "prompt_length": torch.tensor([len(prompt.tokens) for prompt in shard.prompts]),
        "temperature": torch.tensor(shard.temperatures, dtype=torch.float32),
    }


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def is_complete(path: Path) -> bool:
    try:
        return path.exists() and bool(load_file(path))
    except (SafetensorError, OSError):
        return False


def read(paths: Sequence[Path], work: Sequence[Shard]) -> Corpus:
    tasks = tuple(prompt.task for shard in work for prompt in shard.prompts)
    return joined([load_file(path) for path in paths], tasks)


def joined(parts: Sequence[dict[str, Tensor]], tasks: tuple[str, ...]) -> Corpus:
    """The corpus of packed samples."""
    lengths = torch.cat([part["lengths"] for part in parts])
    offset = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    tokens, prompt_length, temperature = (
        torch.cat([part[name] for part in parts]) for name in ("tokens", "prompt_length", "temperature")
    )
    return Corpus(tokens, offset, prompt_length, temperature, tasks)
