"""Other architectures on a GPU: the model's own modules, with our attention in them, captured as CUDA graphs.

With few tokens, the many small modules cost more to launch than to run. A graph per pass size removes the launches.
Whether the modules can be captured (no step may read a number back from the device) is tried when the model is loaded.
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
from slipstream.models.run.gpu.graphs import sync_forbidden
from slipstream.models.run.gpu.pass_sizes import SIZES
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.layers import CompiledLayers, ModuleRunner
from slipstream.models.run.support_check import ModelAnatomy

GROUP = 16  # query heads that may share keys: the queries of one kernel program


@dataclass(frozen=True)
class AttentionCall:
    """The shapes that one layer's attention was called with."""

    heads: AttentionHeads
    key: Tensor
    value: Tensor


@dataclass
class CallRecorder:
    """Wraps an `AttentionPass`, and records how each layer calls it."""

    view: AttentionPass
    layers: list[AttentionCall] = field(default_factory=list)

    def notice(self, *_: Any) -> None: ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: Any, sink: Any
    ) -> Tensor:
        self.layers.append(AttentionCall(_heads(query, key, scale), key[:, :, :1], value[:, :, :1]))
        return self.view.attend(layer, query, key, value, scale, cap, sink)


class GpuModules(GpuPasses):
    """A model's modules as captured passes. `seen` holds how each layer calls its attention."""

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

    def supports(self, pieces: Sequence[RowSlice]) -> bool:
        """Whether a pass has few tokens and no sliding window cuts its trees. Prompts run faster uncaptured."""
        deep = max((len(seen) for piece in pieces for seen in piece.line.seen), default=0)
        return sum(map(len, pieces)) <= SIZES[-1] and deep <= self.deepest and super().supports(pieces)

    def passing(self, tokens: int, parts: int) -> ModulePass:
        return ModulePass(self, tokens, parts)

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        return self.modules.logits(hidden)


class ModulePass:
    """The buffers of a captured pass through a model's own modules."""

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
        with self._owner.fused.applied() if self._owner.fused else nullcontext():
            logits, outputs = self._owner.modules.run(ids, layout.position, context, span, given, list(watched), keep)
        for layer, use in watched.items():
            use(outputs[layer])
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
    """The attention of a captured pass: writes keys and values to the cache, and applies the mask of the layout."""

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
        new_keys, new_values = (given[0] if given.stride(-1) == 1 else given[0].contiguous() for given in (key, value))
        put(new_keys, new_values, self.layout, keys, values)
        space = self.room.space(heads, query)
        space.query.copy_(query[0].transpose(0, 1))
        out = (torch.zeros_like if space.split else torch.empty_like)(space.query)  # padding tokens stay finite
        options = AttentionOptions(self.room.window(layer), cap, sink)
        attend(self.layout, keys, values, space, out, heads, self.tree, options)
        return out[None]


def record(
    model: Any, anatomy: ModelAnatomy, token: Sequence[int], fuse: bool = False
) -> tuple[GpuModules, Tensor, Tensor]:
    """Capture a model's modules. Returns the passes, and the logits of a few tokens by plain modules and by the passes.

    Raises whatever error a model's code causes when it cannot be captured. `fuse`: all but attention is compiled first.
    """
    modules, cache, other = ModuleRunner(model, anatomy.layers, anatomy.as_tuple), KVCache(), KVCache()
    piece, again = (RowSlice(RowEntries.of(held.take(), 0, list(token))) for held in (cache, other))
    recorder = CallRecorder(view(cache, anatomy.windows, [piece], model.device))
    ids, position = torch.tensor(token, device=model.device), torch.arange(len(token), device=model.device)
    expected, _ = modules.run(ids, position, recorder, (0, len(anatomy.layers)), keep=position)
    with sync_forbidden():
        modules.run(ids, position, recorder.view, (0, len(anatomy.layers)), keep=position)
    fused = CompiledLayers(anatomy.layers) if fuse else None
    passes = GpuModules(modules, anatomy.windows, recorder.layers, anatomy.vocab, fused)
    logits, _, _ = passes.forward(other, [again], (0, passes.layers), None, (), position)
    assert expected is not None
    assert logits is not None
    return passes, expected, logits


def _heads(query: Tensor, key: Tensor, scale: float | None) -> AttentionHeads:
    dim = query.shape[-1]
    return AttentionHeads(query.shape[1], key.shape[1], dim, dim**-0.5 if scale is None else scale)
