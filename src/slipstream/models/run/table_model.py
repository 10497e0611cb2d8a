"""A model small enough to enumerate: a table of next-token distributions, indexed by the last few tokens.

Exactness is proved on it. The distribution depends on the context, so a row shifted by one is noticed. The context is
read from the model's own cache of committed tokens, so a wrong roll-back is noticed too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from slipstream.core.array_types import Float, Tensor
from slipstream.core.interfaces import Model
from slipstream.core.types import Draft, Row, Scores, Verdict


@dataclass(frozen=True, eq=False)
class Table:
    """`probs[c]` is the law after the last `order` tokens.

    c is the number whose digits in base `vocab` are these tokens. Missing tokens count as 0."""

    probs: Float[Tensor, "contexts vocab"]
    order: int

    def __post_init__(self) -> None:
        contexts, vocab = self.probs.shape
        if contexts != vocab**self.order:
            raise ValueError(
                f"a table of order {self.order} over {vocab} tokens has {vocab**self.order} rows, not {contexts}"
            )
        if bool((self.probs < 0).any()) or not bool(((self.probs.sum(-1) - 1).abs() < 1e-9).all()):
            raise ValueError("every row of a table must be non-negative and sum to 1")

    @property
    def vocab(self) -> int:
        return self.probs.shape[1]

    def context(self, tokens: Sequence[int]) -> int:
        number, vocab = 0, self.vocab
        for token in tokens[-self.order :] if self.order else ():
            number = number * vocab + token
        return number

    def law(self, tokens: Sequence[int]) -> Float[Tensor, " vocab"]:
        return self.probs[self.context(tokens)]

    @staticmethod
    def random(vocab: int, order: int, seed: int, zeros: float = 0.2) -> Table:
        """A random table of small fractions; about a share `zeros` of its entries is exactly 0."""
        generator = torch.Generator().manual_seed(seed)
        shape = (vocab**order, vocab)
        weights = torch.randint(1, 13, shape, generator=generator)
        weights[torch.rand(shape, generator=generator) < zeros] = 0
        weights[:, 0] += weights.sum(1) == 0
        return Table(weights.double() / weights.sum(1, keepdim=True), order)

    @staticmethod
    def load(path: Path) -> tuple[Table, Table]:
        """Target and draft from JSON: {"vocab": 2, "order": 1, "target": [[…], …], "draft": [[…], …]}."""
        try:
            data = json.loads(path.read_text())
            target, draft = (
                Table(torch.tensor(data[key], dtype=torch.float64).reshape(-1, int(data["vocab"])), int(data["order"]))
                for key in ("target", "draft")
            )
        except OSError as error:
            raise ValueError(f"cannot read the table {path}: {error.strerror}") from error
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            legal = 'a table file holds "vocab", "order", and "target" and "draft" with vocab**order laws each'
            raise ValueError(f"{path} is malformed ({type(error).__name__}: {error}); {legal}") from error
        return target, draft


class TableModel(Model):
    """A model that reads its laws from a `Table`."""

    def __init__(self, table: Table, context: int = 1 << 30) -> None:
        self.table, self.vocab, self.context = table, table.vocab, context
        self._cache: dict[Row, list[int]] = {}
        self._draft: Draft | None = None

    def open(self, rows: Sequence[Row]) -> None:
        self._cache |= {row: [] for row in rows}

    def close(self, rows: Sequence[Row]) -> None:
        for row in rows:
            del self._cache[row]

    def rewind(self, row: Row, length: int) -> None:
        del self._cache[row][length:]

    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        self._draft = draft
        contexts = []
        for row in rows:
            cache = self._cache[row]
            cache += row.tokens[len(cache) :]
            contexts.append(cache[-self.table.order :] if self.table.order else [])
        for (r, p), token in zip(draft.tree.lists, draft.token.tolist(), strict=True):
            contexts.append([*contexts[r if p < 0 else len(rows) + p], token])
        index = torch.tensor([self.table.context(tokens) for tokens in contexts], dtype=torch.long)
        return Scores(self.table.probs[index].log())

    def commit(self, rows: Sequence[Row], verdict: Verdict) -> None:
        assert self._draft is not None, "commit follows score"
        tokens = self._draft.token.tolist()
        for row, path in zip(rows, verdict.path.tolist(), strict=True):
            self._cache[row] += [tokens[i] for i in path if i >= 0]

    def check_integrity(self) -> None:
        for row, cache in self._cache.items():
            assert cache == row.tokens[: len(cache)], f"the cache holds {cache}, the row {row.tokens}"
