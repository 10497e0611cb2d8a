"""Trains the dflash drafter on blocks that begin at random positions of the target's answers (arXiv 2602.06036).

Base s is the last position that the target has read, and token s + 1 is the anchor of the block. Slot k predicts the
target's distribution at position s + 1 + k. Many blocks of a row run side by side. A slot attends to the fused states
of positions 0 to s and to the slots of its own block.

The loss is that of draft_loss.py. A drafted token counts only if all tokens before it are accepted. So slot k has the
weight exp(-k / gamma), and the share `focus` of that weight is multiplied with the probability that the drafter gives
to the k answer tokens before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.drafters.dflash.folder import save_stack
from slipstream.drafters.dflash.network import DflashConfig, DflashNet
from slipstream.train.corpus import SampleBatch
from slipstream.train.method import Guess, Method
from slipstream.train.methods.draft_loss import draft_losses
from slipstream.train.methods.rollout import AnswerScores, attention_sizes, feature_layers, initialise, unit_scales
from slipstream.train.options import DflashTrainOptions
from slipstream.train.teacher import Teacher, TeacherOutput

EVALUATED = 64  # blocks of a row that are evaluated together


@dataclass(frozen=True, eq=False)
class Context:
    """The fused states of a batch, and their keys and values in every layer."""

    state: Float[Tensor, "rows length hidden"]
    keys_values: list[tuple[Tensor, Tensor]]  # [rows, length, kv_heads, dim]


class DflashMethod(Method):
    """Training of a DFlash stack."""

    name: ClassVar[str] = "dflash"
    options: ClassVar[type] = DflashTrainOptions
    drafts_in_prefill: ClassVar[bool] = False
    can_add: ClassVar[tuple[str, ...]] = ("markov",)
    net: DflashNet

    def __init__(self, teacher: Teacher, ids: Int[Tensor, " draft_vocab"], options: DflashTrainOptions) -> None:
        self.teacher, self.ids, self.settings = teacher, ids.to(teacher.device), options
        count = teacher.layers
        low = min(2, count - 1)
        spread = sorted({low + (count - 1 - low) * i // 3 for i in range(4)})  # from a low layer to the last
        self.layers = feature_layers(options.features, count, tuple(spread))
        config = _config(teacher, options, self.layers, len(ids))
        self.net = DflashNet(config).to(teacher.device)
        self.follow_target()
        initialise(self.net)
        if config.layout == "joined":
            torch.nn.init.normal_(self.net.slots, std=0.3)  # slots differ clearly from the start
        if self.net.markov is not None:
            torch.nn.init.zeros_(self.net.markov.correction.weight)  # it changes nothing at first
        self._scores = AnswerScores(self.ids, len(teacher.output))

    @torch.no_grad()
    def prepare(self, output: TeacherOutput, supervised: Bool[Tensor, "rows length"]) -> None:
        self.net.scale.copy_(unit_scales(output, supervised, self.net.config.hidden))

    def follow_target(self) -> None:
        self.net.output = self.teacher.output[self.ids].float()
        if self.net.config.layout == "masked":
            self.net.mask = self.teacher.embedding.weight[self.net.config.mask_token].float()

    def loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        bases = random_bases(batch, self.settings.anchors)
        states, position = self._blocks(batch, self._context(output), bases)
        exists = position >= 0
        supervised = batch.supervised
        number = supervised.flatten().cumsum(0).view(supervised.shape) - 1  # of each supervised position
        target = self.teacher.label_probs(batch, output, self.ids)
        row = torch.arange(len(position), device=position.device)[:, None, None].expand_as(position)[exists]
        target_probs = target[number[row, position[exists]]]
        logits = self._logits(states[exists], batch.tokens[row, position[exists]])
        losses = draft_losses(logits, target_probs, self.overlap)
        token = batch.tokens[row, position[exists] + 1]
        weight = self._weights(logits.detach(), token, exists)
        return (weight * losses).sum() / weight.sum().clamp(min=1e-6)  # short answers may have no block at all

    def _logits(self, states: Float[Tensor, "n hidden"], before: Int[Tensor, " n"]) -> Float[Tensor, "n draft_vocab"]:
        """The logits of slots. `before`: the answer's tokens before the ones that they predict."""
        if self.net.markov is None:
            return self.net.logits(states).float()
        embedding = functional.embedding(before, self.teacher.embedding.weight)
        return self.net.logits(states, embedding.to(states.dtype)).float()

    @torch.no_grad()
    def _weights(
        self,
        logits: Float[Tensor, "n draft_vocab"],
        token: Int[Tensor, " n"],
        exists: Bool[Tensor, "rows blocks block"],
    ) -> Float[Tensor, " n"]:
        """The weight in the loss of each slot that exists. `token`: the answer's token that it predicts."""
        prob = torch.ones(exists.shape, device=logits.device)
        prob[exists] = self._scores(logits, token)[1].exp()
        before = functional.pad(prob.cumprod(-1)[..., :-1], (1, 0), value=1.0)
        decay = (-torch.arange(exists.shape[-1], device=logits.device) / self.settings.gamma).exp()
        return (decay * (1 - self.settings.focus + self.settings.focus * before))[exists]

    def _context(self, output: TeacherOutput) -> Context:
        net = self.net
        state = net.fuse(output.features.to(net.scale.dtype))
        position = torch.arange(state.shape[1], device=state.device).expand(state.shape[:2])
        return Context(state, [layer.context_keys_values(state, position, net.frequency) for layer in net.stack])

    def _blocks(
        self, batch: SampleBatch, context: Context, bases: Int[Tensor, "rows blocks"]
    ) -> tuple[Float[Tensor, "rows blocks block hidden"], Int[Tensor, "rows blocks block"]]:
        """The stack's outputs for the blocks from these bases (-1: none), and the positions whose distributions they
        predict (-1: none)."""
        net, base, row = self.net, bases.clamp(min=0), torch.arange(len(bases), device=bases.device)[:, None]
        embedding = functional.embedding(batch.tokens[row, base + 1], self.teacher.embedding.weight)
        x = net.inputs(embedding.to(context.state.dtype), context.state[row, base]).flatten(1, 2)
        place = (base[..., None] + 1 + torch.arange(net.config.slots, device=bases.device)).flatten(1)
        mask = block_mask(base, batch.tokens.shape[1], net.config.slots)
        for layer, (keys, values) in zip(net.stack, context.keys_values, strict=True):
            key, value = layer.keys_values(x, place, net.frequency)
            query = layer.queries(x, place, net.frequency)
            attended = attend(query, torch.cat([keys, key], 1), torch.cat([values, value], 1), mask)
            x = layer.finish(x, attended.flatten(-2))
        position = base[..., None] + 1 + torch.arange(net.config.block, device=bases.device)
        exists = (bases >= 0)[..., None] & (position <= (batch.length - 2)[:, None, None])
        states = torch.unflatten(x, 1, (bases.shape[1], net.config.slots))[:, :, net.config.first :]
        return states, torch.where(exists, position, -1)

    @torch.no_grad()
    def guesses(self, batch: SampleBatch, output: TeacherOutput, depth: int) -> list[Guess]:
        """A depth beyond the block gives the guesses of the block."""
        depth, shape = min(depth, self.net.config.block), batch.tokens[:, :-1].shape
        context = self._context(output)
        right = torch.zeros(depth, *shape, dtype=torch.bool, device=context.state.device)
        log_prob = torch.full(right.shape, -torch.inf, device=right.device)
        positions = torch.full(right.shape, -1, device=right.device)
        row = torch.arange(shape[0], device=right.device)[:, None]
        first, last = batch.prompt_length[:, None] - 1, batch.length[:, None] - 3
        for start in range(0, max(0, int((last - first).max()) + 1), EVALUATED):
            bases = first + torch.arange(start, start + EVALUATED, device=right.device)
            bases = torch.where(bases <= last, bases, -1)
            states, position = self._blocks(batch, context, bases)
            states, position = states[:, :, :depth], position[:, :, :depth]
            exists = position >= 0
            token = batch.tokens.gather(1, position.clamp(min=0).flatten(1) + 1).view(position.shape)
            before = batch.tokens.gather(1, position.clamp(min=0).flatten(1)).view(position.shape)
            scores = self._scores(self._logits(states[exists], before[exists]), token[exists])
            step, base = torch.arange(depth, device=right.device), bases[..., None].expand_as(position)
            index = step.expand_as(position)[exists], row[..., None].expand_as(position)[exists], base[exists]
            right[index], log_prob[index] = scores
            positions[index] = position[exists]
        return [Guess(*parts) for parts in zip(right, log_prob, positions, strict=True)]

    def save(self, folder: Path, about: dict[str, Any], precision: str) -> None:
        save_stack(folder, self.net, self.ids.cpu(), precision, about)

    @property
    def shape(self) -> dict[str, Any]:
        return self.net.config.as_dict()

    @property
    def weights_read(self) -> int:
        """One pass drafts a block, so a token's share is that of the block."""
        return (sum(p.numel() for p in self.net.parameters()) + self.net.output.numel()) // self.net.config.block


