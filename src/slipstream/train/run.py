"""A training from prompts to a drafter's folder: the target answers, the drafter learns, the folder is saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from slipstream.core.array_types import Int, Tensor
from slipstream.models.sources.catalog import load_model, load_text, resolve
from slipstream.models.sources.folder import weights_sha256
from slipstream.models.sources.load import ModelFiles
from slipstream.models.text.codec import TextCodec
from slipstream.models.weights.precision import choose_device
from slipstream.train.answers import (
    HELD_OUT,
    Progress,
    answer_folder,
    collect_answers,
    given_answers,
    new_answers,
)
from slipstream.train.corpus import Corpus
from slipstream.train.loop import Schedule, TrainingLoop, mean_tau
from slipstream.train.method import Method, methods
from slipstream.train.options import CommonOptions
from slipstream.train.prompts import TrainingPrompt, fingerprint, read_prompts, split
from slipstream.train.settings import check_answers, check_resume, parse_options
from slipstream.train.tau import Sums
from slipstream.train.teacher import Teacher
from slipstream.train.warm_start import TrainedDrafter, find_trained


@dataclass(frozen=True)
class TrainingResult:
    """A trained drafter and what was measured of it."""

    folder: Path
    finished: bool  # False: the time was up before the last step, and the same command resumes
    parameters: int
    weights_read: int  # for one drafted token
    target_read: int  # weights that the target reads for one token
    tasks: dict[str, Sums]
    answer_tokens: int

    @property
    def cost(self) -> float:
        """Weights read for a drafted token, as a share of those the target reads for a token."""
        return self.weights_read / self.target_read


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
    on_progress: Progress = lambda *_: None,
    about: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Train a drafter for `model` into `folder`, or resume the training that is there."""
    if minutes is not None and not minutes > 0:
        raise ValueError(f"minutes is {minutes}; it must be above 0")
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    kind = methods.get(method)
    common, own = parse_options(kind, options)
    target = resolve(model, trust_remote_code=trust_remote_code)
    text = load_text(target)
    start = find_trained(common.start, method, target)
    if start:
        common, own = parse_options(kind, start.with_sizes(options, kind))
    if common.joint and not kind.joint:
        raise ValueError(f"joint is 1, and {method} trains no weights; leave joint out")
    prompts = read_prompts(data, text, common.prompt, common.answer if common.joint else 0)
    work = folder / "work"
    answers, identity = answer_folder(common.answers, work), _identity(method, target, common, own, start, prompts)
    if answers != work:
        check_answers(answers, identity)
    check_resume(work, identity)
    place = choose_device(device)
    dtype = "bfloat16" if place.startswith("cuda") and not common.joint else "float32"
    teacher = Teacher(load_model(target, dtype, place), joint=bool(common.joint))
    # a drafter that does not fit is refused before any answer is generated
    student = _warm_started(kind, teacher, own, start) if start else None
    ends = frozenset(end for end in text.ends if end < len(teacher.output))
    corpus, held = _answers(answers, prompts, teacher, ends, common, on_progress)
    student = student or _fresh(kind, teacher, own, common, corpus)
    student.overlap = common.overlap
    loop = _train(student, teacher, common, work, corpus, held, until, on_progress)
    if common.joint:
        target = save_target(teacher.model, text, folder / "target")
    outcome = TrainingResult(
        folder,
        loop.done,
        sum(p.numel() for p in student.net.parameters()),
        student.weights_read,
        _weights_read(teacher),
        loop.evaluate(held()),
        corpus.answer_tokens,
    )
    student.save(folder, _about(target, outcome, common, own, data, start) | dict(about or {}), common.precision)
    return outcome


def _answers(
    folder: Path,
    prompts: Sequence[TrainingPrompt],
    teacher: Teacher,
    ends: frozenset[int],
    common: CommonOptions,
    on_progress: Progress,
) -> tuple[Corpus, Callable[[], Corpus]]:
    """The answers to train on, and a function for the held-out answers of the target as it is when it is called."""
    if not common.joint:
        corpus, held = collect_answers(folder, prompts, teacher, ends, common, on_progress)
        return corpus, lambda: held
    train_prompts, held_prompts = split(prompts, HELD_OUT)
    return given_answers(train_prompts), lambda: new_answers(held_prompts, teacher, ends, common)


