"""The target as a teacher: what its layers and its law say at every position of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from slipstream.core.array_types import Float, Int, Tensor
from slipstream.models.run.layers import hidden_of
from slipstream.models.run.support_check import ModelAnatomy, probe, refuse
from slipstream.train.corpus import Batch


@dataclass(frozen=True, eq=False)
class Lesson:
    """What the target said about a batch: hidden states of some layers side by side, and of the last one, normed."""

    features: Float[Tensor, "rows length stacked"]
    last: Float[Tensor, "rows length hidden"]


class Teacher:
    """A Hugging Face model that is not trained. Its logits must be its output matrix times its last state."""

    def __init__(self, model: Any) -> None:
        self.model = model.requires_grad_(False)
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
        said = self.model(token, use_cache=False).logits.float()
        ours = self.model.base_model(token, use_cache=False)[0].float() @ self.output.float().T
        if (said - ours).abs().max() > 0.02 * said.abs().max():
            raise refuse(self.model, "its logits are more than its output matrix times its last hidden state")
        start = self.embedding(token)
        if (start - torch.nn.functional.embedding(token, self.embedding.weight)).abs().max() > 0:
            raise refuse(self.model, "its embeddings are more than rows of a matrix")

    @property
    def layers(self) -> int:
        return len(self.anatomy.layers)

    @torch.no_grad()
    def lesson(self, batch: Batch, layers: Sequence[int] = ()) -> Lesson:
        """One pass over a batch; padding stands on the right, where no one looks back from."""
        found: dict[int, Tensor] = {}
        handles = [
            self.anatomy.layers[layer].register_forward_hook(
                lambda _, __, output, layer=layer: found.update({layer: hidden_of(output)})
            )
            for layer in layers
        ]
        try:
            last = self.model.base_model(batch.tokens, use_cache=False)[0]
        finally:
            for handle in handles:
                handle.remove()
        features = torch.cat([found[layer] for layer in layers], -1) if layers else last[..., :0]
        return Lesson(features, last)

    @torch.no_grad()
    def law(
        self, last: Float[Tensor, "n hidden"], ids: Int[Tensor, " draft_vocab"], chunk: int = 4096
    ) -> Float[Tensor, "n draft_vocab"]:
        """log p of the tokens a draft vocabulary names, under the whole vocabulary."""
        parts = []
        for some in torch.split(last, chunk):
            logits = (some @ self.output.T).float()
            parts.append(logits[:, ids] - logits.logsumexp(-1, keepdim=True))
        return torch.cat(parts)

    @torch.no_grad()
    def said(self, last: Float[Tensor, "n hidden"], token: Int[Tensor, " n"], chunk: int = 4096) -> Float[Tensor, " n"]:
        """log p of one token at each place."""
        parts = []
        for some, wanted in zip(torch.split(last, chunk), torch.split(token, chunk), strict=True):
            logits = (some @ self.output.T).float()
            parts.append(logits.gather(-1, wanted[:, None])[:, 0] - logits.logsumexp(-1))
        return torch.cat(parts)
