"""The interfaces of models, drafters, rules and policies. Implementations are final and compose by wrapping.

A model or drafter stores for each row how many of the committed tokens it has read (its cached length). In its next
pass it reads the missing ones. So a prompt, a token decoded plainly and a token from another drafter are handled alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from slipstream.core.array_types import Float, Tensor
from slipstream.core.device import DeviceRule, Draws, RowResult, SizeMenu
from slipstream.core.law import Law
from slipstream.core.noise import Noise
from slipstream.core.registry import NoOptions, read_options
from slipstream.core.shaping import law_at, places
from slipstream.core.tree import Siblings
from slipstream.core.types import Budget, Draft, Row, RunCycle, Scores, Verdict


class Model(ABC):
    """Scores drafted tokens, all rows in one forward pass, and keeps a KV cache of the committed tokens."""

    vocab: int
    context: int  # maximum tokens of a row, prompt and output together

    def check(self, row: Row) -> None:
        """Raise ValueError for a request that the model cannot read. Any thread may call this."""
        if row.request.condition is not None:
            raise ValueError("this model reads text only; audio needs a speech model, such as Whisper")

    @abstractmethod
    def open(self, rows: Sequence[Row]) -> None:
        """Allocate cache space for new rows."""

    @abstractmethod
    def close(self, rows: Sequence[Row]) -> None:
        """Remove rows and free their cache space."""

    def prefill(self, rows: Sequence[Row], limit: int) -> list[int]:
        """Read up to `limit` further committed tokens of each row before it is scored. Returns the tokens read."""
        return [0] * len(rows)

    def retain(self, tokens: int, max_bytes: int | None = None) -> None:
        """Drop the closed rows that are retained for prefix reuse, and set how many are from now on.

        At most `tokens` tokens and `max_bytes` bytes are kept. None: a default for the device."""

    def bound(self, places: int) -> None:
        """Limit the KV cache to `places` (rows times the longest row), as far as the open rows allow it."""

    def rewind(self, row: Row, length: int) -> None:
        """Drop a row's cache from position `length` on, because the row's text changed there.

        The text of a request only grows. That of a row in an inner stage of a draft is replaced (`drafters/staged`).
        At this call the row holds its first `length` tokens. The default drops the whole cache of the row."""
        self.close([row])
        self.open([row])

    @abstractmethod
    def score(self, rows: Sequence[Row], draft: Draft) -> Scores:
        """Run one forward pass over the unread committed tokens and all drafted nodes: logits after every slot."""

    @property
    def has_cycle_runs(self) -> bool:
        """Whether `run_cycles` runs cycles of most rows."""
        return False

    def run_cycles(
        self, row: Row, most: int, depth: int = 0, head: Any = None, draws: Draws | None = None
    ) -> list[RunCycle]:
        """Run up to `most` cycles of a row in one call; their tokens are to be appended to it. Without `draws` each
        token is the most probable one.

        `head` drafts chains of up to `depth` tokens (`Drafter.chain_head`). There are fewer cycles after an end token
        or the row's last one, and none where every cycle must be run by itself."""
        return []

    def run_rows(self, rows: Sequence[Row], most: int, draws: Sequence[Draws | None]) -> list[list[RunCycle]]:
        """Run up to `most` cycles without drafts of several rows in one call, as `run_cycles` does for one; those of
        each row. Every row has room for `most` tokens."""
        return [[] for _ in rows]

    @abstractmethod
    def commit(self, rows: Sequence[Row], verdict: Verdict) -> None:
        """Keep the cache entries of the accepted path of the last scored draft and drop its other entries."""


@dataclass(frozen=True)
class Needs:
    """What a drafter needs from the target: the hidden states of these layers in every `Scores`."""

    features: tuple[int, ...] = ()


@runtime_checkable
class TargetFeatures(Protocol):
    """The target's hidden states of open rows, for drafters that read them."""

    def declare(self, features: Iterable[int]) -> None:
        """Keep the outputs of these layers from now on."""

    def cached(self, row: Row) -> int:
        """How many tokens of a row the target has read."""

    def states(self, row: Row, start: int = 0) -> dict[int, Float[Tensor, "tokens hidden"]]:
        """The outputs of every declared layer, from position `start` on."""


