"""The target answers many prompts at once: plain decoding of thousands of rows in one rectangle.

Serving cares about the next token of each of a few rows; here only the total counts. So rows start together, their keys
lie in one rectangle as long as the longest, and those that ended are dropped every few steps. Nothing is drafted: at
such batches the passes are bound by arithmetic.
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
from slipstream.models.run.attention import WHOLE, by_hand, plug_in
from slipstream.models.run.support_check import ModelAnatomy

PREFILL = 1 << 17  # tokens read in one pass
DROP = 16  # steps between two looks at who has ended


@dataclass(eq=False)
class Flight:
    """Keys and values of a rectangle of rows; what `models.run.attention` calls in every layer."""

    windows: dict[int, int | None]
    rows: int
    places: int
    position: Int[Tensor, "rows queries"]  # where the tokens of this pass stand
    start: int = 0  # first row of this pass
    used: int = 0  # places any row of this pass has
    held: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # of this pass, by window

    def go(self, position: Int[Tensor, "rows queries"], start: int, used: int) -> None:
        """The next pass: where its tokens stand, its first row, and how many places any of its rows has."""
        self.position, self.start, self.used, self.masks = position, start, used, {}

    def notice(self, module: nn.Module, mask: Any, others: dict[str, Any]) -> None:
        """Nothing else the model says matters here."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None, cap: float | None, sink: Any
    ) -> Float[Tensor, "rows queries heads dim"]:
        if layer not in self.held:
            self.held[layer] = (self._fresh(key), self._fresh(value))
        keys, values = (held[self.start : self.start + len(key)] for held in self.held[layer])
        queries, group = query.shape[2], query.shape[1] // key.shape[1]
        if queries > 1:
            keys[:, :, :queries], values[:, :, :queries] = key, value
        else:
            row = torch.arange(len(key), device=key.device)
            keys[row, :, self.position[:, 0]], values[row, :, self.position[:, 0]] = key[:, :, 0], value[:, :, 0]
        keys, values = keys[:, :, : self.used], values[:, :, : self.used]
        folded = torch.unflatten(query, 1, (-1, group)).flatten(2, 3)  # one group of heads reads its keys once
        mask = self._mask(layer, group, query.dtype)
        if queries > 1 and cap is None and sink is None:
            out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        else:  # for one query a row, two batched products read the keys faster than a kernel made for many
            column = None if sink is None else sink.reshape(key.shape[1], -1).repeat_interleave(queries, 1)[..., None]
            out = by_hand(folded, keys, values, mask, scale, cap, column)
        return torch.unflatten(out, 2, (group, queries)).flatten(1, 2).transpose(1, 2)

    def _fresh(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.rows, like.shape[1], self.places, like.shape[3])

    def _mask(self, layer: int, group: int, dtype: torch.dtype) -> Tensor:
        window = self.windows[layer]
        if window not in self.masks:
            place = torch.arange(self.used, device=self.position.device)
            seen = place <= self.position[..., None]
            if window is not None:
                seen &= place > self.position[..., None] - window
            bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            self.masks[window] = bias[:, None].repeat(1, 1, group, 1)
        return self.masks[window]

    def keep(self, rows: Int[Tensor, " kept"]) -> None:
        """Drop all rows but these."""
        self.rows = len(rows)
        for layer, (keys, values) in list(self.held.items()):  # one by one: there may be no room for two of all
            self.held[layer] = (keys[rows], values[rows])


@torch.inference_mode()
def respond(
    model: Any,
    anatomy: ModelAnatomy,
    prompts: Sequence[Sequence[int]],
    temperature: Sequence[float],
    ends: frozenset[int],
    most: int,
    seed: int,
) -> list[list[int]]:
    """The target's answers, each at its own temperature, up to and with an end token, `most` tokens at the longest."""
    device = model.device
    noise = torch.Generator(device).manual_seed(seed)
    length = torch.tensor([len(prompt) for prompt in prompts], device=device)
    warm = torch.tensor(temperature, device=device)
    final = torch.tensor(sorted(ends), device=device)
    flight = Flight(anatomy.windows, len(prompts), int(length.max()) + most, length[:, None])
    with _attention(model):
        hidden = _read(model, flight, prompts, length)
        answers = torch.full((len(prompts), most), -1, device=device)
        alive, longest = torch.arange(len(prompts), device=device), max(map(len, prompts))
        for step in range(most):
            token = draw(model.get_output_embeddings()(hidden), warm[alive], noise)
            answers[alive, step] = token
            if step % DROP == DROP - 1:
                done = torch.isin(answers[alive], final).any(1)
                (left,) = torch.nonzero(~done, as_tuple=True)
                if not len(left):
                    break
                if len(left) < len(alive):
                    alive, token = alive[left], token[left]
                    longest = int(length[alive].max())
                    flight.keep(left)
            if step < most - 1:
                flight.go((length[alive] + step)[:, None], 0, longest + step + 1)
                hidden = _pass(model, flight, token[:, None])[:, -1]
    flight.held.clear()
    return [_cut(line, ends) for line in answers.tolist()]


@contextmanager
def _attention(model: Any) -> Iterator[None]:
    """The model calls the flight in every layer, and its own attention again afterwards."""
    own = model.config._attn_implementation
    plug_in(model)
    try:
        yield
    finally:
        model.set_attn_implementation(own)


def draw(logits: Float[Tensor, "n vocab"], temperature: Float[Tensor, " n"], noise: torch.Generator) -> Tensor:
    """One token of each row: the race argmin E / p, or the likeliest where the temperature is 0."""
    scaled = logits.float() / temperature.clamp(min=1e-6)[:, None]
    race = torch.empty_like(scaled).exponential_(generator=noise).log_().neg_()
    return (scaled + torch.where(temperature[:, None] > 0, race, 0)).argmax(-1)


def _read(model: Any, flight: Flight, prompts: Sequence[Sequence[int]], length: Tensor) -> Float[Tensor, "rows hidden"]:
    """Read the prompts, some rows at a time; the hidden state at the end of each."""
    longest = max(map(len, prompts))
    some, ends = max(1, PREFILL // longest), []
    for start in range(0, len(prompts), some):
        lines = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts[start : start + some]]
        token = torch.tensor(lines, device=model.device)
        flight.go(torch.arange(longest, device=model.device).expand(len(lines), -1), start, longest)
        hidden = _pass(model, flight, token)
        last = length[start : start + some] - 1
        ends.append(hidden[torch.arange(len(lines), device=model.device), last])
    return torch.cat(ends)


def _pass(model: Any, flight: Flight, token: Int[Tensor, "rows queries"]) -> Float[Tensor, "rows queries hidden"]:
    whole = WHOLE.to(model.device)
    output = model.base_model(
        token, attention_mask=whole, position_ids=flight.position, use_cache=False, slipstream=flight
    )
    hidden: Tensor = output[0]
    return hidden


def _cut(line: list[int], ends: frozenset[int]) -> list[int]:
    """Up to and with the first end token."""
    return line[: next((i + 1 for i, token in enumerate(line) if token in ends), len(line))]
