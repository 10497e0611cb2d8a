"""Experiment 4: plain draft models of one parameter budget, from wide and shallow to narrow and deep.

The target and all draft models are trained from scratch on the same text. The width of the feed-forward part is chosen
so that all draft models have the same number of parameters, embeddings included.
"""

from __future__ import annotations

from pathlib import Path

from settings import Sizes
from small_model import Figures, NoDrafter, TrainingRun, new_model, parameters, save_model
from text_data import TextData

from slipstream.train.teacher import Teacher

TARGET = "target"


def variants(sizes: Sizes) -> tuple[str, ...]:
    return (TARGET, *(f"{layers}x{hidden}" for layers, hidden in sizes.shapes))


def model_folder(out: Path, variant: str, seed: int) -> Path:
    return out / "models" / f"shape-{variant}-{seed}"


def run(variant: str, seed: int, data: TextData, sizes: Sizes, out: Path, device: str) -> Figures:
    model = new_model(sizes, seed, device, **_shape(variant, sizes))
    training = TrainingRun(
        NoDrafter(), Teacher(model, joint=True), data, sizes, seed, out / "work" / f"shape-{variant}-{seed}"
    )
    curve = training.run(data.train, training.text_loss)
    save_model(model, data, model_folder(out, variant, seed))
    return {"curve": curve, "parameters": parameters(model), "shape": _shape(variant, sizes)}


def _shape(variant: str, sizes: Sizes) -> dict[str, int]:
    """Sizes of the target, or of a draft model such as 4x224."""
    if variant == TARGET:
        hidden = sizes.target_hidden
        return {
            "layers": sizes.target_layers,
            "hidden": hidden,
            "heads": hidden // 32 or 1,
            "intermediate": 11 * hidden // 4,
        }
    layers, hidden = (int(part) for part in variant.split("x"))
    attention, norms = 4 * hidden * hidden, 2 * hidden
    rest = sizes.draft_budget - sizes.vocab * hidden - hidden - layers * (attention + norms)
    width = max(8, round(rest / (3 * hidden * layers) / 8) * 8)
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": hidden // 16 if hidden < 64 else hidden // 32,
        "intermediate": width,
    }
