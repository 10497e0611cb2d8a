"""The device form of early exit: a chain in each row, drafted by the target's first layers and a head.

A step runs the first layers over one token of each row and writes their keys and values to the target's own cache. The
score pass resumes after them, so no layer runs twice for a token. A trained head attends to the stored states of the
last committed positions, which are read again in every cycle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import DeviceDraft, DeviceDrafter, DraftSteps, inverse
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout, lay_steps, part
from slipstream.kernels.gpu.decoder import Held
from slipstream.models.run.gpu.passes import GpuPasses

if TYPE_CHECKING:
    from slipstream.drafters.early_exit import EarlyExit
    from slipstream.drafters.exit_head.head import ExitHead
    from slipstream.models.run.torch_model import TorchModel


class ExitState(DeviceDraft):
    """Early exit's part of one captured graph.

    `features`: the cache tensor of the states after the first layers, [rows, 1, places, hidden], for a trained head."""

    def __init__(
        self,
        passes: GpuPasses,
        held: Held,
        layers: int,
        head: ExitHead | None,
        features: Mapping[int, Tensor],
        vocabulary: tuple[Tensor, Tensor],
    ) -> None:
        self.passes, self.held, self.first_layer, self.head = passes, held, layers, head
        self.features, (self.ids, self.slot_of) = features, vocabulary
        self.feature_scale = torch.ones(len(features), device=passes.like.device)

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps:
        return ExitSteps(self, rows, depth, parts)

    def resumed(self, steps: DraftSteps | None) -> Float[Tensor, "tokens hidden"] | None:
        return steps.finish() if isinstance(steps, ExitSteps) else None


class ExitSteps:
    """The tokens of a chain in each row."""

    def __init__(self, early: ExitState, rows: int, depth: int, parts: int) -> None:
        passes, device = early.passes, early.passes.like.device
        self._early, self._rows, self._depth = early, rows, depth
        self._pass, self._span = passes.passing(rows, parts), (0, early.first_layer)
        self._layout = chain_layout(rows * (depth + 1), 1, 1, device)
        self._states = passes.like.new_zeros(rows, depth + 1, passes.like.shape[1])
        self._token = torch.zeros(rows, dtype=torch.long, device=device)
        self._tokens: Tensor = self._token  # of the cycle, from its first step on
        self._attention = None if early.head is None else ExitAttention(early.head, early, rows, depth)

    def begin(self, control: CycleControl) -> None:
        # the last drafted token runs through the first layers, too; a row that drafts nothing is scored like others
        live = replace(control, head_row=control.row, depth=torch.where(control.depth >= 0, control.depth + 2, 0))
        lay_steps(live, self._depth + 1, self._layout)
        if self._attention is not None:
            self._attention.begin(control)

    def run(self, n: int, token: Int[Tensor, "rows width"], out: Float[Tensor, "rows draft_vocab"]) -> None:
        self._tokens = token
        state = self._peek(n)
        head = self._attention
        out.copy_(self._early.passes.logits(state) if head is None else head.logits(n, state))

    def finish(self) -> Float[Tensor, "tokens hidden"]:
        """The states of all tokens after the first layers, once the last drafted one has run through them."""
        self._peek(self._depth)
        return self._states.view(-1, self._states.shape[2])

    def _peek(self, n: int) -> Float[Tensor, "rows hidden"]:
        """Run token n of each row through the first layers."""
        early, rows = self._early, self._rows
        self._token.copy_(self._tokens[:, n])
        layout = part(self._layout, n * rows, rows)
        self._pass.run(self._token, layout, early.held, self._span, {}, False)
        state = self._states[:, n]
        state.copy_(self._pass.hidden)  # in the model's type: passes keep more digits than the head takes
        return state


class ExitAttention:
    """The trained block over the window of each row."""

    def __init__(self, head: ExitHead, early: ExitState, rows: int, depth: int) -> None:
        self._head, (self._stored,) = head, early.features.values()
        config, device = head.net.config, early.passes.like.device
        self._window = config.window - 1  # positions before a token
        shape = rows, self._window + depth, config.kv_heads, config.head_dim
        self._keys, self._values = (early.passes.like.new_zeros(shape) for _ in range(2))
        self._offset = torch.arange(self._window, device=device) - self._window - 1
        self._place = torch.arange(self._window + depth, device=device)
        self._length, self._start = (torch.zeros(rows, dtype=torch.long, device=device) for _ in range(2))

    def begin(self, control: CycleControl) -> None:
        place = (control.start[:, None] + self._offset).clamp(min=0)
        keys, values = self._head.net.keys_values(self._stored[0, 0, control.row[:, None] + place], place)
        self._keys[:, : self._window].copy_(keys)
        self._values[:, : self._window].copy_(values)
        self._length.copy_((control.start - 1).clamp(max=self._window))
        self._start.copy_(control.start - 1)

    def logits(self, n: int, state: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows draft_vocab"]:
        net, position, end = self._head.net, self._start + n, self._window + n
        key, value = net.keys_values(state, position)
        self._keys[:, end].copy_(key)
        self._values[:, end].copy_(value)
        place = self._place[: end + 1]
        seen = (place >= n) & (place >= self._window - self._length[:, None])
        both = self._keys[:, : end + 1], self._values[:, : end + 1]
        out = net.attend(state[:, None], position[:, None], *both, seen[:, None])
        logits: Tensor = self._head.output(out[:, 0])
        return logits


class ExitDeviceDrafter(DeviceDrafter):
    """Early exit between captured cycles."""

    def __init__(self, drafter: EarlyExit, target: TorchModel, passes: GpuPasses) -> None:
        self._drafter, self._target, self._passes = drafter, target, passes
        head, device = drafter.head, target.device
        ids = torch.arange(target.vocab, device=device) if head is None else head.vocabulary.ids.to(device)
        self._vocabulary = ids, inverse(ids, target.vocab, device)
        self.whole_vocabulary = head is None

    def part(self) -> ExitState:
        head, layers = self._drafter.head, self._drafter.layers
        features = {} if head is None else self._target.feature_places((layers - 1,), self._passes.like)
        held = self._passes.held(self._target.cache)
        return ExitState(self._passes, held, layers, head, features, self._vocabulary)

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        return None, 0