class TargetModel(ABC):
    """The loaded target that a drafter is built for. Expensive properties are computed when they are first read."""

    trust_remote_code: bool = False  # whether Python code from a model's repository may run

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
        """The output matrix: logits = hidden @ output.T."""

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
        """Where the model is stored: `name`, `path`, `sha256`."""


class Drafter(ABC):
    """Proposes tokens. Reports for each token the exact law it was drawn from, and stops after an end token.

    An engine may skip it in a cycle in which none of its rows drafts."""

    options_type: ClassVar[type[Any]] = NoOptions  # a frozen dataclass; `-o key=value` sets its fields
    needs: Needs = Needs()
    siblings: ClassVar[frozenset[Siblings]] = frozenset(Siblings)  # how it can draw several candidates of a slot
    reads_target: ClassVar[bool] = True  # whether it needs states, weights or scores of the target to draft
    longest_chain: ClassVar[int | None] = None  # tokens of a chain at most, if the policy decides; None: its own limit

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass that overrides `propose` does not inherit `device_form` and `chain_head`."""
        super().__init_subclass__(**kwargs)
        for name in ("device_form", "chain_head", "has_chain_head"):
            if "propose" in vars(cls) and name not in vars(cls):
                setattr(cls, name, getattr(Drafter, name))

    @classmethod
    def build(cls, target: TargetModel, options: Any) -> Drafter:
        """Make the drafter for a target. `options` is an `options_type`. Required for drafters chosen by name."""
        raise ValueError(f"{cls.__name__} has no build(target, options), so it is given as an object, not by name")

    def open(self, rows: Sequence[Row]) -> None:
        """Set up state for new rows."""

    def close(self, rows: Sequence[Row]) -> None:
        """Remove the state of rows."""

    @abstractmethod
    def propose(self, rows: Sequence[Row], budget: Sequence[Budget], noise: Noise) -> Draft:
        """Draft at most what the budget of each row allows."""

    def setup_seconds(self, row: Row) -> float:
        """Seconds that it is expected to need before its first draft for a row, beside reading the row's tokens. A
        policy does not draft where these cannot be won back."""
        return 0.0

    def observe(self, rows: Sequence[Row], verdict: Verdict, scores: Scores) -> None:
        """Receive the verdict on the last proposed draft."""

    def rewind(self, row: Row, length: int) -> None:
        """Drop the state of a row from position `length` on, as `Model.rewind` does. The default drops all of it."""
        self.close([row])
        self.open([row])

    @property
    def own_model(self) -> Model | None:
        """The draft model, if it is a complete language model that can also decode by itself; None otherwise."""
        return None

    def own_law(self, rows: Sequence[Row], draft: Draft, scores: Scores) -> Law:
        """The law of `own_model` after every slot, in the target's token ids. `scores` are those of `own_model`."""
        return law_at(scores.logits, places(rows, draft.tree, draft.token.tolist()))

    def as_target(self, target: TargetModel) -> TargetModel | None:
        """`own_model` as the target of an earlier stage of a draft for `target`; None if it cannot verify tokens."""
        return None

    @classmethod
    def read_options(cls, options: Mapping[str, Any], name: str) -> Any:
        """The `options_type` of `key=value` pairs. `name`: the drafter's name in error messages."""
        return read_options(cls.options_type, options, name)

    def device_form(self, target: Any) -> Any | None:
        """The drafter's part of captured cycles, a `drafters.device.interface.DeviceDrafter`.

        None: rows use the ordinary host loop. `target` is the model that scores, on a GPU."""
        return None

    @property
    def has_chain_head(self) -> bool:
        """Whether there is a `chain_head` for most rows."""
        return False

    def chain_head(self, row: Row, tokens: int) -> Any | None:
        """What `Model.run_cycles` needs to draft chains for a row, which may grow by so many tokens.

        None: drafts come from `propose`."""
        return None


