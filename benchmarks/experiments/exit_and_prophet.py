"""Experiment 1: prophet against early exit, with the same number of parameters, on the answers of one frozen model.

The target is the model of experiment 2 without heads. Both networks start from random weights. `prophet` reads the last
hidden states and predicts several tokens in one pass. `early_exit` predicts one token from the states after the first
layers, which run again for every drafted token and are not repeated by the score pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from objective import base_folder
from settings import Sizes
from small_model import Figures, TrainingRun, answers, parameters
from text_data import TextData
from transformers import LlamaForCausalLM

from slipstream.train.method import Method
from slipstream.train.methods.early_exit import EarlyExitMethod
from slipstream.train.methods.heads import ProphetMethod
from slipstream.train.options import EarlyExitTrainOptions, ProphetTrainOptions
from slipstream.train.teacher import Teacher

VARIANTS = ("early_exit", "prophet")


def head_folder(out: Path, variant: str, seed: int) -> Path:
    return out / "models" / f"{variant}-{seed}"


def run(variant: str, seed: int, data: TextData, sizes: Sizes, out: Path, device: str) -> Figures:
    model: Any = LlamaForCausalLM.from_pretrained(base_folder(out, seed))
    teacher = Teacher(model.to(device, torch.bfloat16 if device == "cuda" else torch.float32))
    corpus = answers(teacher, data.prompts(sizes.prompts, sizes.prompt, held=False), sizes.answer, seed)
    held = answers(teacher, data.prompts(sizes.held_prompts, sizes.prompt, held=True), sizes.answer, seed + 1)
    torch.manual_seed(seed)
    method = _method(variant, teacher, sizes)
    training = TrainingRun(method, teacher, data, sizes, seed, out / "work" / f"{variant}-{seed}")
    first = corpus.batch(next(corpus.batches(sizes.tokens, seed))).to(teacher.device)
    method.prepare(teacher.read(first, method.layers), first.supervised)
    curve = training.run(corpus, lambda: training.acceptance(held))
    method.save(head_folder(out, variant, seed), {}, "bf16")
    return {
        "curve": curve,
        "parameters": parameters(model),
        "head_parameters": parameters(method.net),
        "weights_read": method.weights_read,
    }


def _method(variant: str, teacher: Teacher, sizes: Sizes) -> Method:
    ids = torch.arange(sizes.vocab)
    options = EarlyExitTrainOptions(layer=sizes.exit_layer, intermediate=sizes.exit_intermediate, window=sizes.window)
    early_exit = EarlyExitMethod(teacher, ids, options)
    if variant == "early_exit":
        return early_exit

    def prophet(intermediate: int) -> ProphetMethod:
        sized = ProphetTrainOptions(heads=sizes.depth, window=sizes.window, intermediate=intermediate)
        return ProphetMethod(teacher, ids, sized)

    # a width of 1 costs three rows or columns of the hidden size
    missing = parameters(early_exit.net) - parameters(prophet(8).net)
    return prophet(max(8, 8 + round(missing / (3 * sizes.hidden))))
