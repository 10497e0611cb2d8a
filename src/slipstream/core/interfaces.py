"""The interfaces of models, drafters, rules and policies. Implementations are final and compose by wrapping.

Models and drafters keep their own length per row and catch up by themselves: a row's committed tokens are the truth,
and whatever a model has not seen of them it reads in its next pass. So a prompt, a plain step and another drafter's
turn all look alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from slipstream.core.array_types import Float, Tensor
from slipstream.core.device import DeviceRule, RowResult, SizeMenu
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.registry import NoOptions
from slipstream.core.tree import Siblings
from slipstream.core.types import Budget, Draft, Row, Scores, Verdict


class Model(ABC):
    """Scores drafted tokens, all rows in one pass, and remembers what was committed."""

    vocab: int
    context: int  # the longest row, prompt and output together
    branches: bool = True  # whether drafts may be trees

    @abstractmethod
    def open(self, rows: Sequence[Row]) -> None:
        """Make room for new rows."""

    @abstractmethod
    def close(self, rows: Sequence[Row]) -> None:
        """Forget rows and give their room back."""

    def prefill(self, rows: Sequence[Row], limit: int) -> list[int]:
        """Read up to `limit` more committed tokens of each row ahead of its score; how many were read."""
        return [0] * len(rows)

    def retain(self, tokens: int, max_bytes: int | None = None) -> None:
        """Forget what rows left behind, and from now on keep up to so many tokens of it for rows that begin alike, in
        at most so many bytes; None: what suits the device."""

    def bound(self, places: int) -> None:
        """From now on hold no more than so many places, rows times the longest, where the rows in use allow it."""

    @abstractmethod
    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        """Read what is new of each row and all drafted nodes; the logits after every slot."""

    @abstractmethod
    def commit(self, rows: Sequence[Row], verdict: Verdict) -> None:
        """Keep the accepted path of the draft scored last, forget the rest of it."""


@dataclass(frozen=True)
class Needs:
    """What a drafter wants of the target: hidden states of these layers in every `Scores`."""

    features: tuple[int, ...] = ()


@runtime_checkable
class TargetFeatures(Protocol):
    """The target's hidden states of rows that are open, for drafters that read them."""

    def declare(self, features: Iterable[int]) -> None:
        """Keep the outputs of these layers from now on."""

    def cached(self, row: Row) -> int:
        """How many tokens of a row the target has read."""

    def states(self, row: Row, start: int = 0) -> dict[int, Float[Tensor, "tokens hidden"]]:
        """The outputs of every declared layer, from position `start` on."""


class TargetModel(ABC):
    """The loaded target that a drafter is built for. What costs something is computed when it is read."""

    trust_remote_code: bool = False  # whether code that models bring along may run

    @property
    @abstractmethod
    def vocab(self) -> int:
        """The number of tokens in the target's vocabulary."""

    @property
    @abstractmethod
    def features(self) -> TargetFeatures:
        """The target's hidden states."""

    @property
    @abstractmethod
    def embedding(self) -> Float[Tensor, "vocab hidden"]:
        """The input embeddings."""

    @property
    @abstractmethod
    def output(self) -> Float[Tensor, "vocab hidden"]:
        """The output matrix, whose rows give the logits."""

    @property
    @abstractmethod
    def model(self) -> Any:
        """The running model, as `slipstream.models` wraps it."""

    @property
    @abstractmethod
    def text(self) -> Any:
        """The tokenizer: `encode(text, raw=True)` and `decode(ids)`."""

    @property
    @abstractmethod
    def files(self) -> Any:
        """Where the model lies: `name`, `path`, `sha256`."""


