"""An exit head while it drafts: logits after the slots of a growing draft, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.core.interfaces import TargetFeatures, TargetModel
from slipstream.core.tree import Tree
from slipstream.core.types import Row
from slipstream.drafters.exit_head.network import ExitConfig, ExitNet
from slipstream.drafters.files.net_folder import check_target, load_net
from slipstream.drafters.vocabulary import DraftVocabulary
from slipstream.models.weights.linears import pack_as_target

KIND = "early_exit"
KeysValues = tuple[Float[Tensor, "keys kv_heads dim"], Float[Tensor, "keys kv_heads dim"]]


class ExitHead:
    """`output`: the target's output rows of the draft vocabulary. `target` gives the states of committed tokens."""

    def __init__(
        self,
        net: ExitNet,
        draft_ids: Int[Tensor, " draft_vocab"],
        output: Float[Tensor, "draft_vocab hidden"],
        target: TargetFeatures,
        vocab: int,
    ) -> None:
        self.net, self._target = net, target
        self._dtype = output.dtype  # packed output rows would be unpacked to tell their type
        self._held: dict[Row, tuple[int, KeysValues]] = {}  # the end of each row's window, and its keys and values
        self.vocabulary = DraftVocabulary(draft_ids, vocab)
        self.output = nn.Linear(output.shape[1], len(draft_ids), bias=False, device="meta")
        self.output.weight = nn.Parameter(output, requires_grad=False)

    @staticmethod
    def load(folder: Path, target: TargetModel) -> ExitHead:
        """Load a trained head for its target."""
        check_target(folder, target)
        net, draft_ids = load_net(
            folder, KIND, ExitConfig.of, lambda config, _: ExitNet(config), target.embedding, target.output
        )
        head = ExitHead(net, draft_ids, target.output[draft_ids], target.features, target.vocab)
        both = nn.ModuleDict({"net": head.net, "output": head.output})
        pack_as_target(both, target.model.model)
        head.output = both["output"]  # type: ignore[assignment]
        return head

    def is_ready(self, row: Row) -> bool:
        """Whether the target has stored the states of all tokens of a row but the last."""
        return row.length > 1 and self._target.cached(row) >= row.length - 1

    def draft(self, rows: Sequence[Row]) -> ExitDraft:
        """The state of one draft of these rows."""
        return ExitDraft(self, rows)

    def context(self, row: Row) -> tuple[KeysValues, int]:
        """Keys and values of the window before a row's last token, padded at the front, and their number.

        Those of earlier drafts are kept, so a draft computes the ones of new positions only."""
        window, read = self.net.config.window - 1, row.length - 1
        length = min(window, read)
        end, held = self._held.get(row, (0, None))
        if held is None or end != read:
            held = self._window(row, read - length, read, end, held)
            self._held[row] = read, held
        padding = (0, 0, 0, 0, window - length, 0)
        return (functional.pad(held[0], padding), functional.pad(held[1], padding)), length

    def _window(self, row: Row, begin: int, read: int, end: int, held: tuple[Tensor, Tensor] | None) -> KeysValues:
        """Keys and values of the positions from `begin` to `read`. `held`: those of positions before `end`."""
        start = max(begin, end if end < read else 0)
        states = self._target.states(row, start)[self.net.config.layer - 1][: read - start]
        position = torch.arange(start, read, device=states.device)
        key, value = self.net.keys_values(states.to(self._dtype), position)
        if held is None or start == begin:
            return key, value
        old_key, old_value = (part[len(part) - (start - begin) :] for part in held)
        return torch.cat([old_key, key]), torch.cat([old_value, value])

    def forget(self, row: Row) -> None:
        """Drop the keys and values of a row."""
        self._held.pop(row, None)


class ExitDraft:
    """Keys and values of the slots of one draft."""

    def __init__(self, head: ExitHead, rows: Sequence[Row]) -> None:
        self._head, self._rows = head, rows
        self._context: dict[int, tuple[KeysValues, int]] = {}
        self._slots: dict[int, KeysValues] = {}
        self._paths: dict[int, list[int]] = {}  # slots from the committed end to each slot

    @torch.inference_mode()
    def logits(
        self, tree: Tree, slots: Sequence[int], states: Float[Tensor, "slots hidden"]
    ) -> Float[Tensor, "slots draft_vocab"]:
        """The logits after slots of one level. `states`: the target's, after the layers before the head."""
        net, owner, origin = self._head.net, tree.slot_row.tolist(), tree.origin.tolist()
        depth = 0
        for slot in slots:
            before = [] if slot < tree.rows else self._paths[origin[slot - tree.rows]]
            self._paths[slot] = [*before, slot]
            depth = len(before)
        position = torch.tensor([self._rows[owner[slot]].length - 1 + depth for slot in slots], device=states.device)
        keys, values = net.keys_values(states, position)
        self._slots |= {slot: (keys[n : n + 1], values[n : n + 1]) for n, slot in enumerate(slots)}
        both = [self._visible(owner[slot], slot) for slot in slots]
        k, v = (torch.stack([pair[i] for pair in both]) for i in (0, 1))
        lengths = torch.tensor([self._context[owner[slot]][1] for slot in slots], device=states.device)
        out = net.attend(states[:, None], position[:, None], k, v, self._seen(lengths, depth)[:, None])
        logits: Tensor = self._head.output(out[:, 0])
        return logits

    def _visible(self, row: int, slot: int) -> KeysValues:
        """Keys and values of the context of a row and of the path to a slot."""
        if row not in self._context:
            self._context[row] = self._head.context(self._rows[row])
        parts = [self._context[row][0], *(self._slots[before] for before in self._paths[slot])]
        return torch.cat([key for key, _ in parts]), torch.cat([value for _, value in parts])

    def _seen(self, lengths: Int[Tensor, " slots"], depth: int) -> Tensor:
        """Which of the context and the path each slot attends to: the last `window` positions that exist."""
        window = self._head.net.config.window
        place = torch.arange(window + depth, device=lengths.device)
        return (place >= depth) & (place >= window - 1 - lengths[:, None])
