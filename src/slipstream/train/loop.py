"""The training loop. It can be interrupted and resumed: the seed fixes the batches, the checkpoint the state."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from slipstream.train.corpus import Corpus, SampleBatch
from slipstream.train.method import Method
from slipstream.train.tau import Sums, measure
from slipstream.train.teacher import Teacher

DEPTH = 5  # of the chain that tau is measured with
LOG_EVERY = 20  # steps between two entries of the loss, fewer in a short training
SAVE_EVERY = 60.0  # seconds between two checkpoints


@dataclass(frozen=True)
class Schedule:
    """Steps of about `tokens` tokens; the rate rises over `warmup` steps and falls along a cosine to a tenth."""

    steps: int
    tokens: int
    rate: float
    warmup: int
    seed: int
    target_rate: float = 0.0  # peak rate of the target in joint training

    def at(self, step: int) -> float:
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class TrainingLoop:
    """Trains a method on a corpus; `folder` holds its checkpoint and its journal.

    A teacher with `joint` is trained, too. Its loss is added to the drafter's, and it has a rate of its own."""

    def __init__(self, method: Method, teacher: Teacher, schedule: Schedule, folder: Path) -> None:
        self.method, self.teacher, self.schedule, self.folder = method, teacher, schedule, folder
        trained = [(method.net, 1.0), (teacher.model, schedule.target_rate / schedule.rate)]
        groups = [([p for p in net.parameters() if p.requires_grad], share) for net, share in trained]
        self._groups = [(parameters, share) for parameters, share in groups if parameters]
        self.optimizer: torch.optim.Optimizer | None = None  # of a search, which has no parameters
        if self._groups:
            self.optimizer = torch.optim.AdamW(
                [{"params": parameters} for parameters, _ in self._groups],
                lr=schedule.rate,
                betas=(0.9, 0.95),
                weight_decay=0.0,
                fused=teacher.device.type == "cuda",
            )
        self.step, self._step_complete = 0, True
        self._losses: list[torch.Tensor] = []  # since the last entry of the journal
        folder.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.exists():
            self._restore()

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    @property
    def done(self) -> bool:
        return self.step >= self.schedule.steps

    def run(
        self,
        corpus: Corpus,
        evaluate: Callable[[], dict[str, Any]],
        every: int,
        until: float,
        on_step: Callable[[int, dict[str, Any]], None],
    ) -> None:
        """Train until the last step or the time `until`. Evaluate every `every` steps and at the end."""
        saved, log_every = time.monotonic(), max(1, min(LOG_EVERY, self.schedule.steps // 20))
        batches = islice(corpus.batches(self.schedule.tokens, self.schedule.seed), self.step, None)
        try:
            for batch in self._on_device(corpus, batches):
                if self.done or time.monotonic() > until:
                    break
                self._losses.append(self._learn(batch))
                entry: dict[str, Any] = {}
                if self.step % log_every == 0 or self.done:
                    entry |= self._mean_loss()
                if self.step % every == 0 or self.done:
                    entry |= evaluate()
                self._log(entry)
                on_step(self.step, entry)
                if time.monotonic() - saved > SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
        finally:  # also after Ctrl-C; a step that was interrupted is not saved
            if self._step_complete:
                self._log(self._mean_loss())
                self.save()

    def _mean_loss(self) -> dict[str, float]:
        """The mean loss since the last entry; empty if there was no step."""
        if not self._losses:
            return {}
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        return {"loss": loss}

    def _on_device(self, corpus: Corpus, batches: Iterator[list[int]]) -> Iterator[SampleBatch]:
        for samples in batches:
            yield corpus.batch(samples).to(self.teacher.device)

    def _learn(self, batch: SampleBatch) -> torch.Tensor:
        self._step_complete = False
        loss = self._loss(batch)
        if self.optimizer is not None:
            self._descend(self.optimizer, loss)
        self.step += 1
        self._step_complete = True
        return loss.detach()

    def _loss(self, batch: SampleBatch) -> torch.Tensor:
        if not self.teacher.joint:
            output = self.teacher.read(batch, self.method.layers)
            with self.mixed_precision():
                return self.method.loss(batch, output)
        with self.mixed_precision():
            self.method.follow_target()
            output = self.teacher.read(batch, self.method.layers)
            return self.method.loss(batch, output) + self.teacher.text_loss(batch, output)

    def mixed_precision(self) -> torch.autocast:
        """bfloat16 products on a GPU, float32 on a CPU."""
        kind = self.teacher.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")

    def _descend(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        for group, (_, share) in zip(optimizer.param_groups, self._groups, strict=True):
            group["lr"] = self.schedule.at(self.step) * share
        loss.backward()  # type: ignore[no-untyped-call]
        for parameters, _ in self._groups:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def evaluate(self, held: Corpus, depth: int = DEPTH) -> dict[str, Sums]:
        with torch.no_grad():
            self.method.follow_target()
        batches = (held.batch(samples) for samples in held.epoch(self.schedule.tokens, 0))
        with self.mixed_precision():
            return measure(self.method, self.teacher, batches, depth)

    def save(self) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        state = {
            "step": self.step,
            "net": self.method.net.state_dict(),
            "optimizer": self.optimizer.state_dict() if self.optimizer is not None else {},
        }
        if self.teacher.joint:
            state["target"] = self.teacher.model.state_dict()
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def _restore(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.teacher.device, weights_only=True)
        self.method.net.load_state_dict(state["net"])
        if self.teacher.joint:
            self.teacher.model.load_state_dict(state["target"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        journal = [entry for entry in read_journal(self.folder) if entry["step"] <= self.step]
        (self.folder / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in journal))

    def _log(self, entry: dict[str, Any]) -> None:
        if not entry:
            return
        with open(self.folder / "journal.jsonl", "a") as file:
            file.write(json.dumps({"step": self.step, **entry}) + "\n")


def read_journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def mean_tau(by_task: dict[str, Sums]) -> dict[str, float]:
    """Mean tau over the tasks, greedy and at temperature 1. A tau that was measured on no task is left out."""
    by_name = {
        "tau_greedy": [sums.greedy for sums in by_task.values()],
        "tau_sampled": [sums.sampled for sums in by_task.values()],
    }
    measured = {name: [tau for tau in taus if tau is not None] for name, taus in by_name.items()}
    return {name: sum(taus) / len(taus) for name, taus in measured.items() if taus}
