"""From prompts to a folder that drafts: the target answers, the drafter learns, and what came of it is written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.models.sources.catalog import load_model, load_text, resolve
from slipstream.models.sources.load import ModelFiles
from slipstream.models.weights.precision import choose_device
from slipstream.train.corpus import Corpus, collect, shards
from slipstream.train.flight import respond
from slipstream.train.loop import Loop, Schedule
from slipstream.train.method import Method, methods
from slipstream.train.prompts import Prompt, read_prompts, split
from slipstream.train.settings import Training, agree, sort_options
from slipstream.train.start import Start, find_start
from slipstream.train.tau import Sums
from slipstream.train.teacher import Teacher

Told = Callable[[str, int, int, dict[str, Any]], None]
"""Phase, how far it is, how far it goes, and what is new."""


@dataclass(frozen=True)
class Outcome:
    """A trained drafter and what it is worth."""

    folder: Path
    finished: bool  # False: the time was up, and the same command goes on
    parameters: int
    read: int  # parameters read for one drafted token
    target: int  # parameters the target reads for one token
    tasks: dict[str, Sums]
    answers: int


def train(
    method: str,
    model: str,
    data: Sequence[Path],
    folder: Path,
    options: Mapping[str, Any],
    *,
    device: str = "auto",
    trust_remote_code: bool = False,
    minutes: float | None = None,
    told: Told = lambda *_: None,
    about: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train a drafter for `model` into `folder`, or go on with what is there."""
    began = time.monotonic()
    kind = methods.get(method)
    settings, own = sort_options(kind, options)
    found = resolve(model, trust_remote_code=trust_remote_code)
    text = load_text(found)
    start = find_start(settings.start, method, found)
    if start:
        settings, own = sort_options(kind, start.complete(options, kind))
    work = folder / "work"
    agree(work, _identity(method, found, settings, own, start))
    prompts, held = split(read_prompts(data, text, settings.prompt), 0.05)
    place = choose_device(device)
    dtype = "bfloat16" if place.startswith("cuda") else "float32"
    teacher = Teacher(load_model(found, dtype, place))
    student = _begun(kind, teacher, own, start) if start else None  # what does not fit is refused before the answers
    ends = frozenset(end for end in text.ends if end < len(teacher.output))
    corpora = [
        _answers(work / name, some, teacher, ends, settings, seed, name, told)
        for seed, (name, some) in enumerate((("answers", prompts), ("held", held)), settings.seed)
    ]
    student = student or _fresh(kind, teacher, own, settings, corpora[0])
    schedule = Schedule(settings.steps, settings.tokens, settings.rate, max(1, settings.steps // 40), settings.seed)
    loop = _trained(student, teacher, schedule, work, corpora, began, minutes, told)
    tasks = loop.evaluate(corpora[1])
    outcome = Outcome(
        folder,
        loop.done,
        sum(p.numel() for p in student.net.parameters()),
        student.read,
        _reads(teacher),
        tasks,
        corpora[0].answered,
    )
    student.save(folder, _about(found, outcome, settings, own, data, start) | dict(about or {}), settings.precision)
    return outcome


def _begun(kind: Any, teacher: Teacher, own: Any, start: Start) -> Method:
    """A network with the weights and the draft vocabulary of a trained one."""
    start.check_ids(len(teacher.output))
    student: Method = kind(teacher, start.ids, own)
    start.lend(student)
    return student


def _fresh(kind: Any, teacher: Teacher, own: Any, settings: Training, corpus: Corpus) -> Method:
    """A network as its method begins it, and the tokens the target says most often."""
    torch.manual_seed(settings.seed)
    student: Method = kind(teacher, frequent(corpus, settings.vocab, len(teacher.output)), own)
    first = corpus.batch(next(corpus.batches(settings.tokens, settings.seed))).to(teacher.device)
    student.prepare(teacher.lesson(first, student.layers), first.supervised)
    return student


def _trained(
    student: Method,
    teacher: Teacher,
    schedule: Schedule,
    work: Path,
    corpora: Sequence[Corpus],
    began: float,
    minutes: float | None,
    told: Told,
) -> Loop:
    loop = Loop(student, teacher, schedule, work)
    until = began + 60 * minutes if minutes else float("inf")
    every = max(1, schedule.steps // 10)
    loop.run(corpora[0], corpora[1], every, until, lambda step, new: told("training", step, schedule.steps, new))
    return loop


def _answers(
    folder: Path,
    prompts: Sequence[Prompt],
    teacher: Teacher,
    ends: frozenset[int],
    settings: Training,
    seed: int,
    name: str,
    told: Told,
) -> Corpus:
    rows = settings.rows or (8192 if teacher.device.type == "cuda" else 16)
    work = shards(prompts, settings.warmth, rows, seed)

    def answer(some: Sequence[Prompt], warm: Sequence[float], noise: int) -> list[list[int]]:
        lines = [prompt.tokens for prompt in some]
        return respond(teacher.model, teacher.anatomy, lines, warm, ends, settings.answer, noise)

    return collect(folder, work, answer, lambda done: told(name, done, len(work), {}))


def frequent(corpus: Corpus, count: int, vocab: int) -> Int[Tensor, " draft_vocab"]:
    """The tokens the target says most often, in order of their ids."""
    place = torch.arange(len(corpus.tokens)) - corpus.offset[:-1].repeat_interleave(corpus.lengths)
    answered = place >= corpus.prompt.repeat_interleave(corpus.lengths)
    seen = torch.bincount(corpus.tokens[answered].long(), minlength=vocab)
    return seen.argsort(descending=True, stable=True)[: min(count, vocab)].sort().values


def _reads(teacher: Teacher) -> int:
    """Parameters the target reads for one token: all but the rows of the input matrix it does not look up."""
    every = {id(p): p.numel() for p in teacher.model.parameters()}
    tied = teacher.embedding.weight is teacher.output
    return int(sum(every.values()) - (0 if tied else teacher.embedding.weight.numel()))


def _identity(method: str, found: ModelFiles, settings: Training, own: Any, start: Start | None) -> dict[str, Any]:
    """What must be the same for a training to go on; a drafter it started from is known by its weights."""
    began = {"start": start.sha256 if start else None}
    return {"method": method, "model": found.sha256 or found.name, **asdict(settings), **asdict(own), **began}


def _about(
    found: ModelFiles, outcome: Outcome, settings: Training, own: Any, data: Sequence[Path], start: Start | None
) -> dict[str, Any]:
    began = {"start": f"{start.folder.name}, sha256 {start.sha256}"} if start else {}
    return {
        "target": found.name,
        "target_sha256": found.sha256,
        "training": asdict(settings) | asdict(own) | {"data": [path.name for path in data]} | began,
        "answered_tokens": outcome.answers,
        "tau": {
            task: {"greedy": round(sums.greedy, 3), "sampled": round(sums.sampled, 3)}
            for task, sums in sorted(outcome.tasks.items())
        },
    }
