"""Experiment 2: does the prophet objective help or hurt the main model's loss?

A model is trained from scratch on text. The heads predict tokens further ahead from its last hidden states, and their
loss is added to the model's. Variants: a transformer layer with heads, one matrix for each head, and no head at all.
Runs of one seed have the same first weights of the model and the same batches.
"""

from __future__ import annotations

from pathlib import Path

import torch
from settings import Sizes
from small_model import Figures, NoDrafter, TrainingRun, answers, new_model, parameters, save_model
from text_data import TextData

from slipstream.train.method import Method
from slipstream.train.methods.heads import ProphetMethod
from slipstream.train.options import ProphetTrainOptions
from slipstream.train.teacher import Teacher

VARIANTS = ("none", "linear", "transformer")


def base_folder(out: Path, seed: int) -> Path:
    """The model without heads; experiment 1 uses it as its frozen target."""
    return out / "models" / f"base-{seed}"


def run(variant: str, seed: int, data: TextData, sizes: Sizes, out: Path, device: str) -> Figures:
    model = new_model(sizes, seed, device)
    teacher = Teacher(model, joint=True, text_labels=True)
    method = _method(variant, teacher, sizes)
    training = TrainingRun(method, teacher, data, sizes, seed, out / "work" / f"objective-{variant}-{seed}")
    prompts = data.prompts(sizes.held_prompts, sizes.prompt, held=True)

    def evaluate() -> Figures:
        if variant == "none":
            return training.text_loss()
        return training.text_loss() | training.acceptance(answers(teacher, prompts, sizes.answer, seed))

    curve = training.run(data.train, evaluate)
    if variant == "none":
        save_model(model, data, base_folder(out, seed))
    return {"curve": curve, "parameters": parameters(model), "head_parameters": parameters(method.net)}


def _method(variant: str, teacher: Teacher, sizes: Sizes) -> Method:
    if variant == "none":
        return NoDrafter()
    options = ProphetTrainOptions(
        heads=sizes.depth, focus=0.0, projection=variant, window=sizes.window, intermediate=sizes.intermediate
    )
    return ProphetMethod(teacher, torch.arange(sizes.vocab), options)
