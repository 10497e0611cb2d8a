"""A model whose layers are the common kind runs as one call (`kernels.cpu.decoder`).

The common kind: a norm, query, key and value, perhaps normed head by head, rotation, attention, output; a norm, gate
and up, silu, down. Whether a model's layers are that is not believed of its name. The parts are looked up by what
transformers calls them, and then a few tokens go through the model's own modules and through the call: where any
layer's output or a logit differs by more than rounding, the modules it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.kernels.cpu.decoder import (
    CachePointers,
    CpuLayer,
    CpuNetwork,
    DecoderKernel,
    LayerSizes,
    PassArgs,
    kernel,
)
from slipstream.kernels.machine import say
from slipstream.models.cache.attention_mask import AttentionMask, ints
from slipstream.models.cache.tensors import KVCache, power
from slipstream.models.run.layers import watch
from slipstream.models.run.packing import RowEntries, RowSlice
from slipstream.models.weights.linears import PackedLinear, row_bits

if TYPE_CHECKING:
    from slipstream.models.run.gpu_decoder import GpuDecoder
    from slipstream.models.run.gpu_passes import GpuPasses
    from slipstream.models.run.support_check import ModelAnatomy

Where = tuple[Int[Tensor, " tokens"], Int[Tensor, " tokens"]]
PARTS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
NORMS = {"before": "input_layernorm", "between": "post_attention_layernorm"}
HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}  # of each head, where there are any
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Of the size of what is compared: rounding of the type. Another activation or a missing bias is far off."""
EIGHTH = 3e-2  # of activations of eight bits: a difference in the last digit may round one to its neighbour
PROBE = 5  # tokens
TURNS, FAR = 256, 1 << 24  # positions that are looked up at first; one that no text reaches


class Decoder:
    """A model's layers, norm and head as one call, with the embedding and the angles of its own modules."""

    def __init__(self, model: Any, layers: Sequence[Any], windows: dict[int, int | None], found: DecoderKernel) -> None:
        self._model, self._kernel = model, found
        blocks = [_block(layer) for layer in layers]
        base, head = model.base_model, model.get_output_embeddings()
        self._embed, self._angles = _embedding(model.get_input_embeddings()), RotaryTable(base.rotary_emb)
        self._net = CpuNetwork(blocks, base.norm.weight.detach(), _packed(head), _sizes(layers[0]))
        self._windows = [windows[i] for i in range(len(layers))]
        self._kinds = tuple(dict.fromkeys(self._windows))
        self._like = torch.empty(1, _sizes(layers[0]).kv_heads, 1, _sizes(layers[0]).dim)
        self._stay: tuple[KVCache, int, CachePointers] | None = None

    def forward(
        self,
        cache: KVCache,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        hidden: Float[Tensor, "tokens hidden"] | None = None,
        watched: Sequence[int] = (),
        kept: Tensor | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor], Where]:
        """Run layers `span` over packed entries, from the embeddings or from `hidden`; the logits of the kept ones,
        what the watched layers gave, and the row and place each entry was written to."""
        used = max(piece.line.start + len(piece.line) for piece in pieces)
        cache.reserve(used)
        token, position, row, place = packed(pieces)
        state = self._embed(token) if hidden is None else hidden.clone()
        angles = self._angles(state, position, used)
        sight = AttentionMask(pieces, token.device)
        seen = {window: sight.visible(window, used) for window in self._kinds}
        views = [seen[window] for window in self._windows]
        found = {layer: torch.empty_like(state) for layer in watched}
        given = [found.get(i) for i in range(self._net.layers)]
        walk = PassArgs(state, angles, row, place, used, views, given, *span, kept)
        return self._kernel.run(self._net, self._where(cache), walk), found, (row, place)

    def takes(self, pieces: Sequence[RowSlice]) -> bool:
        """Whether a pass can go this way."""
        return True

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's norm and head alone."""
        count, layers = len(hidden), self._net.layers
        none: list[Tensor | None] = [None] * layers
        row = torch.zeros(count, dtype=torch.long)
        angles = hidden.new_zeros(count, 2), hidden.new_zeros(count, 2)
        walk = PassArgs(hidden.contiguous(), angles, row, row, 1, none, none, layers, layers, torch.arange(count))
        logits = self._kernel.run(self._net, CachePointers([self._like], [self._like]), walk)
        assert logits is not None
        return logits

    def _where(self, cache: KVCache) -> CachePointers:
        if self._stay is None or self._stay[0] is not cache or self._stay[1] != cache.version:
            held = [cache.layer(i, self._like, self._like) for i in range(self._net.layers)]
            self._stay = cache, cache.version, CachePointers([keys for keys, _ in held], [values for _, values in held])
        return self._stay[2]


