"""Any Hugging Face causal language model, with a KV cache that rolls back.

The layers are the model's own, or kernels that compute the same (`decoder_choice`); attention and cache are ours. All
rows of a cycle run as one packed sequence: each row's committed tokens that are not cached yet, then its drafted nodes
(`packing`). The output matrix, often the largest of all, is applied to slots only.

`TorchModel` combines these parts:

- `row_table`: the open rows and what the cache holds of each,
- `features`: hidden states kept for drafters,
- `prefix_reuse`: rows with a common prefix compute it once,
- `pending_reader`: prefill in chunks,
- `draft_scorer`: scoring, partial passes and commits,
- `forward_pass`: one pass over packed entries,
- `layer_blocks`: attention and MLP blocks that a drafter leaves out of a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.device import Draws
from slipstream.core.interfaces import Model
from slipstream.core.types import Draft, Row, RunCycle, Scores, Verdict
from slipstream.kernels.cpu.decoder import SkippedBlocks
from slipstream.kernels.cpu.runs.cycle_run import RunPlan
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.cpu.decoder import CpuDecoder
from slipstream.models.run.draft_scorer import DraftScorer
from slipstream.models.run.encoder_decoder.condition import CrossAttentionStates
from slipstream.models.run.encoder_decoder.decoder_pass import CrossDecoderPass
from slipstream.models.run.encoder_decoder.support_check import check_numbers, cross_anatomy
from slipstream.models.run.features import FeatureStore
from slipstream.models.run.forward_pass import ForwardPass, LayerPass
from slipstream.models.run.inference import inference
from slipstream.models.run.pending_reader import PendingReader
from slipstream.models.run.prefix_reuse import PrefixReuse
from slipstream.models.run.row_table import RowTable
from slipstream.models.run.support_check import ModelAnatomy, check_config, longest_row, probe

if TYPE_CHECKING:
    from slipstream.models.run.gpu.passes import GpuPasses


class TorchModel(Model):
    """Wraps `model`. Its attention is ours until `set_attn_implementation` replaces it."""

    def __init__(
        self,
        model: Any,
        features: tuple[int, ...] = (),
        context: int | None = None,
        prefill_chunk: int = 512,
        anatomy: ModelAnatomy | None = None,
        retained: int = 1 << 15,
        max_bytes: int | None = None,
        invariant: bool = False,
        kernels: bool = True,
    ) -> None:
        """`anatomy`: the result of an earlier probe of this model, whose attention is ours already. `retained` and
        `max_bytes`: limits of the retained rows (`retain`); 0 turns prefix reuse off. `invariant`: the numbers of a row
        depend on its own tokens only, to the bit. `kernels=False`: the model's own modules run, with their weights
        unchanged."""
        check_config(model)
        self.model = model.eval()
        self._conditions = None
        with torch.inference_mode():
            if model.config.is_encoder_decoder:
                anatomy = cross_anatomy(model) if anatomy is None else anatomy
                self._conditions = CrossAttentionStates(model)
                check_numbers(model, self._conditions)
            self.anatomy = probe(model) if anatomy is None else anatomy
        self.vocab, self.layers = self.anatomy.vocab, len(self.anatomy.layers)
        self.context = longest_row(model, context)
        self.device, self.dtype = torch.device(model.device), model.dtype
        self.invariant = invariant
        self.cache = KVCache.on(self.device)
        self.rows = RowTable(self.cache, self.context)
        self._features = FeatureStore(self.cache, self.layers)
        self.declare(features)
        self._features.apply_declared()
        self.forward_pass: LayerPass
        if self._conditions is None:
            self.forward_pass = ForwardPass(model, self.anatomy, self.cache, self._features, invariant, kernels)
        else:
            retained = 0  # the text of a row depends on its condition too, so equal prefixes have different states
            captured = kernels and self.device.type == "cuda"
            self.forward_pass = CrossDecoderPass(
                model, self.rows, self._features, self._conditions, invariant, captured
            )
        self.prefixes = PrefixReuse(self.rows, self._features, self.device, retained, max_bytes)
        self._reader = PendingReader(self.rows, self.prefixes, self.forward_pass, prefill_chunk)
        self._scorer = DraftScorer(self.rows, self.prefixes, self._reader, self.forward_pass, self.context, self.device)

    def check(self, row: Row) -> None:
        if self._conditions is None:
            super().check(row)
        else:
            self._conditions.check(row.request.condition)

    @inference
    def open(self, rows: Sequence[Row], encode: bool = True) -> None:
        """`encode=False`: conditions are encoded when they are first needed."""
        if self._conditions is not None:
            for row in rows:
                (self._conditions.open if encode else self._conditions.check)(row.request.condition)
        if self._features.apply_declared():
            self.prefixes.restart()  # retained rows lack the new layers
            for state in self.rows.states.values():
                state.drop_uncommitted()
        for row in rows:
            self.rows.open(row, self._features.layers)

    def encoder_seconds(self, row: Row) -> float:
        """What encoding a row's condition is expected to take; 0 where there is none, or it is encoded."""
        if self._conditions is None:
            return 0.0
        return float(row.request.condition.expected_seconds(self._conditions.encoder))

    @inference
    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.prefixes.close(self.rows.states.pop(row))

    def rewind(self, row: Row, length: int) -> None:
        self.rows.states[row].cut(length)

    def retain(self, tokens: int, max_bytes: int | None = None) -> None:
        self.prefixes.retain(tokens if self._conditions is None else 0, max_bytes)

    def bound(self, places: int) -> None:
        self.cache.bound(places)

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Row], limit: int) -> list[int]:
        """Read up to `limit` further committed tokens of each row, never the last one. Returns the tokens gained.

        A row with a cached prefix gets that prefix instead, of any length."""
        return self._reader.read(rows, limit)

    @torch.inference_mode()
    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        return self._scorer.score(rows, draft)

    @torch.inference_mode()
    def peek(
        self, rows: Sequence[Row], draft: Draft, layers: int, skipped: SkippedBlocks | None = None
    ) -> Float[Tensor, "slots hidden"]:
        """The hidden state after the first `layers` layers at every slot. Entries that an earlier call ran for the
        same rows and the beginning of the same draft do not run again. A pass that left out `skipped` blocks leaves
        nothing in the cache: `score` runs its entries again."""
        return self._scorer.peek(rows, draft, layers, skipped)

    @torch.inference_mode()
    def logits(self, hidden: Float[Tensor, "n hidden"]) -> Float[Tensor, "n vocab"]:
        """The model's final norm and head on hidden states; no layer runs."""
        return self.forward_pass.logits(hidden)

    @torch.inference_mode()
    def commit(self, rows: Sequence[Row], verdict: Verdict, draft: Draft | None = None) -> None:
        """`draft`: the draft that was verified, if it is not the last scored one. Accepted nodes that never ran are
        read again as committed tokens."""
        self._scorer.commit(rows, verdict, draft)

    @property
    def has_cycle_runs(self) -> bool:
        return self.forward_pass.has_cycle_runs

    @torch.inference_mode()
    def run_cycles(
        self, row: Row, most: int, depth: int = 0, head: Any = None, draws: Draws | None = None
    ) -> list[RunCycle]:
        state, left = self.rows.states[row], min(row.room(self.context), most * (depth + 1))
        if len(state.tokens) != row.length - 1 or state.hidden:
            return []
        self.rows.reserve(row, row.length + left)
        plan = RunPlan(state.index, most, left, depth, head, draws)
        cycles = self.forward_pass.run_cycles(row, plan)
        if cycles:
            state.drop_uncommitted()
            tokens = [token for cycle in cycles for token in cycle.tokens]
            self.record_written([row], [tokens[:-1]])
        return cycles

    @torch.inference_mode()
    def run_rows(self, rows: Sequence[Row], most: int, draws: Sequence[Draws | None]) -> list[list[RunCycle]]:
        states = [self.rows.states[row] for row in rows]
        if any(len(state.tokens) != row.length - 1 or state.hidden for row, state in zip(rows, states, strict=True)):
            return [[] for _ in rows]
        for row in rows:
            self.rows.reserve(row, row.length + most)
        cycles = self.forward_pass.run_rows(rows, [state.index for state in states], most, draws)
        if cycles[0]:
            for state in states:
                state.drop_uncommitted()
            self.record_written(rows, [[cycle.tokens[0] for cycle in own[:-1]] for own in cycles])
        return cycles

    def check_integrity(self) -> None:
        """Raise AssertionError unless rows, retained rows and cache agree with each other."""
        self.rows.check_integrity()
        self.prefixes.check_integrity()
        taken, lengths = zip(*self.rows.segments, *self.prefixes.retained.segments, (0, 0), strict=True)
        self.cache.check_integrity(taken[:-1], lengths[:-1])

    # Features for drafters

    def declare(self, features: Iterable[int]) -> None:
        """Keep the output of these layers too, for the rows that open from now on. Any thread may call this."""
        self._features.declare(features)

    @property
    def features(self) -> tuple[int, ...]:
        """The layers whose outputs are in every `Scores`."""
        return self._features.layers

    def cached(self, row: Row) -> int:
        """How many of a row's tokens are in the cache."""
        return len(self.rows.states[row].tokens)

    def states(self, row: Row, start: int = 0) -> dict[int, Float[Tensor, "tokens hidden"]]:
        """The outputs of the layers declared before the row opened, for its cached tokens from `start` on. Views of
        the cache: read them before the row closes."""
        state = self.rows.states[row]
        return self._features.read(state.features, state.index, start, len(state.tokens))

    # Access for captured cycles, which write the cache without this class

    @property
    def decoder(self) -> CpuDecoder | GpuPasses | None:
        """The kernels or captured modules that run the layers; None: the model's own modules, uncaptured."""
        return self.forward_pass.decoder

    @property
    def prefill_chunk(self) -> int:
        """The most tokens of a row that one prefill pass reads."""
        return self._reader.chunk

    def index(self, row: Row) -> int:
        """A row's first place in the cache."""
        return self.rows.states[row].index

    def make_room(self, row: Row, places: int) -> None:
        """Let a row have at least so many places. It may move in the cache, and so may others."""
        self.rows.reserve(row, places)

    def places(self, row: Row) -> int:
        """How many places a row has."""
        return self.cache.capacity(self.index(row))

    def feature_places(
        self, layers: Iterable[int], like: Float[Tensor, "1 hidden"]
    ) -> dict[int, Float[Tensor, "1 1 places hidden"]]:
        """The cache tensors that hold the outputs of these layers. `like` is one such output."""
        return self._features.tensors(layers, like)

    def record_written(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> None:
        """Record that the pending tokens of rows, and `tokens` after them, are in the cache of all layers."""
        states = self.rows.states
        for row, more in zip(rows, tokens, strict=True):
            state, text = states[row], row.tokens
            cached = state.tokens
            if len(cached) == len(text) - 1 and not state.uncommitted:  # most often
                cached.append(text[-1])
                if more:
                    cached += more
            else:
                self.rows.extend(row, more)
            if state.published < len(row.request.prompt) - 1:
                self.prefixes.publish(row)
