"""Small language models from scratch, and what every experiment measures of them while it trains."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from settings import Sizes
from text_data import TextData
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from slipstream.core.array_types import Tensor
from slipstream.train.batch_decode import generate_answers
from slipstream.train.corpus import Corpus, SampleBatch
from slipstream.train.loop import Schedule, TrainingLoop, mean_tau, read_journal
from slipstream.train.method import Guess, Method
from slipstream.train.tau import measure
from slipstream.train.teacher import Teacher, TeacherOutput

Figures = dict[str, Any]


def new_model(sizes: Sizes, seed: int, device: str, **shape: int) -> Any:
    """A Llama with random weights. `shape` replaces sizes of the small language model."""
    hidden, heads = shape.get("hidden", sizes.hidden), shape.get("heads", sizes.heads)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=sizes.vocab,
        hidden_size=hidden,
        intermediate_size=shape.get("intermediate", sizes.intermediate),
        num_hidden_layers=shape.get("layers", sizes.layers),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4 * sizes.length,
        bos_token_id=None,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(device)


def save_model(model: Any, data: TextData, folder: Path) -> None:
    """A folder that an engine loads."""
    model.save_pretrained(folder)
    for path in data.tokenizer.iterdir():
        shutil.copy(path, folder / path.name)


class NoDrafter(Method):
    """A language model alone: there is no drafter and no loss of one."""

    name: ClassVar[str] = "none"
    drafts_in_prefill: ClassVar[bool] = False

    def __init__(self) -> None:
        self.net, self.layers = nn.Module(), ()

    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        return output.last.new_zeros(())

    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        return []

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        raise AssertionError("there is nothing to save")

    @property
    def shape(self) -> dict[str, Any]:
        return {}

    @property
    def weights_read(self) -> int:
        return 0


class TrainingRun:
    """One training with its curve: figures of the held-out text at regular steps, and the seconds spent until then."""

    def __init__(self, method: Method, teacher: Teacher, data: TextData, sizes: Sizes, seed: int, work: Path) -> None:
        self.method, self.teacher, self.data, self.sizes = method, teacher, data, sizes
        shutil.rmtree(work, ignore_errors=True)  # a run that was interrupted begins again
        steps = sizes.steps if teacher.joint else sizes.head_steps
        schedule = Schedule(
            steps, sizes.tokens, sizes.rate, max(1, steps // 40), seed, sizes.rate if teacher.joint else 0.0
        )
        self.loop, self.work = TrainingLoop(method, teacher, schedule, work), work

    def run(self, corpus: Corpus, evaluate: Callable[[], Figures]) -> list[Figures]:
        """Train and return the curve. The time of the evaluations is not counted."""
        began, steps = time.monotonic(), self.loop.schedule.steps

        def timed() -> Figures:
            nonlocal began
            synchronise(self.teacher.device)
            seconds = time.monotonic() - began
            figures = {"seconds": round(seconds, 3), **evaluate()}
            synchronise(self.teacher.device)
            began = time.monotonic() - seconds
            return figures

        self.loop.run(corpus, timed, max(1, steps // self.sizes.evaluations), float("inf"), lambda *_: None)
        curve = [entry for entry in read_journal(self.work) if "seconds" in entry]
        shutil.rmtree(self.work)
        return curve

    def text_loss(self) -> Figures:
        """The model's loss on the held-out text."""
        held, total, count = self.data.held, 0.0, 0
        with torch.no_grad(), self.loop.mixed_precision():
            for samples in held.epoch(self.sizes.tokens, 0):
                batch = held.batch(samples).to(self.teacher.device)
                total += float(self.teacher.text_loss(batch, self.teacher.read(batch))) * len(samples)
                count += len(samples)
        return {"text_loss": total / count}

    def acceptance(self, held: Corpus) -> Figures:
        """Tau of a chain along the model's answers, greedy and at temperature 1, and the drafter's own loss there."""
        with torch.no_grad():
            self.method.follow_target()
        batches = [held.batch(samples) for samples in held.epoch(self.sizes.tokens, 0)]
        with self.loop.mixed_precision():
            taus = mean_tau(measure(self.method, self.teacher, batches, self.sizes.depth))
            return taus | {"draft_loss": self._draft_loss(batches)}

    @torch.no_grad()
    def _draft_loss(self, batches: list[SampleBatch]) -> list[float]:
        """By depth: the mean of -log q of the model's own tokens, given that the drafted tokens before were right."""
        sums = torch.zeros(self.sizes.depth, 2)
        for batch in batches:
            batch = batch.to(self.teacher.device)
            output = self.teacher.read(batch, self.method.layers)
            for n, guess in enumerate(self.method.guesses(batch, output, self.sizes.depth)):
                exists = guess.position >= 0
                sums[n] += torch.tensor([-float(guess.log_prob[exists].sum()), float(exists.sum())])
        return [round(float(total / count), 4) for total, count in sums if count]


def answers(teacher: Teacher, prompts: list[list[int]], length: int, seed: int) -> Corpus:
    """The model's answers to prompts of one length, greedy and at temperature 1. All have the same length."""
    both = [prompt for prompt in prompts for _ in (0, 1)]
    heats = [0.0, 1.0] * len(prompts)
    replies = generate_answers(teacher.model, teacher.anatomy, both, heats, frozenset(), length, seed)
    size, count = len(prompts[0]) + length, len(both)
    tokens = torch.tensor([[*prompt, *reply] for prompt, reply in zip(both, replies, strict=True)], dtype=torch.int32)
    offset, prompt_length = torch.arange(count + 1) * size, torch.full((count,), len(prompts[0]))
    return Corpus(tokens.flatten(), offset, prompt_length, torch.tensor(heats), ("text",) * count)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())