class Verifier(ABC):
    """Decides which drafted tokens to accept. A pure function of laws and random draws."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    greedy: ClassVar[bool] = False  # whether it needs temperature 0
    device_rule: ClassVar[DeviceRule | None] = None  # how a captured cycle runs it; None: ordinary host loop only
    shared: ClassVar[bool] = False  # draft and target sample with the same noise at each position
    siblings: ClassVar[tuple[Siblings, ...]] = ()  # sibling modes it verifies, best first; empty: chains only
    needs_draft: ClassVar[bool] = False  # every token needs the draft model's law: depth 1 or more, no bonus token
    fixed_schedule: ClassVar[bool] = False  # its law depends on the depth of every cycle, which must be fixed
    argmax: bool = False  # draws are the largest probabilities, of laws at temperature 1
    stop_below: float = 0.0  # drafting stops before a position whose largest probability is smaller

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A subclass that overrides `verify` does not inherit `device_rule`."""
        super().__init_subclass__(**kwargs)
        if "verify" in vars(cls) and "device_rule" not in vars(cls):
            cls.device_rule = None

    @abstractmethod
    def verify(self, draft: Draft, target: Law, noise: Noise) -> Verdict:
        """Verify a draft. `target` holds one law per slot of the draft's tree."""


def sibling_mode(rule: Verifier, drafter: Drafter) -> Siblings | None:
    """The first sibling mode of the rule that the drafter supports; None if the two support chains only."""
    return next((mode for mode in rule.siblings if mode in drafter.siblings), None)


class Policy(ABC):
    """Decides in each cycle which rows draft, and how deep and wide."""

    # whether `choose` looks at rows before it asks for the menu, or `observe_captured` at their texts; where not, many
    # rows on a GPU get their tokens once for several cycles
    reads_rows: ClassVar[bool] = True

    @classmethod
    def build(cls, max_depth: int | None = None) -> Policy:
        """Make the policy when it is chosen by its registered name. `max_depth`: of every draft, if a plan has it."""
        return cls()

    @property
    def costs(self) -> Any:
        """The cost model that it uses (`plan.costs.CostModel`), or None."""
        return None

    @property
    def drafting_cost(self) -> Any:
        """The measured cost of drafting (`plan.drafting_cost`), or None if the policy measures nothing."""
        return None

    def seed(self, drafter: Drafter, seed: Any) -> None:
        """Start with measured costs and acceptance of a drafter (`plan.policy.policy_seed`) instead of learning them.

        It is called before any row is opened."""

    def learned(self, drafter: Drafter) -> Any:
        """What the policy has learnt about a drafter, in the form that `seed` takes; None if it learns nothing."""
        return None

    def forget(self) -> None:
        """Forget what was accepted so far. Measured costs stay. It is called while no row is open."""

    def open(
        self, rows: Sequence[Row], model: Model, drafter: Drafter, rule: Verifier, chains_only: bool = False
    ) -> None:
        """Register new rows with their model, drafter and rule.

        Drafts may be trees if `sibling_mode(rule, drafter)` is not None and `chains_only` is False."""

    def close(self, rows: Sequence[Row]) -> None:
        """Remove rows."""

    @abstractmethod
    def budget(self, rows: Sequence[Row]) -> list[Budget]:
        """The drafting budget of each row for the next cycle."""

    def steady(self, rows: Sequence[Row]) -> int:
        """In how many cycles after this one it is certain that `budget` gives these rows what it gave for this one."""
        return 0

    def observe(self, rows: Sequence[Row], draft: Draft, verdict: Verdict) -> None:
        """Receive the outcome of a cycle."""

    def observe_chain(self, row: Row, drafted: int, accepted: int) -> None:
        """Receive the outcome of a cycle of one row that drafted a chain, as `observe` does."""

    def price(self, drafting: float, scoring: float, tokens: int) -> None:
        """Receive the measured times of a cycle in seconds: drafting, and scoring and verifying `tokens` tokens."""

    def choose(
        self, rows: Sequence[Row], menu: Callable[[], SizeMenu], ready: Sequence[int] | None = None
    ) -> Budget | None:
        """The common budget of rows for the next captured cycle. The rows share a drafter and a rule.

        `menu()` lists the possible sizes and their costs; calling it takes time, so it is called only if needed.
        `ready`: tokens that each row can draft, if known beforehand. None: the rows use the ordinary host loop, and
        the engine calls `budget`."""
        return None

    def observe_captured(self, rows: Sequence[Row], results: Sequence[RowResult]) -> None:
        """Receive the outcome of a captured cycle."""
