"""The records that a decoding cycle passes on, and the glossary of slipstream.

target, draft model    the model whose distribution the output keeps; a cheaper one that guesses ahead
target_probs p, draft_probs q
                       their next-token probabilities; never swapped, never one letter outside a formula
law                    the exact distribution a token was drawn from, after temperature, top-k and the rest
row                    one request while it decodes: its committed tokens and its limits
cycle                  draft, score, verify, commit: one pass of the target
node                   one drafted token; nodes of all rows are packed on one axis (`core/tree.py`)
slot                   a place a next token may follow: the committed end of a row, or a node
depth, width           drafted tokens along one path (K in the papers); candidates per position
accepted               drafted tokens that verification keeps
recovered              the token drawn instead of the first rejected one
bonus                  the token the target adds where a whole path was accepted
plain                  a token of a row that drafted nothing in its cycle
emitted                accepted tokens and the one recovered, bonus or plain token of each cycle
tau                    mean emitted tokens per target pass
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch

from slipstream.core.array_types import Bool, Float, Int, Tensor
from slipstream.core.law import Law
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Shape, Siblings, Tree


class Origin(StrEnum):
    """How a token came to be emitted."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    PLAIN = "plain"


class Constraint(ABC):
    """A grammar that follows one row and says which tokens may come next."""

    @abstractmethod
    def allowed(self, path: Sequence[int]) -> Bool[Tensor, " vocab"] | None:
        """Tokens that may follow the committed text and then `path`; None where `path` itself is not allowed."""

    @abstractmethod
    def advance(self, tokens: Sequence[int]) -> None:
        """These tokens were committed."""


Processor = Callable[[Sequence[int], Tensor], Tensor]
"""All tokens before a place, and its logits; the logits to use instead. It must depend on nothing else."""


@dataclass(frozen=True)
class Request:
    """What a user asks for: a prompt of token ids, how to sample, and where to stop."""

    prompt: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 128
    ends: frozenset[int] = frozenset()
    sample: int = 0
    min_tokens: int = 0  # no end token before so many are emitted
    grammar: Callable[[], Constraint] | None = None
    processor: Processor | None = None  # the user's own shaping of logits

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be 0 or more")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}; it must be between 0 and max_tokens, {self.max_tokens}")
        if not self.prompt:
            raise ValueError("the prompt is empty; give at least one token")
        if self.sample < 0:
            raise ValueError(f"sample is {self.sample}; it must be 0 or more")


class Row:
    """One request while it decodes. `finish` names why it ended; the end token itself is emitted."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        self.sample = request.sample
        self.tokens = list(request.prompt)
        self.origins: list[Origin] = []
        self.finish_reason: str | None = None if request.max_tokens else "length"
        self.constraint = request.grammar() if request.grammar else None

    @property
    def length(self) -> int:
        """Committed tokens, prompt included."""
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def emitted(self) -> int:
        """Committed tokens beyond the prompt."""
        return len(self.tokens) - len(self.request.prompt)

    def room(self, context: int) -> int:
        """How many tokens may still be emitted before the request's limit or the model's context ends."""
        longest = len(self.request.prompt) + self.request.max_tokens
        return max(0, min(longest, context) - len(self.tokens))

    def extend(self, tokens: Sequence[int], origins: Sequence[Origin], context: int) -> int:
        """Commit emitted tokens up to the first end token; how many were kept."""
        ends = self.request.ends
        if not ends.isdisjoint(tokens):
            kept = next(i for i, token in enumerate(tokens) if token in ends) + 1
            tokens, origins = tokens[:kept], origins[:kept]
        self.tokens += tokens
        self.origins += origins
        if self.constraint:
            self.constraint.advance(tokens)
        if self.tokens[-1] in ends:
            self.finish_reason = "stop"
        elif self.room(context) == 0:
            self.finish_reason = "length"
        return len(tokens)


@dataclass(frozen=True)
class Budget:
    """What one row may spend on drafting in one cycle; depth 0 is plain decoding, no shape a chain.

    Drafting stops early before a position whose draft law has no token of probability `stop_below` or more. That
    decision may look at the tokens drafted so far and at the law of the next one, never at the next token itself.
    """

    depth: int
    stop_below: float = 0.0
    shape: Shape | None = None
    siblings: Siblings | None = None  # how the rule wants candidates drawn; None: one after a slot, from the law

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 (plain decoding) or more")
        if not 0 <= self.stop_below <= 1:
            raise ValueError(f"stop_below is {self.stop_below}; it must be between 0 and 1")


@dataclass(frozen=True, eq=False)
class Draft:
    """Drafted tokens of several rows and, for each, the law it was drawn from."""

    tree: Tree
    token: Int[Tensor, " nodes"]
    law: Law
    siblings: Siblings | None = None  # how candidates after one slot were drawn, where there are several
    chance: Float[Tensor, " nodes"] | None = None  # the drafter's own probability of each token, where it has one

    def __post_init__(self) -> None:
        assert len(self.tree) == len(self.token) == len(self.law), "a draft has one token and one law per node"

    def to(self, device: torch.device) -> Draft:
        """The same draft on a device: drafters may live on the host while laws are made where the target runs."""
        tree = self.tree
        if self.token.device == device:
            return self
        moved = Tree(tree.rows, tree.row.to(device), tree.parent.to(device))
        moved.__dict__["lists"] = tree.lists  # what the host knows of the topology it need not read back
        chance = None if self.chance is None else self.chance.to(device)
        return Draft(moved, self.token.to(device), self.law.to(device), self.siblings, chance)


class LazyRows(Mapping[int, Tensor]):
    """Some lines of several tensors, taken when somebody asks for them: drafters mostly read a model's cache."""

    def __init__(self, whole: Mapping[int, Tensor], lines: slice | Tensor) -> None:
        self._whole, self._lines = whole, lines

    def __getitem__(self, name: int) -> Tensor:
        return self._whole[name][self._lines]

    def __iter__(self) -> Iterator[int]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)


@dataclass(frozen=True, eq=False)
class Scores:
    """The target's view of every slot: logits of the token that follows, and hidden layers drafters asked for."""

    logits: Float[Tensor, "slots vocab"]
    features: Mapping[int, Float[Tensor, "slots hidden"]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What verification decided: the accepted nodes of each row, root first, and the one token after them."""

    path: Int[Tensor, "rows depth"]  # packed node numbers, -1 beyond the accepted ones
    token: Int[Tensor, " rows"]
    bonus: Bool[Tensor, " rows"]  # nothing was rejected: the token follows a whole drafted path

    @property
    def accepted(self) -> Int[Tensor, " rows"]:
        return (self.path >= 0).sum(1)


@dataclass(frozen=True)
class RowOutcome:
    """What a verdict says of one row: its accepted nodes, and the tokens to emit with their origins."""

    path: list[int]
    tokens: list[int]
    origins: list[Origin]
    drafted: int


@dataclass(frozen=True)
class Step:
    """What one cycle did for one row, its limits kept."""

    row: Row
    tokens: list[int]
    origins: list[Origin]
    drafted: int
    accepted: int
