"""Plain decoding of thousands of rows in one static batch, for the target's answers to train on.

Only throughput counts here, not latency. All rows start together. Their keys and values are in one tensor as long as
the longest row. Finished rows are dropped every few steps. Nothing is drafted, because passes over such batches are
bound by arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.models.run.attention import WHOLE, explicit_attention, plug_in
from slipstream.models.run.support_check import ModelAnatomy

PREFILL = 1 << 17  # tokens read in one pass
DROP_EVERY = 16  # steps between two removals of finished rows


@dataclass(eq=False)
class BatchCache:
    """Keys and values of a static batch. `models.run.attention` calls it in every layer."""

    windows: dict[int, int | None]
    rows: int
    capacity: int  # positions of a row
    position: Int[Tensor, "rows queries"]  # of the tokens of this pass
    start: int = 0  # first row of this pass
    used: int = 0  # positions of the longest row of this pass
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # of this pass, by window

    def begin_pass(self, position: Int[Tensor, "rows queries"], start: int, used: int) -> None:
        """Set the positions of the next pass, its first row, and the length of its longest row."""
        self.position, self.start, self.used, self.masks = position, start, used, {}

    def notice(self, module: nn.Module, mask: Any, others: dict[str, Any]) -> None:
        """Part of the attention interface; nothing is needed from it here."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: float | None, sink: Any
    ) -> Float[Tensor, "rows queries heads dim"]:
        if layer not in self.layers:
            self.layers[layer] = (self._empty(key), self._empty(value))
        keys, values = (stored[self.start : self.start + len(key)] for stored in self.layers[layer])
        queries, group = query.shape[2], query.shape[1] // key.shape[1]
        if queries > 1:
            keys[:, :, :queries], values[:, :, :queries] = key, value
        else:
            row = torch.arange(len(key), device=key.device)
            keys[row, :, self.position[:, 0]], values[row, :, self.position[:, 0]] = key[:, :, 0], value[:, :, 0]
        keys, values = keys[:, :, : self.used], values[:, :, : self.used]
        folded = torch.unflatten(query, 1, (-1, group)).flatten(2, 3)  # query heads of one group share its keys
        mask = self._mask(layer, group, query.dtype)
        if queries > 1 and cap is None and sink is None:
            out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        else:  # with one query per row, two batched products are faster than the fused kernel
            column = None if sink is None else sink.reshape(key.shape[1], -1).repeat_interleave(queries, 1)[..., None]
            out = explicit_attention(folded, keys, values, mask, scale, cap, column)
        return torch.unflatten(out, 2, (group, queries)).flatten(1, 2).transpose(1, 2)

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.rows, like.shape[1], self.capacity, like.shape[3])

    def _mask(self, layer: int, group: int, dtype: torch.dtype) -> Tensor:
        window = self.windows[layer]
        if window not in self.masks:
            position = torch.arange(self.used, device=self.position.device)
            seen = position <= self.position[..., None]
            if window is not None:
                seen &= position > self.position[..., None] - window
            bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            self.masks[window] = bias[:, None].repeat(1, 1, group, 1)
        return self.masks[window]

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Drop all rows but these."""
        self.rows = len(rows)
        for layer, (keys, values) in list(self.layers.items()):  # layer by layer: a copy of all may not fit in memory
            self.layers[layer] = (keys[rows], values[rows])


@torch.inference_mode()
def generate_answers(
    model: Any,
    anatomy: ModelAnatomy,
    prompts: Sequence[Sequence[int]],
    temperature: Sequence[float],
    ends: frozenset[int],
    max_tokens: int,
    seed: int,
) -> list[list[int]]:
    """The target's answers, each at its own temperature, at most `max_tokens` long; an end token is included."""
    device = model.device
    noise = torch.Generator(device).manual_seed(seed)
    length = torch.tensor([len(prompt) for prompt in prompts], device=device)
    temperatures = torch.tensor(temperature, device=device)
    end_tokens = torch.tensor(sorted(ends), device=device)
    cache = BatchCache(anatomy.windows, len(prompts), int(length.max()) + max_tokens, length[:, None])
    with _attention(model):
        hidden = _prefill(model, cache, prompts, length)
        answers = torch.full((len(prompts), max_tokens), -1, device=device)
        alive, longest = torch.arange(len(prompts), device=device), max(map(len, prompts))
        for step in range(max_tokens):
            token = draw(model.get_output_embeddings()(hidden), temperatures[alive], noise)
            answers[alive, step] = token
            if step % DROP_EVERY == DROP_EVERY - 1:
                done = torch.isin(answers[alive], end_tokens).any(1)
                (unfinished,) = torch.nonzero(~done, as_tuple=True)
                if not len(unfinished):
                    break
                if len(unfinished) < len(alive):
                    alive, token = alive[unfinished], token[unfinished]
                    longest = int(length[alive].max())
                    cache.keep(unfinished)
            if step < max_tokens - 1:
                cache.begin_pass((length[alive] + step)[:, None], 0, longest + step + 1)
                hidden = _pass(model, cache, token[:, None])[:, -1]
    cache.layers.clear()
    return [_cut(answer, ends) for answer in answers.tolist()]


@contextmanager
def _attention(model: Any) -> Iterator[None]:
    """Route the model's attention to the cache; restore its own afterwards."""
    own = model.config._attn_implementation
    plug_in(model)
    try:
        yield
    finally:
        model.set_attn_implementation(own)


def draw(logits: Float[Tensor, "n vocab"], temperature: Float[Tensor, " n"], noise: torch.Generator) -> Tensor:
    """One token for each row by the exponential race argmin E / p, or the likeliest token at temperature 0."""
    scaled = logits.float() / temperature.clamp(min=1e-6)[:, None]
    race = torch.empty_like(scaled).exponential_(generator=noise).log_().neg_()
    return (scaled + torch.where(temperature[:, None] > 0, race, 0)).argmax(-1)


def _prefill(
    model: Any, cache: BatchCache, prompts: Sequence[Sequence[int]], length: Tensor
) -> Float[Tensor, "rows hidden"]:
    """Read the prompts, some rows at a time; return the hidden state at the end of each."""
    longest = max(map(len, prompts))
    rows, last_states = max(1, PREFILL // longest), []
    for start in range(0, len(prompts), rows):
        padded = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts[start : start + rows]]
        token = torch.tensor(padded, device=model.device)
        cache.begin_pass(torch.arange(longest, device=model.device).expand(len(padded), -1), start, longest)
        hidden = _pass(model, cache, token)
        last = length[start : start + rows] - 1
        last_states.append(hidden[torch.arange(len(padded), device=model.device), last])
    return torch.cat(last_states)


def _pass(model: Any, cache: BatchCache, token: Int[Tensor, "rows queries"]) -> Float[Tensor, "rows queries hidden"]:
    mask = WHOLE.to(model.device)
    output = model.base_model(
        token, attention_mask=mask, position_ids=cache.position, use_cache=False, slipstream=cache
    )
    hidden: Tensor = output[0]
    return hidden


def _cut(answer: list[int], ends: frozenset[int]) -> list[int]:
    """The answer up to and including its first end token."""
    return answer[: next((i + 1 for i, token in enumerate(answer) if token in ends), len(answer))]