class Drafter(ABC):
    """Guesses ahead. Says for each token the exact law it was drawn from; stops after an end token.

    An engine need not call it in a cycle in which none of its rows drafts."""

    options_type: ClassVar[type[Any]] = NoOptions  # a frozen dataclass, whose fields are set by `-o key=value`
    needs: Needs = Needs()
    siblings: ClassVar[frozenset[Siblings]] = frozenset(Siblings)  # ways in which it can draw several candidates

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass that proposes in another way does not inherit the device form."""
        super().__init_subclass__(**kwargs)
        if "propose" in vars(cls) and "device_form" not in vars(cls):
            cls.device_form = Drafter.device_form  # type: ignore[method-assign]

    @classmethod
    def build(cls, target: TargetModel, options: Any) -> Drafter:
        """Make the drafter for a target; `options` is an `options_type`. Every drafter chosen by name has it."""
        raise ValueError(f"{cls.__name__} has no build(target, options), so it is given as an object, not by name")

    def open(self, rows: Sequence[Row]) -> None:
        """Make room for new rows."""

    def close(self, rows: Sequence[Row]) -> None:
        """Forget rows."""

    @abstractmethod
    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        """Draft at most what the budget of each row allows."""

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        """Learn what became of the draft proposed last."""

    @property
    def own_model(self) -> Model | None:
        """The language model that drafts, where it can also decode by itself; None otherwise."""
        return None

    def device_form(self, target: Any) -> Any | None:
        """The drafter's part of captured cycles, a `drafters.device.interface.DeviceDrafter`. None: rows take the
        ordinary cycle. `target` is the model that scores, on a GPU."""
        return None


class Verifier(ABC):
    """Decides what to keep of a draft. Pure: laws and draws in, verdict out."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    greedy: ClassVar[bool] = False  # whether it needs temperature 0
    device_rule: ClassVar[DeviceRule | None] = None  # how a captured cycle runs it; None: it takes the ordinary path
    shared: ClassVar[bool] = False  # draft and target race on one field of noise per position
    siblings: ClassVar[
        tuple[Siblings, ...]
    ] = ()  # ways of drawing candidates it takes, the best one first; none: chains

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass that verifies in another way does not inherit the device rule."""
        super().__init_subclass__(**kwargs)
        if "verify" in vars(cls) and "device_rule" not in vars(cls):
            cls.device_rule = None

    @abstractmethod
    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        """`target` holds one law per slot of the draft's tree."""


def sibling_mode(rule: Verifier, drafter: Drafter) -> Siblings | None:
    """How a drafter should draw candidates for a rule; None where the two can do chains only."""
    return next((how for how in rule.siblings if how in drafter.siblings), None)


class Policy(ABC):
    """Decides each cycle whether and how far to draft."""

    @classmethod
    def build(cls) -> Policy:
        """Make the policy that its registered name stands for."""
        return cls()

    @property
    def costs(self) -> Any:
        """The cost model it decides by (`plan.costs.CostModel`); None where it has none."""
        return None

    @property
    def drafting_cost(self) -> Any:
        """What drafting costs, as the policy measured it (`plan.drafting_cost`); None where it measures nothing."""
        return None

    def open(
        self, rows: Sequence[Row], model: Model, drafter: Drafter, rule: Verifier, chains_only: bool = False
    ) -> None:
        """New rows, and what will decode them. Their drafts may branch where `sibling_mode` names a way to, unless
        `chains_only`."""

    def close(self, rows: Sequence[Row]) -> None:
        """Forget rows."""

    @abstractmethod
    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        """What each row may spend in the coming cycle."""

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        """Learn what the cycle brought."""

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        """Learn what the cycle cost: seconds to draft, seconds to score and verify so many tokens in one pass."""

    def choose(
        self, rows: Sequence[Row], menu: Callable[[], SizeMenu], ready: Sequence[int] | None = None
    ) -> Budget | None:
        """What each row drafts in the coming captured cycle. The rows share a drafter and a rule. `menu` tells which
        sizes there are and what they cost; to ask it takes time. `ready` tells how many tokens each row has to draft,
        where that is known beforehand. None: these rows take the ordinary path, so that `budget` is asked."""
        return None

    def observe_captured(self, rows: Sequence[Row], results: Sequence[RowResult]) -> None:
        """Learn what a captured cycle brought."""
