"""Running a model's own modules: reading the outputs of its layers, stopping after a layer, resuming from a layer.

A layer is skipped by replacing its `forward` for the length of a pass. The replacement returns its input, or a given
hidden state. The model around the layers (embeddings, positions, final norm, head) runs unchanged, so a resumed pass
computes what the whole pass would have. This works for any architecture whose layers take and return a hidden state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from slipstream.core.array_types import Float, Int, Tensor

Layers = Sequence[nn.Module]


@contextmanager
def watch(layers: Layers, indices: Iterable[int]) -> Iterator[dict[int, Tensor]]:
    """A dictionary that receives the outputs of these layers, [tokens, hidden], while the model runs."""
    outputs: dict[int, Tensor] = {}

    def hook(index: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(_: nn.Module, __: Any, output: Any) -> None:
            outputs[index] = hidden_of(output)[0]

        return keep

    handles = [layers[index].register_forward_hook(hook(index)) for index in indices]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def run_only(
    layers: Layers, first: int, last: int, hidden: Float[Tensor, "tokens hidden"] | None, as_tuple: bool
) -> Iterator[None]:
    """Run only layers `first` to `last` - 1. `hidden` is the input of layer `first` if that is not layer 0."""

    def skip(given: Tensor | None) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            state = given if given is not None else args[0] if args else kwargs["hidden_states"]
            return (state,) if as_tuple else state

        return forward

    skipped = [index for index in range(len(layers)) if not first <= index < last]
    try:
        for index in skipped:
            given = hidden[None] if hidden is not None and index == first - 1 else None
            layers[index].forward = skip(given)
        yield
    finally:
        for index in skipped:
            layers[index].__dict__.pop("forward", None)


@contextmanager
def replaced(forwards: Sequence[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    """Run each function instead of its module's own `forward` within a `with` block."""
    try:
        for module, forward in forwards:
            module.forward = forward
        yield
    finally:
        for module, _ in forwards:
            module.__dict__.pop("forward", None)


class CompiledLayers:
    """The parts of decoder layers that are not attention (norms, feed-forward, experts), compiled by `torch.compile`.

    All layers share one compilation, which serves any number of tokens and which torch caches on disk.
    """

    def __init__(self, layers: Layers) -> None:
        free = [part for layer in layers for part in layer.children() if not attends(part)]
        self._parts = [(part, torch.compile(part.forward, dynamic=True)) for part in free]

    def applied(self) -> AbstractContextManager[None]:
        """Use the compiled parts instead of the model's own within a `with` block."""
        return replaced(self._parts)


def attends(part: nn.Module) -> bool:
    """Whether a part of a layer is or holds its attention."""
    return any("layer_idx" in module.__dict__ for module in part.modules())


class ModuleRunner:
    """A model's own modules over packed tokens, with our attention in them."""

    def __init__(self, model: Any, layers: Layers, as_tuple: bool) -> None:
        self.model, self.layers, self._as_tuple = model, layers, as_tuple
        self._trims = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._whole = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=model.device)  # passed on: no mask is built

    def run(
        self,
        token: Int[Tensor, " tokens"],
        position: Int[Tensor, " tokens"],
        context: Any,
        span: tuple[int, int],
        given: Float[Tensor, "tokens hidden"] | None = None,
        watched: Iterable[int] = (),
        keep: Int[Tensor, " kept"] | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Run the layers from `span[0]` up to `span[1]`. `given` is the input of a span that does not begin at layer 0.

        `context` is passed on to the attention. Returns the logits of the tokens `keep`, None without `keep`, and the
        outputs of the watched layers.
        """
        trim = {"logits_to_keep": keep} if keep is not None and self._trims else {}
        module = self.model.base_model if keep is None else self.model
        with run_only(self.layers, *span, given, self._as_tuple), watch(self.layers, watched) as outputs:
            output = module(
                token[None],
                attention_mask=self._whole,
                position_ids=position[None],
                use_cache=False,
                slipstream=context,
                **trim,
            )
        result: Tensor = output[0][0]
        return (None if keep is None else result if trim else result[keep]), outputs

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's own final norm and head on hidden states; no layer runs."""
        count, token = len(self.layers), torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
        with run_only(self.layers, count, count, hidden, self._as_tuple):
            output = self.model(token[None], attention_mask=self._whole, position_ids=token[None], use_cache=False)
        logits: Tensor = output[0][0]
        return logits


def hidden_of(output: Any) -> Float[Tensor, "batch tokens hidden"]:
    """The hidden state a layer returned, alone or first in a tuple."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def chosen_layers(spec: str, count: int) -> list[int]:
    """Layer numbers of `0-9` or `0,1,28,29`."""
    try:
        ranges = [part.split("-") for part in spec.split(",")]
        chosen = [i for part in ranges for i in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError as error:
        raise ValueError(f"layers is {spec!r}; write 0-9 or 0,1,5 with layers 0 to {count - 1}") from error
    if not chosen:
        raise ValueError(f"layers is {spec!r}, which is no layer; write 0-9 or 0,1,5")
    if min(chosen) < 0 or max(chosen) >= count:
        raise ValueError(f"layers is {spec!r}; write 0-9 or 0,1,5 with layers 0 to {count - 1}")
    return chosen


def keep_layers(model: Any, spec: str) -> None:
    """Cut a model down to some of its decoder layers: `0-9`, or `0,1,28,29`."""
    stack = next((m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1), None)
    if stack is None:
        raise ValueError(f"{type(model).__name__} has no list of layers to choose from")
    chosen = chosen_layers(spec, len(stack))
    kept = [stack[i] for i in chosen]
    del stack[len(kept) :]
    for i, layer in enumerate(kept):
        stack[i] = layer
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = i  # type: ignore[assignment]
    config = model.config.get_text_config()
    config.num_hidden_layers = len(kept)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[i] for i in chosen]
