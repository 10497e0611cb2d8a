"""Gradient steps that can be cut off anywhere: one seed gives the same batches, one checkpoint the same state."""

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

from slipstream.train.corpus import Batch, Corpus
from slipstream.train.method import Method
from slipstream.train.tau import Sums, measure
from slipstream.train.teacher import Teacher

DEPTH = 5  # of the chain that tau is told for
LOOK = 20  # steps between two looks at the loss
SAVE = 60.0  # seconds between two checkpoints


@dataclass(frozen=True)
class Schedule:
    """Steps of about `tokens` tokens each; the rate climbs over `warmup` steps and falls along a cosine to a tenth."""

    steps: int
    tokens: int
    rate: float
    warmup: int
    seed: int

    def at(self, step: int) -> float:
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


class Loop:
    """Trains a method on a corpus; `folder` holds its checkpoint and its journal."""

    def __init__(self, method: Method, teacher: Teacher, schedule: Schedule, folder: Path) -> None:
        self.method, self.teacher, self.schedule, self.folder = method, teacher, schedule, folder
        fused = teacher.device.type == "cuda"
        parameters = [p for p in method.net.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            parameters, lr=schedule.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=fused
        )
        self.step, self._whole = 0, True
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
        self, corpus: Corpus, held: Corpus, every: int, until: float, told: Callable[[int, dict[str, Any]], None]
    ) -> None:
        """Train until the last step or the time `until`; evaluate every so many steps and at the end."""
        saved, losses = time.monotonic(), list[torch.Tensor]()
        batches = islice(corpus.batches(self.schedule.tokens, self.schedule.seed), self.step, None)
        try:
            for batch in self._moved(corpus, batches):
                if self.done or time.monotonic() > until:
                    break
                losses.append(self._learn(batch))
                entry: dict[str, Any] = {}
                if self.step % LOOK == 0 or self.done:
                    entry["loss"] = float(torch.stack(losses).mean())
                    losses.clear()
                if self.step % every == 0 or self.done:
                    entry |= flat(self.evaluate(held))
                if entry:
                    self._note(entry)
                told(self.step, entry)
                if time.monotonic() - saved > SAVE:
                    self.save()
                    saved = time.monotonic()
        finally:  # Ctrl-C included; a step that was cut in two is not kept
            if self._whole:
                self.save()

    def _moved(self, corpus: Corpus, batches: Iterator[list[int]]) -> Iterator[Batch]:
        for samples in batches:
            yield corpus.batch(samples).to(self.teacher.device)

    def _learn(self, batch: Batch) -> torch.Tensor:
        self._whole = False
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.at(self.step)
        kind = self.teacher.device.type
        lesson = self.teacher.lesson(batch, self.method.layers)
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            loss = self.method.loss(batch, lesson)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.method.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self._whole = True
        return loss.detach()

    def evaluate(self, held: Corpus, depth: int = DEPTH) -> dict[str, Sums]:
        kind = self.teacher.device.type
        batches = (held.batch(samples) for samples in held.epoch(self.schedule.tokens, 0))
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            return measure(self.method, self.teacher, batches, depth)

    def save(self) -> None:
        partial = self.checkpoint.with_suffix(".partial")
        state = {
            "step": self.step,
            "net": self.method.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def _restore(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.teacher.device, weights_only=True)
        self.method.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        journal = [entry for entry in read_journal(self.folder) if entry["step"] <= self.step]
        (self.folder / "journal.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in journal))

    def _note(self, entry: dict[str, Any]) -> None:
        with open(self.folder / "journal.jsonl", "a") as file:
            file.write(json.dumps({"step": self.step, **entry}) + "\n")


def read_journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def flat(by_task: dict[str, Sums]) -> dict[str, float]:
    """Mean tau over tasks, greedy and at temperature 1."""
    greedy = [sums.greedy for sums in by_task.values() if sums.cycles]
    sampled = [sums.sampled for sums in by_task.values() if sums.bases]
    means = {"tau_greedy": greedy, "tau_sampled": sampled}
    return {name: sum(values) / len(values) for name, values in means.items() if values}