def save_target(model: Any, text: TextCodec, folder: Path) -> ModelFiles:
    """Write the trained target as a folder, and describe it."""
    model.save_pretrained(folder)
    text.huggingface.save_pretrained(folder)
    return replace(resolve(str(folder)), sha256=weights_sha256(folder))


def _warm_started(kind: Any, teacher: Teacher, own: Any, start: TrainedDrafter) -> Method:
    """A network with the weights and the draft vocabulary of a trained one."""
    start.check_ids(len(teacher.output))
    student: Method = kind(teacher, start.ids, own)
    start.copy_weights_to(student)
    return student


def _fresh(kind: Any, teacher: Teacher, own: Any, common: CommonOptions, corpus: Corpus) -> Method:
    """A network with the method's first weights; it drafts the tokens that the target emits most often."""
    torch.manual_seed(common.seed)
    student: Method = kind(teacher, frequent(corpus, common.vocab, len(teacher.output)), own)
    first = corpus.batch(next(corpus.batches(common.tokens, common.seed))).to(teacher.device)
    with torch.no_grad():
        student.prepare(teacher.read(first, student.layers), first.supervised)
    return student


def _train(
    student: Method,
    teacher: Teacher,
    common: CommonOptions,
    work: Path,
    corpus: Corpus,
    held: Callable[[], Corpus],
    until: float,
    on_progress: Progress,
) -> TrainingLoop:
    steps = common.steps
    schedule = Schedule(steps, common.tokens, common.rate, max(1, steps // 40), common.seed, common.target_rate)
    loop = TrainingLoop(student, teacher, schedule, work)
    loop.run(
        corpus,
        lambda: mean_tau(loop.evaluate(held())),
        max(1, steps // 10),
        until,
        lambda step, figures: on_progress("training", step, steps, figures),
    )
    return loop


def frequent(corpus: Corpus, count: int, vocab: int) -> Int[Tensor, " draft_vocab"]:
    """The tokens that the target emits most often, in the order of their ids."""
    position = torch.arange(len(corpus.tokens)) - corpus.offset[:-1].repeat_interleave(corpus.lengths)
    answered = position >= corpus.prompt_length.repeat_interleave(corpus.lengths)
    counts = torch.bincount(corpus.tokens[answered].long(), minlength=vocab)
    return counts.argsort(descending=True, stable=True)[: min(count, vocab)].sort().values


def _weights_read(teacher: Teacher) -> int:
    """Parameters that the target reads for one token: all but the unused rows of a separate input matrix."""
    sizes = {id(p): p.numel() for p in teacher.model.parameters()}
    tied = teacher.embedding.weight is teacher.output
    return int(sum(sizes.values()) - (0 if tied else teacher.embedding.weight.numel()))


def _settings(common: CommonOptions, own: Any) -> dict[str, Any]:
    """All options but the folder of the answers, which changes nothing about them."""
    options = asdict(common) | asdict(own)
    del options["answers"]
    return options


def _identity(
    method: str,
    target: ModelFiles,
    common: CommonOptions,
    own: Any,
    start: TrainedDrafter | None,
    prompts: Sequence[TrainingPrompt],
) -> dict[str, Any]:
    """What must be equal for a training to resume. The drafter it started from is identified by its weights."""
    return {
        "method": method,
        "model": target.sha256 or target.name,
        **_settings(common, own),
        "start": start.sha256 if start else None,
        "prompts": fingerprint(prompts),
    }


def _about(
    target: ModelFiles,
    outcome: TrainingResult,
    common: CommonOptions,
    own: Any,
    data: Sequence[Path],
    start: TrainedDrafter | None,
) -> dict[str, Any]:
    """What the folder's configuration says besides the network."""
    began = {"start": f"{start.folder.name}, sha256 {start.sha256}"} if start else {}
    return {
        "target": target.name,
        "target_sha256": target.sha256,
        "training": _settings(common, own) | {"data": [path.name for path in data]} | began,
        "answered_tokens": outcome.answer_tokens,
        "tau": {
            task: {
                name: round(tau, 3)
                for name, tau in (("greedy", sums.greedy), ("sampled", sums.sampled))
                if tau is not None
            }
            for task, sums in sorted(outcome.tasks.items())
        },
    }