class RotaryTable:
    """Cosines and sines of positions by a model's own module. Where they are a matter of the position alone, which some
    are only up to a length, they are looked up: a few numbers by ten calls cost more than the pass waits for."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._cos, self._sin = torch.empty(2, 0, 0)
        self._fixed = self._steady()

    def __call__(
        self, state: Float[Tensor, "tokens hidden"], position: Int[Tensor, " tokens"], below: int
    ) -> tuple[Tensor, Tensor]:
        """Of positions below a bound."""
        if not self._fixed:
            cos, sin = self._module(state[None], position[None])
            return cos[0].contiguous(), sin[0].contiguous()
        if len(self._cos) < below:
            self._cos, self._sin = self._of(torch.arange(power(max(below, TURNS))))
        return self._cos.index_select(0, position), self._sin.index_select(0, position)

    def _of(self, position: Int[Tensor, " n"]) -> Float[Tensor, "2 n turned"]:
        cos, sin = self._module(torch.empty(1, len(position), 1), position[None])
        return torch.stack([cos[0], sin[0]])

    def _steady(self) -> bool:
        """Whether a position far away changes nothing of the others'."""
        near = torch.arange(PROBE)
        with torch.inference_mode():
            alone, beside = self._of(near), self._of(torch.cat([near, torch.tensor([FAR])]))[:, :PROBE]
            return torch.equal(alone, beside) and torch.equal(alone, self._of(near))


def packed(pieces: Sequence[RowSlice]) -> tuple[Int[Tensor, " tokens"], ...]:
    """Token, position, row and place of all entries of a pass."""
    token, position, row, place = list[int](), list[int](), list[int](), list[int]()
    for piece in pieces:
        line, skip = piece.line, piece.skip
        count = len(line.entries) - skip
        token += [word for word, _ in line.entries[skip:]]
        position += line.position[skip:]
        row += [line.row] * count
        place += range(line.start + skip, line.start + skip + count)
    return torch.from_numpy(np.array([token, position, row, place])).unbind()


def _embedding(module: Any) -> Callable[[Int[Tensor, " tokens"]], Float[Tensor, "tokens hidden"]]:
    """The rows of a model's embedding, where these are all there is to it."""
    table, probe = module.weight.detach(), torch.arange(PROBE)
    with torch.inference_mode():
        plain = torch.equal(module(probe), table[probe])
    return partial(torch.index_select, table, 0) if plain else module


def decoder(model: Any, known: ModelAnatomy, exact: bool = False) -> Decoder | GpuPasses | None:
    """The model as one call or graph, where there is a kernel, its layers are of the common kind, and the numbers
    agree, or have `agreed` before; on a GPU else its modules as graphs, where that can be. `exact`: on a GPU too, sums
    have one order whatever the number of tokens, which modules do not promise."""
    found: Decoder | GpuPasses | None
    gpu = model.device.type == "cuda"
    try:
        found = _on_gpu(model, known, exact) if gpu else _made(model, known.layers, known.windows)
        how = "own kernels, captured as graphs" if gpu else "all layers in one call"
    except (AttributeError, TypeError) as error:  # a part is missing or of another kind
        found, how = None, f"its own modules ({error})"
    if found is not None and not known.agreed and not _agrees(found, model, known.layers):
        found, how = None, "its own modules (its layers compute something else)"
    if found is None and gpu and not exact:
        found, more = _recorded(model, known)
        how = f"{how}, {more}"
    say(f"{model.config.model_type}: {how}")
    return found


def _made(model: Any, layers: Sequence[Any], windows: dict[int, int | None]) -> Decoder:
    found = kernel(row_bits(model))
    if found is None or model.device.type != "cpu" or model.dtype != torch.float32:
        raise TypeError(f"no kernel for {model.dtype} on {model.device.type}")
    return Decoder(model, layers, windows, found)


def _on_gpu(model: Any, known: ModelAnatomy, exact: bool) -> GpuDecoder:
    try:
        from slipstream.models.run.gpu_decoder import GpuDecoder
    except ImportError as error:
        raise TypeError(f"Triton is not there: {error}") from error
    if model.dtype not in TOLERANCE:
        raise TypeError(f"no kernel for {model.dtype}")
    return GpuDecoder(model, known.layers, known.windows, exact)


