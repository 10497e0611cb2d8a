"""The records of a decoding cycle, and the glossary of slipstream.

target, draft model    the model whose distribution the output has; a cheaper model that proposes tokens
target_probs p, draft_probs q
                       their next-token probabilities; single letters stand in formulas only
law                    the exact distribution a token was drawn from, after temperature, top-k and so on
row                    one request while it decodes: its committed tokens and its limits
cycle                  draft, score, verify, commit: one forward pass of the target
node                   one drafted token; nodes of all rows are packed on one axis (`core/tree.py`)
slot                   a position after which a next token may follow: the committed end of a row, or a node
place                  a position in a row's KV cache; in `core/shaping.py`: a row and the drafted tokens before a slot
depth, width           drafted tokens along one path (K in the papers); candidates per slot
accepted               drafted tokens that verification keeps
recovered              the token drawn instead of the first rejected one
bonus                  the token the target adds where a whole path was accepted
plain                  a token of a row that drafted nothing in its cycle
emitted                accepted tokens and the recovered, bonus or plain token after them
captured cycle         a cycle that runs as one CUDA graph (`core/device.py`)
tau                    mean emitted tokens per target pass
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

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
    """The state of a grammar for one row: which tokens may come next."""

    @abstractmethod
    def allowed(self, path: Sequence[int]) -> Bool[Tensor, " vocab"] | None:
        """Tokens that may follow the committed tokens and then `path`; None if `path` itself is not allowed."""

    @abstractmethod
    def advance(self, tokens: Sequence[int]) -> None:
        """Advance the grammar by tokens that were committed."""


Processor = Callable[[Sequence[int], Tensor], Tensor]
"""A logits processor: (all tokens before a position, its logits [vocab]) -> new logits. It must be a pure function."""


@dataclass(frozen=True)
class Request:
    """A user's request: a prompt of token ids, sampling parameters, and where to stop."""

    prompt: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 128
    ends: frozenset[int] = frozenset()  # end tokens, which stop generation
    sample: int = 0  # index among the samples of one prompt and seed
    min_tokens: int = 0  # end tokens are suppressed until so many tokens are emitted
    grammar: Callable[[], Constraint] | None = None
    processor: Processor | None = None
    history: str | None = None  # whose earlier outputs a drafter may read and add to; None: neither
    prediction: Sequence[int] = ()  # tokens that the output is likely to repeat; only some drafters read them
    condition: Any = None  # what the output depends on besides the prompt, such as audio; models say what they take

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
    """One request while it decodes. `finish_reason` is None until it ends. An end token itself is emitted."""

    ahead = 0  # tokens of captured cycles that were read and are not in `tokens` yet

    def __init__(self, request: Request) -> None:
        self.request = request
        self.seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
        self.sample = request.sample
        self.tokens = list(request.prompt)
        self._longest = len(self.tokens) + request.max_tokens
        self.origins: list[Origin] = []
        self.finish_reason: str | None = None if request.max_tokens else "length"
        self.constraint = request.grammar() if request.grammar else None
        self.logprobs: int | None = None  # most probable tokens to report at each position; None: no log-probability

    @property
    def length(self) -> int:
        """Committed tokens, prompt included."""
        return len(self.tokens) + self.ahead

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def emitted(self) -> int:
        """Committed tokens beyond the prompt."""
        return len(self.tokens) + self.ahead - len(self.request.prompt)

    @property
    def left(self) -> int:
        """How many tokens may still be emitted, by the request's limit alone."""
        return self._longest - len(self.tokens) - self.ahead

    def room(self, context: int) -> int:
        """How many tokens may still be emitted, by the request's limit and the model's context."""
        longest = self._longest if self._longest < context else context
        return max(0, longest - len(self.tokens) - self.ahead)

    def extend(self, tokens: Sequence[int], origins: Sequence[Origin], context: int) -> int:
        """Commit emitted tokens up to the first end token. Returns how many were committed."""
        ends, own = self.request.ends, self.tokens
        if ended := not ends.isdisjoint(tokens):
            kept = next(i for i, token in enumerate(tokens) if token in ends) + 1
            tokens, origins = tokens[:kept], origins[:kept]
        own += tokens
        self.origins += origins
        if self.constraint:
            self.constraint.advance(tokens)
        if ended:
            self.finish_reason = "stop"
        elif len(own) >= self._longest or len(own) >= context:
            self.finish_reason = "length"
        return len(tokens)