def random_bases(batch: SampleBatch, count: int) -> Int[Tensor, "rows blocks"]:
    """Up to `count` different random bases of each row (-1: none). They depend on the batch alone, so that a resumed
    training continues with the same ones."""
    tokens = batch.tokens
    base = torch.arange(tokens.shape[1], device=tokens.device)
    legal = (base >= batch.prompt_length[:, None] - 1) & (base <= batch.length[:, None] - 3)
    generator = torch.Generator(tokens.device).manual_seed(int(tokens.sum()))
    score = torch.rand(tokens.shape, generator=generator, device=tokens.device).masked_fill_(~legal, -1)
    best = score.topk(max(1, min(count, int(legal.sum(1).max()))))
    return torch.where(best.values >= 0, best.indices, -1)


def block_mask(base: Int[Tensor, "rows blocks"], length: int, block: int) -> Bool[Tensor, "rows 1 slots keys"]:
    """What each slot sees: the positions up to its base, then the slots of all blocks that are of its own one."""
    blocks = base.shape[1]
    before = torch.arange(length, device=base.device) <= base[..., None]
    own = torch.eye(blocks, dtype=torch.bool, device=base.device).repeat_interleave(block, 1).expand(len(base), -1, -1)
    return torch.cat([before, own], -1).repeat_interleave(block, 1)[:, None]


