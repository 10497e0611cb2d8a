"""Prefix reuse against recomputation: whatever rows shared, took over, evicted or left behind, logits and hidden
states are those of the model's own plain forward, each token ran as often as it had to, and the books agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import batches
from slipstream.core.sampling import Sampling
from slipstream.core.types import Request, Row
from slipstream.drafters.draft_model import DraftModel
from slipstream.drafters.none import NoDrafter
from slipstream.engines.native.scheduler import Limits
from slipstream.models.cache import retained as retained_rows
from slipstream.models.cache.prefix import PrefixIndex, common, leaders, text_of
from slipstream.models.cache.segments import UNIT
from slipstream.models.run.torch_model import TorchModel
from slipstream.plan.policy.policies import Fixed
from tiny import ROUNDING, VOCAB, Bench, build, make

KINDS = ["llama", "gemma2", "gpt2"]
small = st.lists(st.integers(0, 1), max_size=5 * UNIT)  # two tokens: beginnings are shared all the time


class Shared(Bench):
    """A bench that counts the tokens its model runs, by a hook that knows nothing of reuse."""

    ran: int = 0

    @staticmethod
    def like(kind: str, seed: int = 0, **options: Any) -> Shared:
        bench = Bench.of(kind, seed, **options)
        mine = Shared(bench.plain, bench.model, bench.rng)
        mine.model.model.get_input_embeddings().register_forward_pre_hook(mine.count)
        return mine

    def count(self, _: torch.nn.Module, given: tuple[torch.Tensor]) -> None:
        self.ran += given[0].numel()

    def enter(self, *texts: list[int], max_tokens: int = 1000) -> None:
        new = [Row(Request(text, max_tokens=max_tokens)) for text in texts]
        self.model.open(new)
        self.rows += new

    def plainly(self) -> int:
        """A cycle that drafts nothing; how many tokens ran for it."""
        before = self.ran
        assert self.cycle([0] * len(self.rows), 0) <= ROUNDING
        return self.ran - before

    def step(self) -> int:
        """The same without the reference beside it."""
        before, draft = self.ran, make(len(self.rows), [], [], [])
        self.model.score(self.rows, draft)
        self.commit(draft, self.verdict(draft))
        return self.ran - before


@given(texts=st.lists(small, max_size=12), asked=small)
@settings(max_examples=150, deadline=None)
def test_the_index_finds_the_longest_common_prefix(texts: list[list[int]], asked: list[int]) -> None:
    index, kept = PrefixIndex[int](), {text_of(text): n for n, text in enumerate(texts)}
    for text, n in kept.items():
        index.add(text, n)
        index.check_integrity()
    for gone in list(kept)[::3]:
        index.remove(gone)
        del kept[gone]
    index.check_integrity()
    found, size = index.longest(text_of(asked))
    shared = {n: naive(texts[n], asked) for n in kept.values()}
    assert size == max(shared.values(), default=0)
    assert shared[found] == size if found is not None else size == 0


def naive(first: list[int], second: list[int]) -> int:
    size = min(len(first), len(second))
    return next((n for n in range(size) if first[n] != second[n]), size)


@given(texts=st.lists(small, min_size=2, max_size=6), data=st.data())
@settings(max_examples=100, deadline=None)
def test_leaders_make_progress(texts: list[list[int]], data: st.DataObject) -> None:
    held = [data.draw(st.integers(0, len(text))) for text in texts]
    check_leaders(texts, held)


def test_who_holds_most_of_what_it_shares_is_in_no_group() -> None:
    texts = [[], [1, 0, 0, 1, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]
    ahead = leaders([text_of(text) for text in texts], [0, 2, 0, 0], 4, 4)
    assert ahead == {2: 4}, "with the last one, and not with its twin"
    check_leaders(texts, [0, 2, 0, 0])


def check_leaders(texts: list[list[int]], held: list[int]) -> None:
    """Someone else can take over all that a leader reads, and has little of it."""
    for leader, size in leaders([text_of(text) for text in texts], held, 4, 4).items():
        assert held[leader] + 4 <= size
        others = [n for n in range(len(texts)) if n != leader and held[n] + 4 <= size]
        assert size in [common(text_of(texts[leader]), text_of(texts[n])) for n in others]


@pytest.mark.parametrize("kind", KINDS)
def test_random_histories_under_pressure(kind: str) -> None:
    """Rows of few families come and go, part anywhere, are prefilled, drafted, rolled back; memory is short."""
    bench = Shared.like(kind, seed=3, retained=10 * UNIT, prefill_chunk=25, features=(0, 2))
    rng, families = bench.rng, [bench.tokens(70) for _ in range(3)]
    past: list[list[int]] = []
    for _ in range(45):
        choice = rng.random()
        if choice < 0.4 and len(bench.rows) < 4:
            text = rng.choice(families + past)
            text = text[: rng.randrange(len(text) // 2, len(text)) + 1] + bench.tokens(rng.randrange(0, 12))
            bench.enter(*[text[:120]] * rng.choice([1, 1, 2]))
        elif choice < 0.65 and bench.rows:
            past.append(list(bench.rows[number := rng.randrange(len(bench.rows))].tokens))
            bench.leave(number)
        elif choice < 0.75 and bench.rows:
            bench.model.prefill(bench.rows, rng.randrange(1, 40))
        elif choice < 0.8 and bench.rows:
            bench.model.peek(bench.rows, bench.draft([1] * len(bench.rows), 0), rng.randrange(1, 4))
        elif bench.rows:
            assert bench.cycle([rng.randrange(5) for _ in bench.rows], rng.choice([0, 0.6])) <= ROUNDING
            check_states(bench)
        bench.model.check_integrity()
        assert bench.model.prefixes.counts.retained_tokens <= bench.model.prefixes.counts.retained_places <= 10 * UNIT
    assert bench.model.prefixes.counts.prefix_hits > 5


def check_states(bench: Bench) -> None:
    """Hidden states of all cached tokens of a row, reused or not, are those of a plain forward."""
    row = bench.rng.choice(bench.rows)
    size = bench.model.cached(row)
    with torch.no_grad():
        text = torch.tensor([row.tokens[:size]])
        expected = bench.plain.base_model(text, use_cache=False, output_hidden_states=True).hidden_states
    states = bench.model.states(row)
    torch.testing.assert_close(states[0], expected[1][0], rtol=1e-4, atol=2e-4)
    assert states[2].shape == states[0].shape
    torch.testing.assert_close(bench.model.states(row, size - 1)[2], states[2][-1:])


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_one_prompt_compute_it_once(kind: str) -> None:
    bench = Shared.like(kind)
    prompt = bench.tokens(60)
    bench.enter(*[prompt] * 4)
    assert bench.plainly() == 59 + 4
    assert bench.model.prefixes.counts.prefix_tokens_reused == 3 * 59
    assert bench.plainly() == 4


def test_one_system_prompt_for_many() -> None:
    """Of rows that part at several points, each beginning is computed by one of them."""
    bench = Shared.like("llama")
    system, branch = bench.tokens(50), bench.tokens(40)
    tails = [bench.tokens(5) for _ in range(4)]
    bench.enter(system + tails[0], system + branch + tails[1], system + branch + tails[2], system + tails[3])
    assert bench.plainly() == 50 + 40 + 4 * 5
    bench.enter(system + tails[0][:2] + [1])  # parts inside a page of a row that is open still
    assert bench.plainly() == 1 + 4


def test_short_beginnings_are_not_worth_a_pass() -> None:
    bench = Shared.like("llama")
    bench.enter(*[bench.tokens(30)] * 2)
    assert bench.plainly() == 60
    assert bench.model.prefixes.counts.prefix_hits == 0


def test_a_chat_that_goes_on() -> None:
    bench = Shared.like("gpt2")
    bench.enter(bench.tokens(30))
    for turn in range(3):
        for _ in range(9):
            bench.step()
        text = list(bench.rows[0].tokens)
        bench.leave(0)
        bench.enter(text + bench.tokens(6))
        assert bench.plainly() == 1 + 6, f"turn {turn} read more than what is new"  # the last answer was never read
    text = list(bench.rows[0].tokens)
    bench.leave(0)
    assert bench.model.prefixes.counts.retained_tokens == len(text) - 1, "longer texts replace their beginnings"


def test_pieces_of_a_long_prompt() -> None:
    """Rows that read one prompt in turns, as the engine has them do, take over each other's pieces."""
    bench = Shared.like("llama", prefill_chunk=32)
    bench.enter(*[bench.tokens(100)] * 2)
    first, second = bench.rows
    read = [bench.model.prefill([row], 32)[0] for _ in range(4) for row in (first, second)]
    assert read == [32, 32, 32, 32, 32, 32, 3, 3]  # so few are not worth copying
    assert bench.ran == 99 + 3
    assert bench.plainly() == 1 + 1
    assert bench.model.prefill([first, second], 32) == [0, 0]


