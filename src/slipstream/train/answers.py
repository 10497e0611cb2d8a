"""The target's answers of a training: the folder that holds them, and answers that are not there yet.

In joint training the target learns the answers in the data instead. It changes, so held-out prompts are answered anew
for every evaluation, and nothing is stored.

Decoding answers takes most of the time of a training. Several trainings can use the same ones, `-o answers=FOLDER`, if
their target, prompts and answer settings are equal (`settings.check_answers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from slipstream.train.batch_decode import generate_answers
from slipstream.train.corpus import Answer, Corpus, Shard, collect, joined, pack, shards
from slipstream.train.options import CommonOptions
from slipstream.train.prompts import TrainingPrompt, split
from slipstream.train.teacher import Teacher

HELD_OUT = 0.05  # share of the prompts
LATER = 1 << 40  # added to a seed for every prompt that a part of a batch begins after; no batch has such a seed
PHASES = {"answers": "answers to train on", "held": "held-out answers"}

Progress = Callable[[str, int, int, dict[str, Any]], None]
"""Called with the phase, the count done, the total, and new figures."""


def answer_folder(name: str, work: Path) -> Path:
    """The folder of the answers: `work`, the training's own, unless the user names another training or folder."""
    folder = Path(name).expanduser()
    return (folder / "work" if (folder / "work").is_dir() else folder) if name else work


def collect_answers(
    folder: Path,
    prompts: Sequence[TrainingPrompt],
    teacher: Teacher,
    ends: frozenset[int],
    common: CommonOptions,
    on_progress: Progress,
) -> tuple[Corpus, Corpus]:
    """The target's answers to the prompts to train on and to the held-out ones. Answers on disk are not made again."""
    answer = _answering(teacher, ends, common)

    def collected(name: str, share: Sequence[TrainingPrompt], seed: int) -> Corpus:
        work = shards(share, common.temperature_list, _rows(teacher, common), seed)
        total = sum(len(shard.prompts) for shard in work)
        return collect(folder / name, work, answer, lambda done: on_progress(PHASES[name], done, total, {}))

    train, held = split(prompts, HELD_OUT)
    return collected("answers", train, common.seed), collected("held", held, common.seed + 1)


def given_answers(prompts: Sequence[TrainingPrompt]) -> Corpus:
    """The prompts with the answers in the data."""
    shard = Shard(list(prompts), [0.0] * len(prompts), 0)
    return joined([pack(shard, [prompt.answer for prompt in prompts])], tuple(prompt.task for prompt in prompts))


def new_answers(
    prompts: Sequence[TrainingPrompt], teacher: Teacher, ends: frozenset[int], common: CommonOptions
) -> Corpus:
    """The answers of the target as it is now. Nothing is stored."""
    answer = _answering(teacher, ends, common)
    work = shards(prompts, common.temperature_list, _rows(teacher, common), common.seed + 1)
    parts = [pack(shard, answer(shard.prompts, shard.temperatures, shard.seed)) for shard in work]
    return joined(parts, tuple(prompt.task for shard in work for prompt in shard.prompts))


def _rows(teacher: Teacher, common: CommonOptions) -> int:
    return common.rows or (8192 if teacher.device.type == "cuda" else 16)


def _answering(teacher: Teacher, ends: frozenset[int], common: CommonOptions) -> Answer:
    """A function that answers prompts with the target: all of them together, or in halves where they do not fit into
    the memory of a GPU."""

    def answer(batch: Sequence[TrainingPrompt], temperatures: Sequence[float], noise: int) -> list[list[int]]:
        tokens = [prompt.tokens for prompt in batch]
        try:
            return generate_answers(teacher.model, teacher.anatomy, tokens, temperatures, ends, common.answer, noise)
        except torch.cuda.OutOfMemoryError:
            if len(batch) == 1:
                raise
        torch.cuda.empty_cache()  # here, since the error held on to what did not fit
        half = len(batch) // 2
        first = answer(batch[:half], temperatures[:half], noise)
        return first + answer(batch[half:], temperatures[half:], noise + half * LATER)

    return answer
