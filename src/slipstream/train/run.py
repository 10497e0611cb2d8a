"""From prompts to a folder that drafts: the target answers, the drafter learns, and what came of it is written down."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from slipstream.core.shapes import Int, Tensor
from slipstream.models.catalog import load_model, load_text, resolve
from slipstream.models.load import Found
from slipstream.train.corpus import Corpus, collect, shards
from slipstream.train.flight import respond
from slipstream.train.loop import Loop, Schedule
from slipstream.train.method import Method, methods
from slipstream.train.prompts import Prompt, read_prompts, split
from slipstream.train.tau import Sums
from slipstream.train.teacher import Teacher

Told = Callable[[str, int, int, dict[str, Any]], None]
"""Phase, how far it is, how far it goes, and what is new."""


@dataclass(frozen=True)
class Training:
    """What holds for every method."""

    steps: int = 4000
    tokens: int = 16384  # in a batch
    rate: float = 1e-3
    vocab: int = 8192  # tokens that can be drafted: the ones the target says most often
    answer: int = 192  # longest answer
    prompt: int = 448  # longest prompt
    temperatures: str = "0,1"  # each prompt is answered at each
    rows: int = 0  # prompts answered at once; chosen by the device if 0
    seed: int = 0
    precision: str = "int8"  # of the stored weights: int8 or bf16

    def __post_init__(self) -> None:
        for name in ("steps", "tokens", "vocab", "answer", "prompt"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.precision not in ("int8", "bf16"):
            raise ValueError(f"precision is {self.precision!r}; it must be int8 or bf16")
        _ = self.warmth

    @property
    def warmth(self) -> list[float]:
        try:
            found = [float(part) for part in self.temperatures.split(",")]
        except ValueError as error:
            raise ValueError(f"temperatures is {self.temperatures!r}; write numbers such as 0,1") from error
        if min(found) < 0:
            raise ValueError(f"temperatures is {self.temperatures!r}; none may be below 0")
        return found


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
    minutes: float | None = None,
    told: Told = lambda *_: None,
    about: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train a drafter for `model` into `folder`, or go on with what is there."""
    began = time.monotonic()
    kind = methods.get(method)
    settings, own = _settings(kind, options)
    found, text = resolve(model), load_text(resolve(model))
    work = folder / "work"
    _agree(work, {"method": method, "model": found.sha256 or found.name, **asdict(settings), **asdict(own)})
    prompts, held = split(read_prompts(data, text, settings.prompt), 0.05)
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    dtype = "bfloat16" if place.startswith("cuda") else "float32"
    teacher = Teacher(load_model(found, dtype, place))
    ends = frozenset(end for end in text.ends if end < len(teacher.output))
    corpora = [
        _answers(work / name, some, teacher, ends, settings, seed, name, told)
        for seed, (name, some) in enumerate((("answers", prompts), ("held", held)), settings.seed)
    ]
    torch.manual_seed(settings.seed)
    student = kind(teacher, frequent(corpora[0], settings.vocab, len(teacher.output)), own)  # type: ignore[call-arg]
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
    student.save(folder, _about(found, outcome, settings, own, data, about), settings.precision)
    return outcome


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
    first = corpora[0].batch(next(corpora[0].batches(schedule.tokens, schedule.seed))).to(teacher.device)
    student.prepare(teacher.lesson(first, student.layers), first.supervised)
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


def _settings(kind: Any, options: Mapping[str, Any]) -> tuple[Training, Any]:
    """Options sorted to those of every method and the method's own; unknown ones are refused by name."""
    own = {f.name: f for f in fields(kind.config)}
    common = {f.name: f for f in fields(Training)}
    assert own.keys().isdisjoint(common), "a method's options must not hide those of every method"
    values: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for key, value in options.items():
        field, place = (own[key], values[1]) if key in own else (common.get(key), values[0])
        if field is None:
            raise ValueError(f"{kind.name} has no option {key!r}; it takes {', '.join([*own, *common])}")
        try:
            place[key] = {"int": int, "float": float}.get(str(field.type), str)(value)
        except ValueError as error:
            raise ValueError(f"option {key} of {kind.name} is {value!r}; it must be of type {field.type}") from error
    return Training(**values[0]), kind.config(**values[1])


def _agree(work: Path, wanted: dict[str, Any]) -> None:
    """A folder goes on with the settings it began with."""
    path = work / "settings.json"
    if path.exists():
        began = json.loads(path.read_text())
        changed = sorted(key for key in wanted.keys() | began.keys() if wanted.get(key) != began.get(key))
        if changed:
            names = ", ".join(f"{key} was {began.get(key)!r}" for key in changed)
            raise ValueError(f"{work.parent} holds a training with other settings ({names}); name a new folder")
    work.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(wanted, indent=2))


def _about(
    found: Found, outcome: Outcome, settings: Training, own: Any, data: Sequence[Path], more: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "target": found.name,
        "target_sha256": found.sha256,
        "training": asdict(settings) | asdict(own) | {"data": [path.name for path in data]},
        "answered_tokens": outcome.answers,
        "tau": {
            task: {"greedy": round(sums.greedy, 3), "sampled": round(sums.sampled, 3)}
            for task, sums in sorted(outcome.tasks.items())
        },
        **(more or {}),
    }