def _recorded(model: Any, known: ModelAnatomy) -> tuple[GpuPasses | None, str]:
    """A model's own modules as graphs, where a few tokens say that they can be that, what is not attention compiled
    where that can be, and how it is called."""
    how = ""
    for fuse, name in ((True, "partly compiled, captured as graphs"), (False, "captured as graphs")):
        try:
            from slipstream.models.run.gpu_modules import record

            with torch.inference_mode():
                found, wanted, mine = record(model, known, _probe_tokens(model), fuse)
                if _near(mine, wanted):
                    return found, f"{name}{how}"
            how = f" (not {name}: the numbers differ)"
        except Exception as error:  # whatever a model's own code does that cannot be recorded: it runs as ever
            how = f" (not {name}: {type(error).__name__}: {str(error).partition(chr(10))[0]})"
    return None, f"one by one{how}"


def _probe_tokens(model: Any) -> list[int]:
    return [(i * 977 + 13) % model.config.get_text_config().vocab_size for i in range(PROBE)]


def _agrees(made: Decoder | GpuPasses, model: Any, layers: Sequence[Any]) -> bool:
    """Whether the model's own modules, with our attention in them, say the same of a few tokens: every layer of the
    same input, in what it adds to it, and the head of the last state."""
    from slipstream.models.run.attention import WHOLE, view

    count, device = len(layers), model.device
    rough = EIGHTH if row_bits(model) == 8 else None
    token = _probe_tokens(model)
    own, other = KVCache(), KVCache()
    pieces = [RowSlice(RowEntries.of(cache.take(), 0, token)) for cache in (own, other)]
    context = view(own, dict.fromkeys(range(count)), pieces[:1], device)
    ids, position = ints([token], device), torch.arange(PROBE, device=device)[None]
    with torch.inference_mode(), watch(layers, range(count)) as states:
        output = model(ids, attention_mask=WHOLE.to(device), position_ids=position, slipstream=context)
        given = model.get_input_embeddings()(ids)[0]
        for i in range(count):
            _, found, _ = made.forward(other, pieces[1:], (i, i + 1), given if i else None, [i])
            if not _near(found[i], states[i], given, rough):
                return False
            given = states[i]
        return _near(made.logits(given), output[0][0], rough=rough)


def _near(mine: Tensor, theirs: Tensor, given: Tensor | None = None, rough: float | None = None) -> bool:
    """Up to rounding: of what was computed, and of the whole state that is kept in the model's type."""
    update = theirs if given is None else theirs - given
    slack = (rough or TOLERANCE[theirs.dtype]) * update.float().norm() + torch.finfo(
        theirs.dtype
    ).eps / 2 * theirs.float().norm()
    return bool((mine.float() - theirs.float()).norm() <= slack)


def _block(layer: Any) -> CpuLayer:
    products = {name: _packed(layer.get_submodule(path)) for name, path in PARTS.items()}
    norms = {name: getattr(layer, path).weight.detach() for name, path in NORMS.items()}
    return CpuLayer(**products, **norms, **{name: norm.weight.detach() for name, norm in head_norms(layer).items()})


def head_norms(layer: Any) -> dict[str, Any]:
    """The norms of each head's query and key (Qwen 3); those of all heads together are another kind."""
    parts = dict(layer.self_attn.named_children())
    found = {name: norm for name, path in HEAD_NORMS.items() if (norm := parts.get(path.partition(".")[2])) is not None}
    for norm in found.values():
        if norm.weight.shape != (layer.self_attn.head_dim,):
            raise TypeError("queries and keys are normed as a whole, not head by head")
        if norm.variance_epsilon != layer.input_layernorm.variance_epsilon:
            raise TypeError("its norms do not share one epsilon")
    return found


def _sizes(layer: Any) -> LayerSizes:
    attention = layer.self_attn
    dim = attention.head_dim
    query, key = (_packed(attention.get_submodule(name)).outputs for name in ("q_proj", "k_proj"))
    return LayerSizes(query // dim, key // dim, dim, layer.input_layernorm.variance_epsilon, attention.scaling)


def _packed(module: Any) -> Any:
    if not isinstance(module, PackedLinear):
        raise TypeError(f"{type(module).__name__} is not packed")
    return module.packed
