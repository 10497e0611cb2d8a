"""The target's answers of a training: the folder that holds them, and answers that are not there yet.

Decoding answers takes most of the time of a training. Several trainings can use the same ones, `-o answers=FOLDER`, if
their target, prompts and answer settings are equal (`settings.check_answers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slipstream.train.batch_decode import generate_answers
from slipstream.train.corpus import Corpus, collect, shards
from slipstream.train.options import CommonOptions
from slipstream.train.prompts import TrainingPrompt, split
from slipstream.train.teacher import Teacher

HELD_OUT = 0.05  # share of the prompts
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
    rows = common.rows or (8192 if teacher.device.type == "cuda" else 16)

    def answer(batch: Sequence[TrainingPrompt], temperatures: Sequence[float], noise: int) -> list[list[int]]:
        tokens = [prompt.tokens for prompt in batch]
        return generate_answers(teacher.model, teacher.anatomy, tokens, temperatures, ends, common.answer, noise)

    def collected(name: str, share: Sequence[TrainingPrompt], seed: int) -> Corpus:
        work = shards(share, common.temperature_list, rows, seed)
        total = sum(len(shard.prompts) for shard in work)
        return collect(folder / name, work, answer, lambda done: on_progress(PHASES[name], done, total, {}))

    train, held = split(prompts, HELD_OUT)
    return collected("answers", train, common.seed), collected("held", held, common.seed + 1)
