"""Builds the stages of a draft, the last one first: each stage drafts for the model of the stage after it."""

from __future__ import annotations

from slipstream.core.interfaces import Drafter, TargetModel
from slipstream.drafters.build import build_drafter
from slipstream.drafters.staged.drafter import Staged
from slipstream.drafters.staged.options import StagedOptions


def build_stages(target: TargetModel, options: StagedOptions) -> Drafter:
    """The staged drafter of a target."""
    middles: list[Drafter] = []
    drafts_for = target
    for stage, before in zip(options.stages[:0:-1], options.stages[-2::-1], strict=True):
        middle = build_drafter(stage.name, drafts_for, stage.options)
        stage_target = middle.as_target(drafts_for)
        if stage_target is None:
            raise ValueError(
                f"{before.name} cannot draft for {stage.name}: every stage but the first verifies tokens, so it must "
                "be a draft model"
            )
        middles.append(middle)
        drafts_for = stage_target
    drafter = build_drafter(options.stages[0].name, drafts_for, options.stages[0].options)
    for number, middle in enumerate(reversed(middles), 1):
        drafter = Staged(drafter, middle, target.vocab, options.inner_depth, options.shape, number)
    return drafter
