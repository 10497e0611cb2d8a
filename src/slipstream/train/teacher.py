"""The target as a teacher: its hidden states and its distribution at every position of a batch.

In joint training the target learns, too: the tokens of the texts by its own loss, and its hidden states through the
drafter's loss. The labels of a drafter never pass a gradient to the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.models.run.layers import hidden_of
from slipstream.models.run.support_check import ModelAnatomy, probe, refuse
from slipstream.train.corpus import SampleBatch


@dataclass(frozen=True, eq=False)
class TeacherOutput:
    """Hidden states of some layers side by side, and the normalised last hidden state."""

    features: Float[Tensor, "rows length stacked"]
    last: Float[Tensor, "rows length hidden"]


class Teacher:
    """A Hugging Face model. Its logits must be its output matrix times its last hidden state.

    `joint`: whether the model is trained. `text_labels`: whether drafters learn the tokens of the texts. By default
    they learn the model's distribution."""

    def __init__(self, model: Any, joint: bool = False, text_labels: bool = False) -> None:
        self.model, self.joint, self._text_labels = model.requires_grad_(joint), joint, text_labels
        own = model.config._attn_implementation
        with torch.inference_mode():
            self.anatomy: ModelAnatomy = probe(model)
        model.set_attn_implementation(own)
        self.device: torch.device = model.device
        self.embedding = model.get_input_embeddings()
        self.output: Tensor = model.get_output_embeddings().weight
        self._check()

    @torch.no_grad()
    def _check(self) -> None:
        token = torch.arange(8, device=self.device)[None]
        expected = self.model(token, use_cache=False).logits.float()
        logits = self.model.base_model(token, use_cache=False)[0].float() @ self.output.float().T
        if (expected - logits).abs().max() > 0.02 * expected.abs().max():
            raise refuse(self.model, "its logits are more than its output matrix times its last hidden state")
        embedded = self.embedding(token)
        if (embedded - torch.nn.functional.embedding(token, self.embedding.weight)).abs().max() > 0:
            raise refuse(self.model, "its embeddings are more than rows of a matrix")

    @property
    def layers(self) -> int:
        return len(self.anatomy.layers)

    def read(self, batch: SampleBatch, layers: Sequence[int] = ()) -> TeacherOutput:
        """One pass over a batch. Attention is causal, so the padding on the right changes nothing."""
        with torch.set_grad_enabled(self.joint and torch.is_grad_enabled()):
            return self._read(batch, layers)

    def _read(self, batch: SampleBatch, layers: Sequence[int]) -> TeacherOutput:
        states: dict[int, Tensor] = {}
        handles = [
            self.anatomy.layers[layer].register_forward_hook(
                lambda _, __, output, layer=layer: states.update({layer: hidden_of(output)})
            )
            for layer in layers
        ]
        try:
            last = self.model.base_model(batch.tokens, use_cache=False)[0]
        finally:
            for handle in handles:
                handle.remove()
        features = torch.cat([states[layer] for layer in layers], -1) if layers else last[..., :0]
        return TeacherOutput(features, last)

    def text_loss(self, batch: SampleBatch, output: TeacherOutput) -> Tensor:
        """The model's cross-entropy at the supervised tokens of a batch."""
        supervised = batch.supervised
        logits = functional.linear(output.last[supervised], self.output).float()
        return functional.cross_entropy(logits, batch.tokens.roll(-1, 1)[supervised])

    @torch.no_grad()
    def label_probs(
        self, batch: SampleBatch, output: TeacherOutput, ids: Int[Tensor, " draft_vocab"]
    ) -> Float[Tensor, "supervised draft_vocab"]:
        """What a drafter learns at every supervised position: probabilities of the tokens of its vocabulary."""
        supervised = batch.supervised
        if self._text_labels:
            chosen: Bool[Tensor, "supervised draft_vocab"] = batch.tokens.roll(-1, 1)[supervised][:, None] == ids
            return chosen.float()
        return self.log_probs(output.last[supervised], ids).exp_()

    @torch.no_grad()
    def log_probs(
        self, last: Float[Tensor, "n hidden"], ids: Int[Tensor, " draft_vocab"], chunk: int = 4096
    ) -> Float[Tensor, "n draft_vocab"]:
        """log p of the tokens of a draft vocabulary, normalised over the whole vocabulary."""
        parts = []
        for states in torch.split(last, chunk):
            logits = (states @ self.output.T).float()
            parts.append(logits[:, ids] - logits.logsumexp(-1, keepdim=True))
        return torch.cat(parts)

    @torch.no_grad()
    def token_log_probs(
        self, last: Float[Tensor, "n hidden"], token: Int[Tensor, " n"], chunk: int = 4096
    ) -> Float[Tensor, " n"]:
        """log p of one token at each position."""
        parts = []
        for states, tokens in zip(torch.split(last, chunk), torch.split(token, chunk), strict=True):
            logits = (states @ self.output.T).float()
            parts.append(logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1))
        return torch.cat(parts)