def attend(
    query: Float[Tensor, "rows slots heads dim"],
    keys: Float[Tensor, "rows keys kv_heads dim"],
    values: Float[Tensor, "rows keys kv_heads dim"],
    mask: Bool[Tensor, "rows 1 slots keys"],
) -> Float[Tensor, "rows slots heads dim"]:
    group = query.shape[2] // keys.shape[2]
    k, v = (x.transpose(1, 2).repeat_interleave(group, 1) for x in (keys, values))
    return functional.scaled_dot_product_attention(query.transpose(1, 2), k, v, attn_mask=mask).transpose(1, 2)


def _config(teacher: Teacher, options: DflashTrainOptions, features: tuple[int, ...], draft_vocab: int) -> DflashConfig:
    """The sizes of the stack: the target's, where the options name no others."""
    shape = teacher.model.config.get_text_config()
    rope = getattr(shape, "rope_parameters", None) or {}
    heads, kv_heads, head_dim = attention_sizes(teacher)
    kv_heads = options.kv_heads or kv_heads
    if heads % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads}; it must divide the target's {heads} heads")
    return DflashConfig(
        hidden=shape.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=options.intermediate or shape.hidden_size,
        layers=options.layers,
        block=options.block,
        features=features,
        draft_vocab=draft_vocab,
        rope_theta=float(rope.get("rope_theta") or getattr(shape, "rope_theta", None) or 10000.0),
        layout=options.layout,
        anchor_predicts=options.layout == "joined",  # vLLM samples from the other slots only
        mask_token=_mask_token(options, len(teacher.embedding.weight)),
        markov=options.markov,
    )


def _mask_token(options: DflashTrainOptions, vocab: int) -> int:
    """The token that stands for unknown ones; -1 where the layout has none."""
    if options.layout == "joined":
        return -1
    if not options.mask_token < vocab:
        raise ValueError(f"mask_token is {options.mask_token}; the target has tokens 0 to {vocab - 1}")
    return options.mask_token if options.mask_token >= 0 else vocab - 1
