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
    names = options.names
    for name, before in zip(names[:0:-1], names[-2::-1], strict=True):
        middle = build_drafter(name, drafts_for, options.of_stage(name))
        stage_target = middle.as_target(drafts_for)
        if stage_target is None:
            raise ValueError(
                f"{before} cannot draft for {name}: every stage but the first verifies tokens, so it must "
                "be a draft model with the target's tokenizer"
            )
        middles.append(middle)
        drafts_for = stage_target
    drafter = build_drafter(names[0], drafts_for, options.of_stage(names[0]))
    for number, middle in enumerate(reversed(middles), 1):
        drafter = Staged(drafter, middle, target.vocab, options.inner_depth, options.shape, number)
    return drafter
