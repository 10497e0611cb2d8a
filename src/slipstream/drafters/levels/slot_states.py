"""The states of a draft's slots while it grows: of a head whose next state depends on the one before, or of layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Row
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.run.torch_model import TorchModel


class SlotStates:
    """One state for each slot that was opened, level by level."""

    def __init__(self) -> None:
        self._levels: list[Float[Tensor, "level hidden"]] = []
        self._index: dict[int, int] = {}  # slot -> index of its state in the concatenated levels

    def add(self, slots: Sequence[int], state: Float[Tensor, "slots hidden"]) -> None:
        """Add the states of a level."""
        self._index |= {slot: len(self._index) + n for n, slot in enumerate(slots)}
        self._levels.append(state)

    def before(self, nodes: Sequence[tuple[int, int]], rows: int) -> Float[Tensor, "nodes hidden"]:
        """The states at the parents of nodes, given as (row, parent), in a draft of so many rows.

        In a chain these are all states of the last level, which are returned as they are."""
        indices = [self._index[r if parent < 0 else parent + rows] for r, parent in nodes]
        last = self._levels[-1]
        if indices == list(range(len(self._index) - len(last), len(self._index))):
            return last
        return torch.cat(self._levels)[torch.tensor(indices, device=last.device)]


def slot_states(
    model: TorchModel,
    rows: Sequence[Row],
    tree: Tree,
    token: Int[Tensor, " nodes"],
    slots: Sequence[int],
    layers: int,
    skipped: SkippedBlocks | None = None,
) -> Float[Tensor, "slots hidden"]:
    """The states at these slots after the first layers of the model. Only rows of these slots run."""
    owner = tree.slot_row.tolist()
    active = sorted({owner[slot] for slot in slots})
    own_tree, kept = tree.select(active)
    draft = Draft(own_tree, token[kept], OneHot(token[kept], model.vocab))
    states = model.peek([rows[r] for r in active], draft, layers, skipped)
    place = {slot: n for n, slot in enumerate([*active, *(tree.rows + i for i in kept)])}
    return states[[place[slot] for slot in slots]]