def test_off() -> None:
    bench = Shared.like("llama", retained=0)
    prompt = bench.tokens(60)
    bench.enter(prompt, prompt)
    assert bench.plainly() == 120
    bench.leave(0)
    bench.enter(prompt)
    assert bench.plainly() == 1 + 60
    counts = bench.model.prefixes.counts
    assert (counts.prefix_hits, counts.prefix_tokens_reused, counts.retained_tokens, counts.retained_places) == (0,) * 4


def test_retained_memory_is_cut_and_given_back() -> None:
    bench = Shared.like("llama", retained=3 * UNIT + 5)
    bench.enter(bench.tokens(100))
    bench.step()
    again = list(bench.rows[0].tokens)
    assert bench.model.prefixes.counts.retained_places == 0, "the row is open"
    bench.leave(0)
    counts = bench.model.prefixes.counts
    assert (counts.retained_tokens, counts.retained_places) == (3 * UNIT, 3 * UNIT)
    bench.model.check_integrity()
    bench.enter(again)
    assert bench.plainly() == 101 - 3 * UNIT
    bench.model.retain(0)
    bench.enter(again)
    assert bench.plainly() == 1 + 101
    bench.leave(0)
    assert bench.model.prefixes.counts.retained_places == 0
    with pytest.raises(ValueError, match="retained is -1; it must be 0"):
        bench.model.retain(-1)


