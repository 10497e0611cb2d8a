"""One forward pass over packed entries, by the model's kernels or by its own modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.device import Draws
from slipstream.core.types import Row, RunCycle
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.kernels.cpu.runs.cycle_run import RunPlan
from slipstream.models.cache.packing import RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.attention import view
from slipstream.models.run.cpu.decoder import CpuDecoder
from slipstream.models.run.decoder_choice import choose_decoder
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.invariant import InvariantActivations, invariant_attention, no_invariance
from slipstream.models.run.layer_blocks import LayerBlocks
from slipstream.models.run.layers import ModuleRunner
from slipstream.models.run.support_check import ModelAnatomy

if TYPE_CHECKING:
    from slipstream.models.run.gpu.passes import GpuPasses


class LayerPass(ABC):
    """Runs layers of a model over packed entries."""

    features: FeatureStore
    all_layers: tuple[int, int]
    decoder: CpuDecoder | GpuPasses | None  # kernels or captured modules that run the layers

    @abstractmethod
    def run(
        self,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        given: Float[Tensor, "tokens hidden"] | None,
        watched: Sequence[int] = (),
        keep: Tensor | None = None,
        skipped: SkippedBlocks | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Run the layers from `span[0]` up to `span[1]`. `given` is the input of a span that does not begin at layer 0.

        Returns the logits of the packed entries `keep`, None without `keep`, and the outputs of the watched layers.
        The `skipped` blocks of these layers do not run.
        """

    @property
    def has_cycle_runs(self) -> bool:
        """Whether `run_cycles` runs any."""
        return False

    def run_cycles(self, row: Row, plan: RunPlan) -> list[RunCycle]:
        """Some cycles of a row, by `kernels.cpu.runs.cycle_run`; none where passes must run one by one."""
        return []

    def run_rows(
        self, rows: Sequence[Row], indices: Sequence[int], most: int, draws: Sequence[Draws | None]
    ) -> list[list[RunCycle]]:
        """Some cycles of several rows, by `kernels.cpu.runs.rows_run`; none where passes must run one by one."""
        return [[] for _ in rows]

    @abstractmethod
    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's final norm and head on hidden states; no layer runs."""


class ForwardPass(LayerPass):
    """Runs layers over packed entries. Keys, values and declared features are written to the cache."""

    def __init__(
        self,
        model: Any,
        anatomy: ModelAnatomy,
        cache: KVCache,
        features: FeatureStore,
        invariant: bool,
        kernels: bool,
    ) -> None:
        """`invariant`: a row's numbers depend on its own tokens only, to the bit. Without `kernels` the model's own
        modules run, with their weights unchanged."""
        self.features, self.all_layers = features, (0, len(anatomy.layers))
        self._model, self._windows, self._cache, self._invariant = model, anatomy.windows, cache, invariant
        self._device = torch.device(model.device)
        self._kernel = invariant_attention(model) if invariant and self._device.type == "cpu" else None
        self.decoder = choose_decoder(model, anatomy, invariant) if kernels else None
        if invariant and self._kernel is None and self.decoder is None:
            raise no_invariance(model, "its layers are not run by kernels that sum in one order")
        own_modules = self._kernel is not None and self.decoder is None
        self._activations = InvariantActivations(model) if own_modules else None
        self._modules = ModuleRunner(model, anatomy.layers, anatomy.as_tuple)
        self._blocks = LayerBlocks(anatomy.layers)

    def run(
        self,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        given: Float[Tensor, "tokens hidden"] | None,
        watched: Sequence[int] = (),
        keep: Tensor | None = None,
        skipped: SkippedBlocks | None = None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        if isinstance(self.decoder, CpuDecoder):
            places = self.features.places(watched, pieces, self.decoder.state_like)
            if places is not None:
                logits, outputs, _ = self.decoder.forward(
                    self._cache, pieces, span, given, watched, keep, places, skipped
                )
                return logits, outputs
            logits, outputs, where = self.decoder.forward(
                self._cache, pieces, span, given, watched, keep, skipped=skipped
            )
            self._write_features(outputs, pieces, where)
            return logits, outputs
        if self.decoder is not None and skipped is None and self.decoder.supports(pieces):
            logits, outputs, where = self.decoder.forward(self._cache, pieces, span, given, watched, keep)
            self._write_features(outputs, pieces, where)
            return logits, outputs
        if self._invariant and self._kernel is None:
            pass_kind = "a tree as wide as this" if skipped is None else "a pass with skipped blocks"
            raise no_invariance(self._model, f"{pass_kind} is not run by kernels that sum in one order")
        return self._run_modules(pieces, span, given, watched, keep, skipped)

    @property
    def has_cycle_runs(self) -> bool:
        return isinstance(self.decoder, CpuDecoder) and self.decoder.has_cycle_runs

    def run_cycles(self, row: Row, plan: RunPlan) -> list[RunCycle]:
        if not isinstance(self.decoder, CpuDecoder):
            return []
        return self.decoder.run_cycles(self._cache, self.features, row, plan)

    def run_rows(
        self, rows: Sequence[Row], indices: Sequence[int], most: int, draws: Sequence[Draws | None]
    ) -> list[list[RunCycle]]:
        if not isinstance(self.decoder, CpuDecoder):
            return [[] for _ in rows]
        return self.decoder.run_rows(self._cache, self.features, rows, indices, most, draws)

    def _write_features(
        self, outputs: Mapping[int, Tensor], pieces: Sequence[RowSlice], where: tuple[Tensor, Tensor]
    ) -> None:
        for layer in self.features.layers:
            if layer in outputs:
                self.features.write(layer, outputs[layer], pieces, where)

    def _run_modules(
        self,
        pieces: Sequence[RowSlice],
        span: tuple[int, int],
        given: Float[Tensor, "tokens hidden"] | None,
        watched: Sequence[int],
        keep: Tensor | None,
        skipped: SkippedBlocks | None,
    ) -> tuple[Tensor | None, dict[int, Tensor]]:
        """The pass by the model's own modules."""
        context = view(self._cache, self._windows, pieces, self._device, self._kernel)
        token = [token for piece in pieces for token in piece.line.token[piece.skip :]]
        position = [place for piece in pieces for place in piece.line.position[piece.skip :]]
        token_ids, position_ids = torch.tensor([token, position], device=self._device)
        with nullcontext() if self._activations is None else self._activations.applied():
            left_out = nullcontext() if skipped is None else self._blocks.left_out(skipped)
            with left_out:
                logits, outputs = self._modules.run(token_ids, position_ids, context, span, given, watched, keep)
        for layer in outputs.keys() & set(self.features.layers):
            context.store_output(layer, outputs[layer])
        return logits, outputs

    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        return (self._modules if self.decoder is None else self.decoder).logits(hidden)
