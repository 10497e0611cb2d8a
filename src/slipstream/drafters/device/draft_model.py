"""The device form of a draft model: chains of tokens, each step one pass of the draft model.

The first step reads the last two committed tokens. The draft model has not read the last one yet. It has not read the
one before either, if its whole draft was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.array_types import Tensor
from slipstream.core.types import Budget, Row
from slipstream.drafters.device.interface import DeviceDraft, DeviceDrafter, DraftSteps, inverse
from slipstream.kernels.gpu.cycle import CycleControl, chain_layout, lay, lay_steps, part
from slipstream.kernels.gpu.decoder import Held
from slipstream.models.run.gpu.passes import GpuPasses

if TYPE_CHECKING:
    from slipstream.drafters.draft_model import DraftModel


class DraftModelState(DeviceDraft):
    """A draft model's part of one captured graph."""

    def __init__(self, passes: GpuPasses, held: Held, ids: Tensor, slot_of: Tensor) -> None:
        self.passes, self.held, self.ids, self.slot_of = passes, held, ids, slot_of

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps:
        return DraftModelSteps(self, rows, depth, parts)


class DraftModelSteps:
    """The steps of a chain in each row."""

    def __init__(self, model: DraftModelState, rows: int, depth: int, parts: int) -> None:
        passes, device = model.passes, model.passes.like.device
        assert model.ids is not None
        self._model, self._rows, self._depth = model, rows, depth
        self._pair, self._single = passes.passing(2 * rows, parts), passes.passing(rows, parts)
        self._ends = torch.zeros(rows, 2, dtype=torch.long, device=device)
        self._far = torch.zeros(rows, dtype=torch.long, device=device)
        self._layout = chain_layout(rows, 2, passes.heads.chunk(2, 2 * rows), device)
        self._after = chain_layout(rows * max(1, depth - 1), 1, 1, device)
        self._last = torch.arange(1, 2 * rows, 2, device=device)
        self._token = torch.zeros(rows, dtype=torch.long, device=device)
        wide = passes.vocab != len(model.ids)
        self._wide = torch.zeros(rows, passes.vocab, device=device) if wide else None

    def begin(self, control: CycleControl) -> None:
        """Set up the first step: drafting rows read their last two tokens, from one place before the target's start.

        Drafted tokens are written to the places of their text positions."""
        drafting = torch.where(control.depth > 0, 1, -1)
        before = control.of_draft(control.start - 1, drafting, control.before)
        lay(before, self._ends, self._far, self._layout)
        self._ends[:, 1].copy_(control.last)
        if self._depth > 1:
            lay_steps(control.of_draft(control.start + 1, control.depth, control.last), self._depth - 1, self._after)

    def run(self, n: int, token: Tensor, out: Tensor) -> None:
        model, span, rows = self._model, (0, self._model.passes.layers), self._rows
        target = out if self._wide is None else self._wide
        if n:
            self._token.copy_(token[:, n])
            layout = part(self._after, (n - 1) * rows, rows)
            self._single.run(self._token, layout, model.held, span, {}, False, target)
        else:
            self._pair.run(self._ends.view(-1), self._layout, model.held, span, {}, False, target, self._last)
        if self._wide is not None:
            out.copy_(self._wide[:, : out.shape[1]])


class DraftModelDevice(DeviceDrafter):
    """A draft model between captured cycles."""

    needs_depths = True

    def __init__(self, drafter: DraftModel, passes: GpuPasses) -> None:
        self._drafter, self._passes, device = drafter, passes, drafter.model.device
        common = torch.arange(min(passes.vocab, drafter.vocab), device=device)
        self._ids = common if drafter.ids is None else drafter.ids.to(device)
        self._slot_of = inverse(self._ids, drafter.vocab, device)
        self.context = drafter.model.context
        self.whole_vocabulary = drafter.ids is None and passes.vocab == drafter.vocab

    @property
    def version(self) -> int:
        return self._drafter.model.cache.version

    def places(self, row: Row) -> int:
        return self._drafter.model.places(row)

    def make_room(self, row: Row, places: int) -> None:
        self._drafter.model.make_room(row, places)

    def grow(self, places: int) -> None:
        self._drafter.model.cache.grow(places)

    def part(self) -> DraftModelState:
        model = self._drafter.model
        return DraftModelState(self._passes, self._passes.held(model.cache), self._ids, self._slot_of)

    def index(self, row: Row) -> int:
        return self._drafter.model.index(row)

    def behind(self, rows: Sequence[Row]) -> int:
        """Unread tokens of the rows, without the last two, which a cycle reads anyway."""
        cached = self._drafter.model.cached
        return sum(max(0, row.length - 2 - cached(row)) for row in rows)

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        """Prefill the unread tokens of rows that draft."""
        model = self._drafter.model
        drafting = [row for row, row_budget in zip(rows, budget, strict=True) if row_budget.depth > 0]
        late = [row for row in drafting if self.behind([row])]
        missing = self.behind(late)
        while late:
            model.prefill(late, model.prefill_chunk)
            late = [row for row in late if self.behind([row])]
        return None, missing

    def commit(
        self,
        rows: Sequence[Row],
        depths: Sequence[int],
        accepted: Sequence[Sequence[int]],
        cycle: Any,
        lines: Sequence[int],
    ) -> None:
        self._drafter.record_steps(rows, depths, accepted)
