"""Settings of the policies: small frozen classes, each field with its unit and meaning.

"Drafted token" means one that was drafted for one row. "Cycle" means one target pass with what goes before and after.
Shares are numbers from 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TreeConfig:
    """Trees that a drafter grows by itself."""

    depth: int = 10  # levels
    width: int = 6  # candidates after one slot
    max_nodes: int = 32  # drafted tokens of one row


@dataclass(frozen=True, slots=True)
class AcceptanceConfig:
    """How acceptance is estimated. An observation is one slot that verification looked at."""

    first_rate: float = 0.7  # probability that a first candidate is accepted, before anything was observed
    sibling_rate: float = 0.4  # the same of a second candidate, given that the first was rejected
    sibling_decay: float = 0.6  # factor from each further candidate to the next
    table_depths: int = 8  # depths the rank table tells apart; deeper slots count as the last one
    table_prior: float = 8.0  # observations that the rates above count as in the rank table
    table_memory: float = 400.0  # observations of one rank after which old ones count half
    sibling_memory: float = 0.998  # share of what was observed of siblings that is left after each chain
    chains_per_update: int = 16  # chains after which the rank table is worked out again
    shared_prior: float = 6.0  # observations that the expectation for new rows counts as at first
    shared_memory: float = 64.0  # observations that it rests on at most, times the rows that a cycle teaches about
    shared_surprise: float = 4.0  # standard deviations by which the latest of them must differ to be another text's
    text_memory: float = 512.0  # observations of ended rows that the mean acceptance of whole texts rests on
    max_text_weight: float = 48.0  # observations that one ended row counts as at most
    text_prior: float = 12.0  # observations that this mean counts as in a row's own estimate
    text_half_life: float = 96.0  # observations of a row after which its older ones count half
    text_change: float = 0.25  # difference between the present rate and this mean that means another workload
    crowd_fade: float = 0.98  # share of the largest number of rows that is remembered from cycle to cycle
    row_prior: float = 6.0  # observations that the expectation counts as in a new row's estimate
    row_memory: float = 24.0  # observations that a row's estimate rests on at most
    row_fade: float = 0.05  # share of a row's observations that is forgotten in each cycle without a draft
    reach: int = 3  # depth of a row's first drafts; doubles while drafts are accepted as a whole
    min_wait: int = 4  # plain cycles of a row before it is tried again
    max_wait: int = 128  # the same after many failed attempts
    min_chain_chance: float = 0.1  # a chain's token with a smaller chance to be emitted is not considered
    min_tree_chance: float = 0.01  # the same for a tree's token


@dataclass(frozen=True, slots=True)
class CostConfig:
    """How costs are estimated from measured times."""

    window: int = 9  # latest times that a median is taken of
    plain_window: int = 9  # the same for plain passes
    graph_window: int = 9  # the same for stretches of captured cycles
    graph_quantile: float = 0.4  # of these times that counts: a third of them may be pauses of the host
    graph_memory: int = 128  # captured cycles after which an old price is capped by the host's usual share of a cycle;
    # after four times as many by its least share
    graph_reliable: int = 4  # cycles of a kind whose host part others are expected to have, at least
    graph_stretch: int = 4  # cycles of a kind in a row whose mean counts as one time, once so many were timed
    context_memory: float = 64.0  # captured cycles that the usual time of a kind is taken over
    context_cycles: float = 1024.0  # captured cycles that what a cached token adds rests on
    context_prior: float = 1e7  # tokens²; so much variance of the texts' length counts as one without any effect
    context_outlier: float = 0.25  # share of the usual time that a cycle's may differ for, at most
    slowdown_window: int = 5  # latest passes that tell how slow the machine is at present
    least_slowdown: float = 1.12  # factor, or 1 over it, that is told from noise
    slowdown_share: float = 0.99  # exponent of that factor: the rest counts as a lasting change of costs
    reliable: int = 3  # plain passes of one size after which their median is trusted
    first_token: float = 0.3  # cost of a drafted token before any was scored; share of a row's part of a plain pass
    further: float = 0.6  # cost of one more item beyond the largest number measured; share of the mean cost
    late_draft: float = 0.6  # share of the time of a draft after a pause that the next draft is expected to take
    first_level: float = 0.08  # cost of a level in a captured cycle before any was timed; share of a plain cycle
    reading_quantile: float = 0.4  # of the latest times of catching up that counts
    first_readings: int = 2  # times of catching up with so many tokens that do not count: they compile and capture


@dataclass(frozen=True, slots=True)
class LossConfig:
    """What drafting may lose against plain decoding. Amounts are in plain passes."""

    share: float = 0.01  # share of all time that may be lost
    size: float = 0.5  # saved up at most
    max_size: float = 1.0  # saved up at most where one drafted token costs more than `size`
    max_won: float = 6.0  # kept of what the same rows won
    handed_over: float = 1.25  # kept of it when other rows come; held at the start where a profile was measured
    max_surplus: float = 6.0  # kept of what was won beyond both, for rows to come
    failing_share: float = 0.2  # part of `share` that is left while drafts only fail
    patience: int = 6  # failed drafts in a row before the share shrinks


@dataclass(frozen=True, slots=True)
class ChoiceConfig:
    """How much drafting must promise."""

    margin: float = 1.03  # promised speed over plain decoding's, at least: estimates err
    stake: float = 1 / 3  # share of the loss budget that one cycle may risk; a single drafted token may risk all
    long_stake: float = 1.0  # the same where every drafter has long chains (`Drafter.longest_chain`)
    doubt: float = 0.3  # added cost of each token beyond the largest number scored; share of a row's part of a pass
    leap: int = 3  # most drafted tokens of a pass, in multiples of the largest number scored so far
    hopeless: float = 0.75  # share of the best speed below which larger drafts are not looked at
    setup: float = 1.2  # factor on the seconds that a drafter takes to set up a row: they are certain, the gain is not
    hoped_rate: float = 0.97  # acceptance assumed when asking whether drafting could pay at all


@dataclass(frozen=True, slots=True)
class RestConfig:
    """When the policy stops thinking. Counts are cycles unless they say otherwise."""

    min_rest: int = 3  # plain cycles after a decision not to draft
    max_rest: int = 32  # the same at most
    short_rest: int = 12  # the same at most until `long_idle`, where the loss budget is short
    steady_cost: float = 0.1  # what each cycle of a decision for several may lose at least, in plain passes
    idle_share: float = 0.002  # share of all time for decisions that end in no draft
    thought_share: float = 0.02  # share of all time for all decisions
    max_repeat: int = 8  # cycles that one decision is repeated for
    alone_repeat: int = 5  # the same at least for a row alone that gets chains only: equal cycles run in one call
    long_idle: int = 128  # cycles without any draft after which rests grow
    forgotten: int = 256  # cycles without any draft after which one token is priced again
    stale: int = 64  # plain cycles of a row after which it is tried even where drafting could hardly pay
    pause: int = 2  # cycles without a draft after which a drafter has more to read than usual
    missed: int = 16  # tokens that a drafter has not read, after which the same holds


@dataclass(frozen=True, slots=True)
class SizeConfig:
    """How the size of a captured cycle is chosen."""

    uncaptured: float = 1.1  # factor on the time of a size that is not captured yet, if that is a guess
    stay: float = 1.02  # promised speed over that of the size in use, at least: a change of sizes stops the device
    hold: int = 8  # cycles that a decision holds for while the rows are the same, at least
    longest_hold: int = 128  # cycles that one not to draft holds for at most; they double while the rows are the same
    rows_per_cycle: int = 8  # with more than `hold` times as many rows it holds for one cycle per so many rows
    first_trial: float = 0.04  # share of all time that a trial of the cheapest size may take; halved by each failure
    least_trial: float = 0.005  # the same after many failures
    late_trial: float = 4.0  # plain decoding of rows past their middle takes so many times as long as a trial, at least
    change: float = 0.5  # plain cycles that a change to another size and back counts as in the cost of a trial
    change_row: float = 1.5e-5  # seconds of the host that it counts as for each row
    caution: float = 1.2  # factor on the time to catch up: it is certain, the gain is not
    last_row_weight: float = 0.8  # weight of the time until the last row is done; that of the average row has the rest
    failures_forgiven: float = 0.1  # failed trials that are forgotten with each decision to draft
    judged_rows: int = 32  # rows that a decision looks at; of more rows, some in turn
    observed_rows: int = 8  # rows that are learnt from per cycle; of more rows, some in turn
    refresh: int = 256  # decisions after which the worth of trees is worked out again
    grid: int = 21  # acceptance rates at which it is worked out


@dataclass(frozen=True, slots=True)
class PaceConfig:
    """How far rows that draft together fall apart."""

    spread: float = 0.05  # standard deviation of the rows' acceptance, at first
    step: float = 0.05  # change of acceptance over which the sensitivity of a draft size is computed
    prior: int = 16  # finished rows that this counts as
    memory: int = 128  # finished rows that it rests on at most
    min_tokens: int = 64  # tokens of a finished row that is learnt from, at least
    fade: float = 0.98  # share of the largest number of rows that is remembered from cycle to cycle
    near: float = 0.8  # rows with this share of the longest remaining time may finish last


@dataclass(frozen=True, slots=True)
class AdaptiveConfig:
    """All settings of the policy `adaptive`."""

    max_depth: int = 8  # of a chain or tree it asks for where cycles are not captured
    captured_depth: int | None = None  # of a captured cycle; None: every captured size may be chosen
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    tree: TreeConfig = field(default_factory=TreeConfig)
    cost: CostConfig = field(default_factory=CostConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    choice: ChoiceConfig = field(default_factory=ChoiceConfig)
    rest: RestConfig = field(default_factory=RestConfig)
    size: SizeConfig = field(default_factory=SizeConfig)
    pace: PaceConfig = field(default_factory=PaceConfig)

    def __post_init__(self) -> None:
        if self.max_depth < 1:
            raise ValueError(f"max_depth is {self.max_depth}; it must be 1 or more")

    @staticmethod
    def up_to(depth: int) -> AdaptiveConfig:
        """The default settings with a limit on the depth of every draft."""
        return AdaptiveConfig(max_depth=depth, captured_depth=depth)
