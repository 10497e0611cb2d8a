"""Any other model on a GPU: its own modules, with our attention over the cache in them, captured as graphs.

Few tokens through many small modules cost a launch each, and the host cannot issue them as fast as they run. Recorded
once for each size, they cost what they compute. What is computed is what the modules say; whether it can be recorded
(nothing in it may ask what a number is) is tried when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.kernels.gpu.attention import AttentionHeads, AttentionOptions, AttentionScratch, Layout, attend, put
from slipstream.kernels.gpu.decoder import Held, Watched
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.attention import AttentionPass, view
from slipstream.models.run.gpu_passes import SIZES, GpuPasses, rehearsal
from slipstream.models.run.layers import CompiledLayers, ModuleRunner
from slipstream.models.run.support_check import ModelAnatomy

GROUP = 16  # heads that may share keys: a program's queries


@dataclass(frozen=True)
class AttentionCall:
    """What one layer's attention was called with."""

    heads: AttentionHeads
    key: Tensor
    value: Tensor


@dataclass
class CallRecorder:
    """Stands before a view, and writes down what each layer calls it with."""

    view: AttentionPass
    layers: list[AttentionCall] = field(default_factory=list)

    def notice(self, *_: Any) -> None: ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: Any, sink: Any
    ) -> Tensor:
        self.layers.append(AttentionCall(_heads(query, key, scale), key[:, :, :1], value[:, :, :1]))
        return self.view.attend(layer, query, key, value, scale, cap, sink)


class GpuModules(GpuPasses):
    """`seen` is what each layer's attention is like, as a few tokens showed."""

    def __init__(
        self,
        modules: ModuleRunner,
        windows: dict[int, int | None],
        seen: Sequence[AttentionCall],
        vocab: int,
        fused: CompiledLayers | None = None,
    ) -> None:
        super().__init__()
        for layer in seen:
            if layer.key.shape != layer.value.shape:
                raise TypeError("keys and values are of different sizes")
        if len({layer.heads.group for layer in seen}) > 1 or seen[0].heads.group > GROUP:
            raise TypeError(f"its layers do not all share keys among the same number of heads, up to {GROUP}")
        self.modules, self.windows, self.seen, self.fused = modules, windows, seen, fused
        self.heads, self.layers, self.vocab = seen[0].heads, len(seen), vocab
        config = modules.model.config.get_text_config()
        self.like = seen[0].key.new_empty(1, config.hidden_size)
        self.entries = [(layer.key, layer.value) for layer in seen]
        self.deepest = min([self.deepest, *(window for window in windows.values() if window is not None)])

    def takes(self, pieces: Sequence[RowSlice]) -> bool:
        """Few tokens, and trees that no window cuts; prompts are better read as they are."""
        deep = max((len(seen) for piece in pieces for seen in piece.line.seen), default=0)
        return sum(map(len, pieces)) <= SIZES[-1] and deep <= self.deepest and super().takes(pieces)

    def passing(self, tokens: int, parts: int) -> ModulePass:
        return ModulePass(self, tokens, parts)

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        return self.modules.logits(hidden)


class ModulePass:
    def __init__(self, owner: GpuModules, tokens: int, parts: int) -> None:
        self._owner, self._parts = owner, parts
        self.hidden = owner.like.new_zeros(tokens, owner.like.shape[1])
        self._none = torch.zeros(tokens, dtype=torch.long, device=self.hidden.device)
        self._all = torch.arange(tokens, device=self.hidden.device)
        self._spaces: dict[AttentionHeads, AttentionScratch] = {}

    def run(
        self,
        token: Tensor | None,
        layout: Layout,
        held: Held,
        span: tuple[int, int],
        watched: Watched,
        tree: bool,
        out: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> None:
        context = GpuView(self, layout, held, tree)
        ids, given = (self._none, self.hidden) if token is None else (token, None)
        keep = self._all if out is not None and kept is None else kept
        with self._owner.fused.lent() if self._owner.fused else nullcontext():
            logits, found = self._owner.modules.run(ids, layout.position, context, span, given, list(watched), keep)
        for layer, use in watched.items():
            use(found[layer])
        if out is not None and logits is not None:
            out.copy_(logits)

    def space(self, heads: AttentionHeads, like: Tensor) -> AttentionScratch:
        if heads not in self._spaces:
            self._spaces[heads] = AttentionScratch.of(len(self.hidden), self._parts, heads, like)
        return self._spaces[heads]

    def window(self, layer: int) -> int | None:
        return self._owner.windows[layer]


@dataclass(frozen=True, eq=False)
class GpuView:
    """What a model's attention is told in such a pass: where keys and values are written, and who sees what."""

    room: ModulePass
    layout: Layout
    held: Held
    tree: bool

    def notice(self, *_: Any) -> None: ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: Any, sink: Any
    ) -> Float[Tensor, "1 tokens heads dim"]:
        keys, values = self.held[layer]
        heads = _heads(query, key, scale)
        one, other = (given[0] if given.stride(-1) == 1 else given[0].contiguous() for given in (key, value))
        put(one, other, self.layout, keys, values)
        space = self.room.space(heads, query)
        space.query.copy_(query[0].transpose(0, 1))
        out = torch.empty_like(space.query)
        manner = AttentionOptions(self.room.window(layer), cap, sink)
        attend(self.layout, keys, values, space, out, heads, self.tree, manner)
        return out[None]


def record(
    model: Any, known: ModelAnatomy, token: Sequence[int], fuse: bool = False
) -> tuple[GpuModules, Tensor, Tensor]:
    """A model's modules as graphs, and the logits of a few tokens without and with them; raises whatever a model does
    that cannot be recorded. `fuse`: what is not attention is compiled first."""
    modules, cache, other = ModuleRunner(model, known.layers, known.as_tuple), KVCache(), KVCache()
    piece, again = (RowSlice(RowEntries.of(held.take(), 0, list(token))) for held in (cache, other))
    witness = CallRecorder(view(cache, known.windows, [piece], model.device))
    ids, position = torch.tensor(token, device=model.device), torch.arange(len(token), device=model.device)
    wanted, _ = modules.run(ids, position, witness, (0, len(known.layers)), keep=position)
    with rehearsal():
        modules.run(ids, position, witness.view, (0, len(known.layers)), keep=position)
    fused = CompiledLayers(known.layers) if fuse else None
    found = GpuModules(modules, known.windows, witness.layers, known.vocab, fused)
    mine, _, _ = found.forward(other, [again], (0, found.layers), None, (), position)
    assert wanted is not None
    assert mine is not None
    return found, wanted, mine


def _heads(query: Tensor, key: Tensor, scale: float | None) -> AttentionHeads:
    dim = query.shape[-1]
    return AttentionHeads(query.shape[1], key.shape[1], dim, dim**-0.5 if scale is None else scale)
