"""What the KV cache holds for one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from slipstream.core.array_types import Tensor
from slipstream.models.cache.packing import Entry, agree
from slipstream.models.cache.prefix import TOKEN


@dataclass(eq=False)
class RowState:
    """A row's first place in the cache, its cached tokens, and the entries that ran after them, not committed."""

    index: int
    tokens: list[int] = field(default_factory=list)
    uncommitted: list[Entry] = field(default_factory=list)
    depth: int = 0  # layers that ran over `uncommitted`
    skipped: object = None  # blocks of these layers that did not run; if any, the pass is no part of a score pass
    hidden: dict[int, Tensor] = field(default_factory=dict)  # outputs for `uncommitted` that `peek` kept, by layer
    text: bytes = b""  # the row's first tokens, as far as they were needed in this form (`prefix`)
    published: int = 0  # tokens of the prompt that other rows may copy
    key: bytes = b""  # the text that was published last, if other rows copy it from here
    features: tuple[int, ...] = ()  # layers whose output is kept for all of `tokens`

    def computed(self, entries: Sequence[Entry], depth: int, skipped: object = None) -> int:
        """How many leading entries have hidden states after `depth` layers without the `skipped` blocks."""
        same = self.hidden and self.depth == depth and self.skipped == skipped
        return agree(self.uncommitted, entries) if same else 0

    def complete(self, entries: Sequence[Entry], layers: int) -> int:
        """How many leading entries ran through all `layers` layers of the model."""
        return agree(self.uncommitted, entries) if self.depth == layers and self.skipped is None else 0

    def append_outputs(
        self, entries: list[Entry], skip: int, new: dict[int, Tensor], depth: int, skipped: object = None
    ) -> None:
        """Record a pass over entries[skip:] that ended after `depth` layers. `new` holds its outputs by layer."""
        old = {layer: output[:skip] for layer, output in self.hidden.items()} if skip else {}
        both = {layer: torch.cat([old[layer], new[layer]]) for layer in old.keys() & new.keys()}
        self.uncommitted, self.depth, self.skipped, self.hidden = entries, depth, skipped, old | new | both

    def cut(self, length: int) -> None:
        """Drop the cached tokens from `length` on. The row may read others there."""
        del self.tokens[length:]
        self.text, self.published = self.text[: length * TOKEN], min(self.published, length)
        self.drop_uncommitted()

    def drop_uncommitted(self) -> None:
        self.uncommitted, self.depth, self.skipped, self.hidden = [], 0, None, {}
