"""Device drafters: a drafter's part of cycles that are captured as CUDA graphs.

`DeviceDrafter` is the drafter on the host between captured cycles. It keeps the drafter's cache consistent with the
ordinary host loop. `DeviceDraft` is the drafter's part of one captured graph: buffers, steps and vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.types import Budget, Row

if TYPE_CHECKING:
    from slipstream.kernels.gpu.attention import Layout
    from slipstream.kernels.gpu.cycle import CycleControl


@runtime_checkable
class DraftSteps(Protocol):
    """The steps that draft a chain in each row, one token per step."""

    def begin(self, control: CycleControl) -> None:
        """Set up the first step."""

    def run(self, n: int, token: Int[Tensor, "rows width"], out: Float[Tensor, "rows draft_vocab"]) -> None:
        """Write the logits after token n of each row to `out`. Token 0 is the committed end; drafted ones follow."""


class CommittedRead:
    """Buffers for the tokens that a cycle commits, up to `width` per row.

    A drafter that reads the committed tokens at the end of the cycle overrides `run`."""

    def __init__(self, rows: int, width: int, chunk: int, like: Float[Tensor, "1 hidden"]) -> None:
        from slipstream.kernels.gpu.cycle import chain_layout

        device = like.device
        self.following = torch.zeros(rows * width, dtype=torch.long, device=device)
        self.end = torch.zeros(rows, dtype=torch.long, device=device)
        self.layout: Layout = chain_layout(rows, width, chunk, device)
        self.state = torch.zeros(rows, like.shape[1], device=device)

    def run(self, stack: Tensor) -> None:
        """Read the committed tokens. `stack` holds the target's features at each of them."""


class DeviceDraft:
    """A drafter's part of one captured graph. The defaults are those of plain decoding."""

    on_host = False  # whether the host drafts and the graph only scores
    ids: Tensor | None = None  # its vocabulary, as token ids of the target
    slot_of: Tensor | None = None  # the inverse of `ids`; -1 where a token cannot be drafted
    features: Mapping[int, Tensor] = {}  # where the target's hidden states are kept, by layer
    feature_scale: Tensor | None = None  # factor of each layer's states
    first_layer = 0  # of the target, that the score pass begins with after the steps of a draft

    def steps(self, rows: int, depth: int, parts: int, state: Tensor) -> DraftSteps | None:
        """The steps of a chain; None where nothing is drafted on the device."""
        return None

    def committed_read(self, rows: int, width: int, parts: int, like: Tensor) -> CommittedRead:
        return CommittedRead(rows, width, 1, like)

    def resumed(self, steps: DraftSteps | None) -> Float[Tensor, "tokens hidden"] | None:
        """The target's states of all tokens before `first_layer`, if the steps have run the layers up to it."""
        return None


@runtime_checkable
class TreeSteps(Protocol):
    """The steps that draft a tree in each row, one level per step."""

    chunk: int  # slots of a program of attention, in the layouts of open nodes

    def begin(self, control: CycleControl) -> Float[Tensor, "rows draft_vocab"]:
        """The logits after the committed end of each row."""

    def run(
        self, level: int, token: Int[Tensor, " nodes"], source: Int[Tensor, " nodes"], layout: Layout
    ) -> Float[Tensor, "nodes draft_vocab"]:
        """The logits after the open nodes of a level, from 1 on; each row has as many as the tree is wide.

        `token`: of the nodes. `source`: the open node of the level before that each follows; at level 1, its row."""


class TreeDraft(DeviceDraft, ABC):
    """A part that can also draft trees. `DeviceDrafter.part` returns one if `branches` is True."""

    ids: Tensor

    @abstractmethod
    def tree_steps(self, rows: int, width: int, depth: int, parts: int, state: Tensor) -> TreeSteps:
        """The steps of trees of so many levels. `width`: the open nodes of a row at each level."""


class DeviceDrafter(ABC):
    """One drafter between captured cycles."""

    drafts, branches = True, False  # whether it drafts anything, and trees, on the device
    context: int | None = None  # the longest text it can read
    max_depth: int | None = None  # of a chain that it can draft; None: any
    whole_vocabulary = False  # whether its logits are those of the target's tokens, all of them and in their order
    needs_depths = False  # whether it is told how far each row could draft (`commit`)

    def places(self, row: Row) -> int:
        """Places of a row in its cache at present."""
        return 1 << 62

    def make_room(self, row: Row, places: int) -> None:
        """Let a row have at least so many places in its cache. The row may move there."""

    @property
    def version(self) -> int:
        """Changes when its cache moves in memory. Graphs with the old addresses are then dropped."""
        return 0

    def grow(self, places: int) -> None:
        """Grow its cache to so many places, as many as the target's has. Drafters without a cache do nothing."""

    def ready(self, rows: Sequence[Row], depth: int) -> list[int] | None:
        """The number of tokens that each row can draft, at most `depth`; None if that is not known beforehand."""
        return None

    def behind(self, rows: Sequence[Row]) -> int:
        """Unread tokens that it must read before it can draft, beyond those of a usual cycle."""
        return 0

    def draft_on_host(self, rows: Sequence[Row], budget: Sequence[Budget]) -> Sequence[Budget]:
        """Draft now, if it drafts on the host. Returns the budgets with the depths that were drafted."""
        return budget

    def part(self) -> DeviceDraft:
        """Its part of a graph."""
        return DeviceDraft()

    def index(self, row: Row) -> int:
        """The row's first place in its cache."""
        return 0

    def forget(self) -> None:
        """The device went on beyond what was committed: begin the next cycle from the rows' committed text."""

    @abstractmethod
    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        """Prepare a cycle. Returns its start state, None if that is in the buffers of the last cycle, and the number of
        tokens that were read for it."""

    def commit(
        self,
        rows: Sequence[Row],
        depths: Sequence[int],
        accepted: Sequence[Sequence[int]],
        cycle: Any,
        lines: Sequence[int],
    ) -> None:
        """Record the accepted tokens of each row. Called before the rows are extended by them. `depths` are what rows
        could draft, if `needs_depths`; `lines` are their indices in the cycle."""

    def record_lengths(self, rows: Sequence[Row], lengths: Sequence[int], cycle: Any, lines: Sequence[int]) -> None:
        """The same after several cycles of one graph, which made the rows so long; not if `needs_depths`."""


class PlainDecoding(DeviceDrafter):
    """The device form of `NoDrafter`."""

    drafts, whole_vocabulary = False, True

    def begin(self, rows: Sequence[Row], budget: Sequence[Budget], cycle: Any) -> tuple[Tensor | None, int]:
        return None, 0


def inverse(ids: Int[Tensor, " draft_vocab"], vocab: int, device: torch.device) -> Int[Tensor, " vocab"]:
    """The index of each token in `ids`; -1 if it is not there."""
    places = torch.full((vocab,), -1, device=device)
    places[ids] = torch.arange(len(ids), device=device)
    return places