@pytest.mark.parametrize("features", [(), (0, 2)])
def test_retained_memory_is_limited_in_bytes(features: tuple[int, ...]) -> None:
    bench = Shared.like("llama", features=features)
    bench.enter(bench.tokens(20))
    bench.step()
    token_bytes = bench.model.cache.token_bytes
    most = 3 * UNIT * token_bytes + 5
    bench.model.retain(1 << 15, most)
    for _ in range(4):
        bench.leave(0)
        bench.enter(bench.tokens(100))
        bench.step()
    again = list(bench.rows[0].tokens)
    for _ in range(2):
        bench.leave(0)
        bench.enter(again)
        counts = bench.model.prefixes.counts
        assert (counts.retained_places, counts.retained_bytes) == (3 * UNIT, 3 * UNIT * token_bytes)
        assert counts.retained_max_bytes == most
        bench.model.check_integrity()
        assert bench.plainly() == 101 - 3 * UNIT, "what is kept is reused"
    with pytest.raises(ValueError, match="max_bytes is -1; it must be 0"):
        bench.model.retain(16, -1)


@pytest.mark.parametrize("max_bytes", [0, 1000])
def test_a_limit_below_a_page_keeps_nothing(max_bytes: int) -> None:
    bench = Shared.like("llama", max_bytes=max_bytes)
    prompt = bench.tokens(60)
    bench.enter(prompt)
    bench.plainly()
    bench.leave(0)
    bench.enter(prompt)
    assert bench.plainly() == 60
    assert bench.model.prefixes.counts.retained_bytes == 0


def test_the_default_limit_suits_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for installed, expected in ((4 << 30, int(0.05 * (4 << 30))), (64 << 30, 512 << 20)):
        monkeypatch.setattr(retained_rows, "memory", lambda installed=installed: installed)
        assert retained_rows.default_max_bytes(cpu) == expected
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 << 30, 100 << 30))
    assert retained_rows.default_max_bytes(cuda) == 8 << 30