@dataclass(frozen=True)
class Budget:
    """What one row may draft in one cycle. Depth 0 means plain decoding; without a shape the draft is a chain.

    Drafting stops before a position if no token of its draft law has probability `stop_below` or more. To stay exact,
    this decision may use the tokens drafted so far and the law of the next token, but not the next token itself.
    """

    depth: int
    stop_below: float = 0.0
    shape: Shape | None = None
    siblings: Siblings | None = None  # how candidates of a slot are drawn; None: one candidate, sampled from the law
    least_chance: float = 0.0  # a drafter that chooses tokens leaves out a chain that is less likely to be accepted

    def __post_init__(self) -> None:
        if self.depth < 0:
            raise ValueError(f"depth is {self.depth}; it must be 0 (plain decoding) or more")
        if not 0 <= self.stop_below <= 1:
            raise ValueError(f"stop_below is {self.stop_below}; it must be between 0 and 1")


@dataclass(frozen=True, eq=False)
class Draft:
    """Drafted tokens of several rows, and the law that each was drawn from."""

    tree: Tree
    token: Int[Tensor, " nodes"]
    law: Law
    siblings: Siblings | None = None  # how several candidates of a slot were drawn
    chance: Float[Tensor, " nodes"] | None = None  # the drafter's own probability of each token, if known

    def __post_init__(self) -> None:
        assert len(self.tree) == len(self.token) == len(self.law), "a draft has one token and one law per node"

    def to(self, device: torch.device) -> Draft:
        """The same draft on a device. A drafter may run on the host while the target runs on a GPU."""
        tree = self.tree
        if self.token.device == device:
            return self
        moved = Tree(tree.rows, tree.row.to(device), tree.parent.to(device))
        moved.__dict__["lists"] = tree.lists  # avoids a copy from the device
        chance = None if self.chance is None else self.chance.to(device)
        return Draft(moved, self.token.to(device), self.law.to(device), self.siblings, chance)


class LazyRows(Mapping[int, Tensor]):
    """Selected rows of several tensors, indexed on access, because most drafters read only few of them."""

    def __init__(self, tensors: Mapping[int, Tensor], index: slice | Tensor) -> None:
        self._tensors, self._index = tensors, index

    def __getitem__(self, name: int) -> Tensor:
        return self._tensors[name][self._index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True, eq=False)
class Scores:
    """The target's output at every slot: logits of the next token, and the hidden states that drafters need."""

    logits: Float[Tensor, "slots vocab"]
    features: Mapping[int, Float[Tensor, "slots hidden"]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Verdict:
    """The result of verification: the accepted nodes of each row, root first, and the token after them."""

    path: Int[Tensor, "rows depth"]  # packed node indices, padded with -1
    token: Int[Tensor, " rows"]
    bonus: Bool[Tensor, " rows"]  # whether nothing was rejected, so that the token follows a complete path

    @property
    def accepted(self) -> Int[Tensor, " rows"]:
        return (self.path >= 0).sum(1)


@dataclass(frozen=True)
class RowOutcome:
    """The verdict on one row: its accepted nodes, and the tokens to emit with their origins."""

    path: list[int]
    tokens: list[int]
    origins: list[Origin]
    drafted: int


class RunCycle(NamedTuple):
    """What came of a cycle of one row that a kernel ran by itself: accepted tokens, and the one after them."""

    tokens: list[int]
    drafted: int
    drafting: float  # seconds
    scoring: float  # seconds of scoring and verifying

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1

    @property
    def origins(self) -> list[Origin]:
        last = Origin.PLAIN if not self.drafted else Origin.BONUS if self.accepted == self.drafted else Origin.RECOVERED
        return [*[Origin.ACCEPTED] * self.accepted, last]


@dataclass(frozen=True)
class Step:
    """The tokens that one cycle committed to one row, cut at its limits and end tokens."""

    row: Row
    tokens: list[int]
    origins: list[Origin]
    drafted: int
    accepted: int
