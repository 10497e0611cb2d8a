"""Hidden states of a growing draft, from a model that runs only the tokens it has not run yet."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.law import OneHot
from slipstream.core.tree import Tree
from slipstream.core.types import Draft, Row
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.models.run.torch_model import TorchModel


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