def test_a_failed_copy_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Shared.like("llama")
    prompt = bench.tokens(50)
    bench.enter(prompt)
    bench.plainly()
    bench.enter(prompt)
    with monkeypatch.context() as patch:
        patch.setattr(bench.model.cache, "copy", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.model.prefill(bench.rows[1:], 40)
    bench.model.check_integrity()
    assert bench.model.prefixes.counts.prefix_hits == 0
    assert bench.plainly() == 1 + 1


def counted_copies(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of runs of every copy within the cache from now on. On a GPU each of them is one launch."""
    copies, copy = list[int](), bench.model.cache.copy

    def counted(runs: list[tuple[int, int, int]]) -> None:
        copies.append(len(runs))
        copy(runs)

    monkeypatch.setattr(bench.model.cache, "copy", counted)
    return copies


def test_nothing_is_copied_where_nothing_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Shared.like("llama")
    bench.model.cache.grow(1 << 13)
    copies = counted_copies(bench, monkeypatch)
    for _ in range(3):
        bench.enter(*[bench.tokens(60) for _ in range(5)])
        while bench.rows:
            bench.step()
            bench.leave(0)
    counts = bench.model.prefixes.counts
    assert (copies, counts.prefix_hits) == ([], 0)
    assert counts.retained_tokens >= 15 * 60, "all of them are kept"


def test_all_rows_of_a_pass_copy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Shared.like("llama")
    bench.model.cache.grow(1 << 13)
    copies, system = counted_copies(bench, monkeypatch), bench.tokens(50)
    bench.enter(*[[*system, n, *bench.tokens(9)] for n in range(6)])
    assert bench.model.prefill(bench.rows, 100) == [50] * 6
    assert (copies, bench.ran) == ([5], 50), "one row reads the prefix, and five copy it"
    bench.enter(*[[*system, n, *bench.tokens(9)] for n in range(6, 12)])
    assert bench.model.prefill(bench.rows[6:], 100) == [50] * 6
    assert (copies, bench.ran) == ([5, 6], 50)
    assert bench.plainly() == 12 * 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_moves_is_copied_from_where_it_is(kind: str) -> None:
    bench = Shared.like(kind)
    prompt = bench.tokens(60)
    bench.enter(prompt, bench.tokens(10))
    bench.step()
    before = bench.model.index(bench.rows[0])
    bench.model.make_room(bench.rows[0], 1500)
    assert bench.model.index(bench.rows[0]) != before
    bench.leave(1)
    bench.enter(bench.tokens(10), prompt + bench.tokens(4))
    bench.model.check_integrity()
    assert bench.plainly() == 1 + 10 + 1 + 4


def test_a_row_whose_text_changed_is_copied_from_up_to_there() -> None:
    """As the texts of a draft model do that has another tokenizer."""
    bench = Shared.like("llama")
    prompt = bench.tokens(60)
    bench.enter(prompt)
    bench.plainly()
    row = bench.rows[0]
    row.tokens = prompt[:40] + [(token + 1) % VOCAB for token in prompt[40:]]
    bench.model.rewind(row, 40)
    bench.enter(prompt)
    assert bench.plainly() == 20 + 20
    bench.model.check_integrity()
    bench.enter(prompt, row.tokens[:-1])
    assert bench.plainly() == 2 + 1 + 1, "each has a row to copy from"
    bench.leave(3), bench.leave(2)
    bench.leave(0)
    bench.enter(row.tokens)
    assert bench.plainly() == 1 + 1, "the text as it was in the end"


def test_rows_in_use_take_the_places_of_retained_ones() -> None:
    """The limit of the cache is for all rows together. Retained ones give way, those used least recently first."""
    bench = Shared.like("llama")
    bench.model.bound(1024)
    texts = [bench.tokens(100) for _ in range(6)]
    for text in texts:
        bench.enter(text, max_tokens=8)
        bench.plainly()
        bench.leave(0)
    bench.enter([*texts[0], 1], max_tokens=8)
    assert bench.plainly() == 1
    bench.enter(bench.tokens(150), max_tokens=8)
    bench.plainly()
    assert 0 < bench.model.prefixes.counts.retained_tokens < 600, "it needed some of the places"
    bench.model.check_integrity()
    bench.leave(1)
    bench.enter(texts[5], max_tokens=8)
    assert bench.plainly() == 1 + 1, "the one used last is there still"
    for _ in range(3):
        bench.enter(bench.tokens(150), max_tokens=8)
        bench.plainly()
        bench.model.check_integrity()
    assert bench.model.cache.places <= 1024
    assert bench.model.prefixes.counts.retained_tokens < 100


def test_same_bits() -> None:
    """What is taken over is what was computed: alone after another, a row's logits are the very same."""
    model = TorchModel(build("llama"))
    prompt, nothing = list(range(VOCAB)), make(1, [], [], [])
    seen = []
    for _ in range(3):
        row = Row(Request(prompt, max_tokens=5))
        model.open([row])
        model.prefill([row], 96)
        seen.append(model.score([row], nothing).logits)
        model.close([row])
    assert model.prefixes.counts.prefix_tokens_reused == 2 * 96
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


@pytest.mark.parametrize("prefill", [32, 512])
def test_in_the_batch_with_a_draft_model(prefill: int) -> None:
    """Samples of one prompt and one that comes later, in pieces or at once: the same output as without reuse, and
    both models compute the prompt once, but perhaps for its last few tokens."""
    outputs = []
    for retained in (0, 1 << 12):
        bench, drafting = Shared.like("llama", retained=retained), TorchModel(build("gpt2"), retained=retained)
        batch = batches.batch(
            Limits(prefill=prefill),
            Fixed(2),
            bench.model,
            {"draft": DraftModel(drafting, VOCAB), "none": NoDrafter(VOCAB)},
        )
        request = Request(bench.tokens(100), Sampling(temperature=1.0, seed=5), max_tokens=6)
        jobs = [batches.send(batch, replace(request, sample=n), "draft", "coupled", 2) for n in range(3)]
        while batch.step():
            bench.model.check_integrity()
        jobs.append(batches.send(batch, replace(request, sample=3), "draft", "coupled", 2))
        while batch.step():
            drafting.check_integrity()
        outputs.append([job.row.output for job in jobs])
        for model in (bench.model, drafting):
            assert 3 * 96 * bool(retained) <= model.prefixes.counts.prefix_tokens_reused <= 3 * 99 * bool(retained)
    assert outputs[0] == outputs[1]
