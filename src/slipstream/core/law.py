"""Laws: batches of the exact distributions that tokens are drawn from.

A law is one-hot (a token was chosen, not sampled), sparse (a few token ids) or dense. Rules do not depend on the kind.
They ask for the probability of a token (`prob`), for dense probabilities of the target (`dense`), and for the part of
the target's law that exceeds the draft's (`excess`). One-hot and sparse draft laws are never made dense.

Probabilities are float32 or float64. Every law sums to one up to rounding (`check`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slipstream.core.array_types import Float, Int, Tensor


class Law(ABC):
    """`len(law)` distributions over `vocab` tokens."""

    vocab: int

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of token ids in `support`; 1 for a one-hot law."""

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @abstractmethod
    def prob(self, token: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Probability of one token under each law."""

    def prob_at(self, index: Int[Tensor, " n"], token: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Probability of one token under each of the laws at `index`."""
        return self.select(index).prob(token)

    @abstractmethod
    def select(self, index: Int[Tensor, " m"]) -> Law:
        """The laws at `index`, in that order."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "n vocab"]:
        """All probabilities as one tensor."""

    @abstractmethod
    def excess(self, weight: Float[Tensor, "n vocab"]) -> Float[Tensor, "n vocab"]:
        """max(weight - law, 0), element by element: the unnormalised residual."""

    @abstractmethod
    def to(self, device: torch.device) -> Law:
        """The same laws on a device."""

    @abstractmethod
    def support(self) -> tuple[Int[Tensor, "n s"], Float[Tensor, "n s"]]:
        """Candidate ids and their probabilities. Some probabilities may be 0."""

    def without(self, token: Int[Tensor, " n"]) -> Law:
        """Each law conditioned on not being this token; all zeros if no other token was possible."""
        ids, probs = self.support()
        return Sparse(ids, _normalised(torch.where(ids == token[:, None], 0, probs)), self.vocab)

    def check(self, tolerance: float = 1e-4) -> None:
        """Raise ValueError unless every law is a distribution."""
        probs = self.support()[1]
        total = probs.double().sum(-1)
        if bool((probs < 0).any()) or not bool(((total - 1).abs() <= tolerance).all()):
            raise ValueError("a law must be non-negative and sum to 1 in every row")


@dataclass(frozen=True, eq=False)
class OneHot(Law):
    """All probability on one token: n-gram drafts, chosen tree candidates, temperature 0."""

    token: Int[Tensor, " n"]
    vocab: int

    def __len__(self) -> int:
        return len(self.token)

    @property
    def width(self) -> int:
        return 1

    @property
    def device(self) -> torch.device:
        return self.token.device

    def prob(self, token: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return (self.token == token).float()

    def select(self, index: Int[Tensor, " m"]) -> OneHot:
        return OneHot(self.token[index], self.vocab)

    def dense(self) -> Float[Tensor, "n vocab"]:
        return torch.zeros(len(self), self.vocab, device=self.token.device).scatter_(1, self.token[:, None], 1.0)

    def excess(self, weight: Float[Tensor, "n vocab"]) -> Float[Tensor, "n vocab"]:
        left = (weight.gather(1, self.token[:, None]) - 1).clamp(min=0)
        return weight.scatter(1, self.token[:, None], left)

    def to(self, device: torch.device) -> OneHot:
        return OneHot(self.token.to(device), self.vocab)

    def support(self) -> tuple[Int[Tensor, "n s"], Float[Tensor, "n s"]]:
        return self.token[:, None], torch.ones(len(self), 1, device=self.token.device)


@dataclass(frozen=True, eq=False)
class Sparse(Law):
    """Probabilities on a few token ids.

    Ids with positive probability are distinct within a law. Shorter laws are padded with entries of probability 0."""

    ids: Int[Tensor, "n s"]
    probs: Float[Tensor, "n s"]
    vocab: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def width(self) -> int:
        return self.ids.shape[1]

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def prob(self, token: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return (self.probs * (self.ids == token[:, None])).sum(-1)

    def select(self, index: Int[Tensor, " m"]) -> Sparse:
        return Sparse(self.ids[index], self.probs[index], self.vocab)

    def dense(self) -> Float[Tensor, "n vocab"]:
        return self.probs.new_zeros(len(self), self.vocab).scatter_add_(1, self.ids, self.probs)

    def excess(self, weight: Float[Tensor, "n vocab"]) -> Float[Tensor, "n vocab"]:
        return weight.scatter_add(1, self.ids, -self.probs.to(weight.dtype)).clamp_(min=0)

    def to(self, device: torch.device) -> Sparse:
        return Sparse(self.ids.to(device), self.probs.to(device), self.vocab)

    def support(self) -> tuple[Int[Tensor, "n s"], Float[Tensor, "n s"]]:
        return self.ids, self.probs


@dataclass(frozen=True, eq=False)
class Dense(Law):
    """A probability for every token of the vocabulary."""

    probs: Float[Tensor, "n vocab"]

    def __post_init__(self) -> None:
        assert self.probs.dtype in (torch.float32, torch.float64), f"a law in {self.probs.dtype} is not exact"

    @property
    def vocab(self) -> int:  # type: ignore[override]
        return self.probs.shape[-1]

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def width(self) -> int:
        return self.vocab

    @property
    def device(self) -> torch.device:
        return self.probs.device

    def prob(self, token: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return self.probs.gather(1, token[:, None])[:, 0]

    def prob_at(self, index: Int[Tensor, " n"], token: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        return self.probs[index, token]  # without copying whole laws

    def select(self, index: Int[Tensor, " m"]) -> Dense:
        return Dense(self.probs[index])

    def dense(self) -> Float[Tensor, "n vocab"]:
        return self.probs

    def excess(self, weight: Float[Tensor, "n vocab"]) -> Float[Tensor, "n vocab"]:
        return (weight - self.probs).clamp_(min=0)

    def without(self, token: Int[Tensor, " n"]) -> Dense:
        return Dense(_normalised(self.probs.scatter(1, token[:, None], 0)))

    def to(self, device: torch.device) -> Dense:
        return Dense(self.probs.to(device))

    def support(self) -> tuple[Int[Tensor, "n s"], Float[Tensor, "n s"]]:
        ids = torch.arange(self.vocab, device=self.probs.device)
        return ids.expand(len(self), -1), self.probs


def _normalised(weights: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
    """Weights divided by their own sum. Dividing by 1 - (removed mass) would lose digits by cancellation."""
    total = weights.sum(-1, keepdim=True, dtype=torch.float64)
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1), 0).to(weights.dtype)


def concat(laws: Sequence[Law]) -> Law:
    """Several batches of laws as one batch, of the most compact kind that can represent them all."""
    assert laws, "nothing to concatenate"
    if len(laws) == 1:
        return laws[0]
    vocab = laws[0].vocab
    if all(isinstance(law, OneHot) for law in laws):
        return OneHot(torch.cat([law.support()[0][:, 0] for law in laws]), vocab)
    if any(isinstance(law, Dense) for law in laws):
        return Dense(torch.cat([law.dense() for law in laws]))
    width = max(law.support()[0].shape[1] for law in laws)
    parts = [_padded(*law.support(), width) for law in laws]
    return Sparse(torch.cat([ids for ids, _ in parts]), torch.cat([probs for _, probs in parts]), vocab)


def _padded(ids: Tensor, probs: Tensor, width: int) -> tuple[Tensor, Tensor]:
    missing = width - ids.shape[1]
    return torch.nn.functional.pad(ids, (0, missing)), torch.nn.functional.pad(probs, (0, missing))
