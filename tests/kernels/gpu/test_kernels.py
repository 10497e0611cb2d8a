"""Kernels for a GPU against plain computations: on a GPU where there is one, else under Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.core import sampling
from slipstream.core.law import Dense, Law, OneHot, Sparse
from slipstream.core.noise import Noise, Purpose, Site, fold, race, uniform
from slipstream.core.sampling import Sampling
from slipstream.core.tree import Tree
from slipstream.core.types import Draft
from slipstream.core.verify.block import Block
from slipstream.core.verify.token import Token
from slipstream.kernels.gpu import matmul as products
from slipstream.kernels.gpu.attention import WORDS, AttentionHeads, AttentionScratch, Layout, attend, turn
from slipstream.kernels.gpu.decoder import GpuLayer, GpuNetwork
from slipstream.kernels.gpu.matmul import product
from slipstream.kernels.gpu.residual import Norm, ResidualStream
from slipstream.kernels.gpu.sample import LawBuffers, SamplingInputs, choose, draft
from slipstream.kernels.gpu.truncate import cut
from slipstream.kernels.gpu.verify import judge, match, surplus_room
from slipstream.models.weights.int8_linear import rounded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(DEVICE)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=DEVICE)


def stream(hidden: torch.Tensor, norm: Norm) -> ResidualStream:
    made = ResidualStream(*hidden.shape, hidden)
    made.hidden.copy_(hidden)
    made.begin(norm)
    return made


def normed(x: torch.Tensor, norm: Norm) -> torch.Tensor:
    return functional.rms_norm(x, (x.shape[1],), norm.weight, norm.epsilon)


@pytest.mark.parametrize("tile_rows", [16, 32, 0])
@pytest.mark.parametrize("tokens", [1, 5, 20])
def test_products_with_all_that_stands_around_them(tokens, tile_rows):
    torch.manual_seed(tokens)
    x, weight, bias = normal(tokens, 72), normal(96, 72), normal(96)
    before, after = Norm(normal(72).abs() + 0.5, 1e-5), Norm(normal(96).abs() + 0.5, 1e-5)
    gated = torch.zeros(tokens, 48, device=DEVICE)
    product(stream(x, before), weight, gated, gated=True, tile_rows=tile_rows)
    gate, passed = (normed(x, before) @ weight.T).chunk(2, 1)
    wanted = functional.silu(gate) * passed
    torch.testing.assert_close(gated, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-4)

    residual, again = normal(tokens, 96), torch.zeros(tokens, 40, device=DEVICE)
    there = stream(residual, after)
    product(x, weight, there, bias, after=after, tile_rows=tile_rows)
    torch.testing.assert_close(there.hidden, residual + x @ weight.T + bias, atol=1e-4, rtol=1e-4)
    head = normal(40, 96)
    product(there, head, again, tile_rows=tile_rows)
    torch.testing.assert_close(again, normed(there.hidden, after) @ head.T, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("tile_rows", [16, 64, 0])
def test_products_of_weights_in_eight_bits(tile_rows):
    torch.manual_seed(2)
    x, weight, norm = normal(5, 64), rounded(normal(96, 64), "int8"), Norm(normal(64).abs() + 0.5, 1e-5)
    assert weight.number.dtype == torch.int8
    assert float((weight.wide() - rounded(weight.wide(), "int8").wide()).abs().max()) < 1e-6  # nothing is lost twice
    plain, gated = torch.zeros(5, 96, device=DEVICE), torch.zeros(5, 48, device=DEVICE)
    product(x, weight, plain, tile_rows=tile_rows)
    torch.testing.assert_close(plain, x @ weight.wide().T, atol=1e-4, rtol=1e-4)
    product(stream(x, norm), weight, gated, gated=True, tile_rows=tile_rows)
    gate, passed = (normed(x, norm) @ weight.wide().T).chunk(2, 1)
    torch.testing.assert_close(gated, functional.silu(gate) * passed, atol=1e-3, rtol=1e-3)


def test_a_row_has_the_same_bits_alone_and_among_others():
    torch.manual_seed(0)
    x, weight = normal(37, 80), normal(50, 80)
    together, norm = torch.zeros(37, 50, device=DEVICE), Norm(normal(80), 1e-5)
    product(stream(x, norm), weight, together)
    for row in (0, 15, 16, 36):
        alone = torch.zeros(1, 50, device=DEVICE)
        product(stream(x[row : row + 1], norm), weight, alone)
        assert torch.equal(alone[0], together[row])


def test_inputs_that_are_summed_in_shares_have_the_same_bits_spread_or_not(monkeypatch):
    torch.manual_seed(4)
    monkeypatch.setattr(products, "tile", lambda *_: (16, 32, 4, 2, 3))
    x, weight, norm, bias = normal(37, 200), normal(50, 200), Norm(normal(50).abs() + 0.5, 1e-5), normal(50)
    residual, after = normal(37, 50), normal(7, 50)
    there = stream(residual, norm)
    product(x, weight, there, bias)
    torch.testing.assert_close(there.hidden, residual + x @ weight.T + bias, atol=1e-3, rtol=1e-4)
    together = torch.zeros(37, 7, device=DEVICE)
    there.begin(norm)  # as where bits must not depend on who else is there: squares are summed in one go
    product(there, after, together)
    for some in (slice(0, 1), slice(16, 32), slice(36, 37)):
        few = stream(residual[some], norm)
        for _ in range(3):  # whoever is last leaves everything as it was found
            few.hidden.copy_(residual[some])
            product(x[some], weight, few, bias)
            assert torch.equal(few.hidden, there.hidden[some])
        alone = torch.zeros(len(few.hidden), 7, device=DEVICE)
        few.begin(norm)
        product(few, after, alone)
        assert torch.equal(alone, together[some])
        assert not few.arrived.any()
    eighth, few = rounded(weight, "int8"), stream(residual[:5], norm)
    product(x[:5], eighth, few)
    torch.testing.assert_close(few.hidden, residual[:5] + x[:5] @ eighth.wide().T, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(
    ("size", "inner", "own"), [(576, 1536, 64), (896, 4864, 64), (1536, 8960, 16), (4096, 14336, 16)]
)
def test_large_weights_are_left_to_the_library_early(size, inner, own):
    shapes = (2 * size, size), (size, size), (2 * inner, size), (size, inner)
    norm = Norm(torch.empty(size), 1e-5)
    block = GpuLayer(*(torch.empty(shape, device="meta") for shape in shapes), norm, norm)
    heads, angle = AttentionHeads(8, 2, 64, 0.125), torch.empty(1)
    for exact in (False, True):
        net = GpuNetwork([block], norm, torch.empty(1, device="meta"), heads, (angle, angle), exact)
        tiles = [net.tile_rows(tokens) for tokens in (1, 16, 17, 33, 64, 65)]
        assert tiles == ([16] * 6 if exact else [16, 16, 32, 64, 64, 0] if own == 64 else [16, 16, 0, 0, 0, 0])


def test_inputs_are_cut_where_outputs_are_few():
    shares = {size: products.tile(*size, gated=False)[-1] for size in (
        (576, 576), (576, 1536), (896, 4864), (1536, 1536), (1536, 8960), (2048, 11008), (4096, 4096), (4096, 14336),
        (151936, 1536), (128256, 4096),
    )}  # fmt: skip
    assert [*shares.values()] == [1, 4, 8, 4, 8, 4, 1, 2, 1, 1]
    assert max(outputs * n for (outputs, _), n in shares.items() if n > 1) <= products.SHARED


@pytest.mark.parametrize("gated", [False, True])
def test_weights_in_float32_fit_as_those_in_sixteen_bits_do(gated):
    torch.manual_seed(5)
    x, weight, out = normal(2, 4096), normal(64, 4096) / 64, torch.zeros(2, 32 if gated else 64, device=DEVICE)
    product(x, weight, out, gated=gated)
    wanted = x @ weight.T
    wanted = functional.silu(wanted[:, :32]) * wanted[:, 32:] if gated else wanted
    torch.testing.assert_close(out, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-3)


def test_as_many_tokens_go_together_as_there_are_up_to_what_pays():
    heads = AttentionHeads(8, 2, 16, 0.25)
    assert [heads.chunk(width, 96) for width in (1, 4, 5, 8, 9, 16, 96)] == [4, 4, 8, 8, 16, 16, 16]
    assert [heads.chunk(width, 16) for width in (1, 5, 16)] == [4, 4, 4], "few programs are worse than small ones"
    assert [heads.tile(chunk) for chunk in (1, 4, 8, 16)] == [16, 16, 32, 64]
    assert AttentionHeads(8, 2, 16, 0.25, exact=True).chunk(96, 96) == 4, "in one order, whoever else is there"
    assert AttentionHeads(9, 3, 16, 0.25).chunk(6, 96) == 10


@pytest.mark.parametrize("chunk", [4, 10])
def test_attention_of_a_chain_and_a_tree_in_one_pass(chunk: int):
    torch.manual_seed(1)
    heads = AttentionHeads(6, 2, 16, 0.25)
    keys, values = normal(3, 2, 512, 16), normal(3, 2, 512, 16)
    before = keys.clone(), values.clone()
    row, place = ints(1, 1, 1, 1, 2, 2, 2, 2, 0), ints(300, 301, 302, 303, 140, 141, 142, 143, -1)
    limit = ints(301, 302, 303, 304, 141, 141, 141, 141, 0)  # of row 2 the last three are nodes, two of them siblings
    position = ints(300, 301, 302, 303, 140, 141, 141, 142, 0)
    bits = torch.zeros(9, WORDS, dtype=torch.long, device=DEVICE)
    bits[5, 0], bits[6, 0], bits[7, 0] = 0b1, 0b10, 0b101
    layout = Layout(position, row, place, limit, limit, bits, ints(0, 4, 0), ints(4, 4, 0), chunk)
    given, angle = normal(9, 10 * 16), normal(512, 8)
    space, out = AttentionScratch.of(9, 4, heads, given), torch.zeros(9, 96, device=DEVICE)
    turn(given, (angle.cos(), angle.sin()), layout, keys, values, space.query, heads)
    attend(layout, keys, values, space, out, heads, tree=True)
    for t in range(8):
        parts = given[t].view(10, 16)
        c, s = angle.cos()[position[t]], angle.sin()[position[t]]
        left, right = parts[:8, :8], parts[:8, 8:]
        turned = torch.cat([left * c - right * s, right * c + left * s], 1)
        torch.testing.assert_close(keys[row[t], :, place[t]], turned[6:])
        torch.testing.assert_close(values[row[t], :, place[t]], parts[8:])
        seen = torch.arange(512, device=DEVICE) < limit[t]
        for j in range(3):
            seen[limit[t] + j] |= bool(bits[t, 0] >> j & 1)
        for h in range(6):
            score = (keys[row[t], h // 3] @ turned[h] * 0.25).masked_fill(~seen, -math.inf)
            wanted = score.softmax(0) @ values[row[t], h // 3]
            torch.testing.assert_close(out[t, h * 16 : h * 16 + 16], wanted, atol=1e-4, rtol=1e-4)
    for mine, old in zip((keys, values), before, strict=True):
        assert int((mine != old).any(-1).sum()) == 16, "eight tokens, two heads: nothing else is written"


ROWS, DEPTH, VOCAB, SMALL = 3, 3, 3000, 500
WIDTH = DEPTH + 1


class Keyed(Noise):
    """The noise of `core`, for rows that are keys and lengths alone."""

    def __init__(self, stream: torch.Tensor, start: torch.Tensor) -> None:
        self._stream, self._start = stream.cpu(), start.cpu()

    def _keys(self, site: Site, purpose: int) -> torch.Tensor:
        number = torch.tensor(purpose)
        pairs = zip(site.row, site.node, strict=True)
        return torch.stack([fold(self._stream[r], self._start[r], n, number) for r, n in pairs])

    def flip(self, prob: torch.Tensor, site: Site) -> torch.Tensor:
        return uniform(self._keys(site, Purpose.ACCEPT)) < prob

    def draw(self, law: Law, site: Site, purpose: Purpose) -> torch.Tensor:
        return race(law, self._keys(site, purpose))


def wishes(depth: list[int], warm: list[float], stop: float = 0.0) -> SamplingInputs:
    stream = torch.randint(-(2**62), 2**62, (ROWS,)).to(DEVICE)
    limits = torch.full((ROWS,), stop, device=DEVICE)
    return SamplingInputs(torch.tensor(warm, device=DEVICE), stream, ints(7, 11, 20), ints(*depth), limits)


def laws(logits: torch.Tensor) -> LawBuffers:
    made = LawBuffers(*logits.shape, logits.device)
    made.logits.copy_(logits)
    return made


def found() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return ints(0, 0, 0), ints(0, 0, 0), ints(0, 0, 0)


def test_every_slot_draws_as_the_race_of_core_does():
    torch.manual_seed(2)
    wish, logits, out = wishes([3, 3, 3], [1.0, 0.7, 0.0]), normal(ROWS * WIDTH, VOCAB) * 3, ints(*[0] * 12).view(3, 4)
    logits[8, 17] = logits[8, 5] = 40.0  # the lowest id among equals
    choose(laws(logits), wish, out, WIDTH, Purpose.FIELD)
    for slot in range(ROWS * WIDTH):
        r, n = divmod(slot, WIDTH)
        probs = (logits[slot].cpu() / (wish.temperature[r].cpu() or 1.0)).softmax(0)
        key = fold(wish.stream[r].cpu(), wish.start[r].cpu() + n, torch.tensor(0), torch.tensor(Purpose.FIELD))
        drawn = int(race(Dense(probs[None]), key[None])) if wish.temperature[r] else int(logits[slot].argmax())
        assert int(out[r, n]) == (5 if slot == 8 else drawn)


@pytest.mark.parametrize("whole", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_judged_as_the_rules_of_core_judge_them(whole, seed):
    torch.manual_seed(seed)
    depth, warm = [3, 2, 0 if seed % 2 else 3], [1.0, 0.7, 1.3]
    wish, ids = wishes(depth, warm), torch.randperm(VOCAB)[:SMALL].sort().values.to(DEVICE)
    known = normal(DEPTH * ROWS, SMALL) * 3
    logits = torch.full((ROWS * WIDTH, VOCAB), -9.0, device=DEVICE)
    for r in range(ROWS):
        for n in range(DEPTH):
            logits[r * WIDTH + n, ids] = known[n * ROWS + r]
        logits[r * WIDTH + DEPTH] = normal(VOCAB)
    small, token = laws(known + normal(DEPTH * ROWS, SMALL) * 0.7), ints(*[0] * 12).view(3, 4)
    chance = torch.zeros(DEPTH, ROWS, device=DEVICE)
    for n in range(DEPTH):
        draft(small.section(n * ROWS, ROWS), wish, token[:, n + 1 :], WIDTH, n, Purpose.DRAFT, chance[n], ids)
    large, verdict, choice = laws(logits), found(), torch.zeros_like(token)
    choose(large, wish, choice, WIDTH, Purpose.EMIT, race=False)
    slot_of = torch.full((VOCAB,), -1, device=DEVICE)
    slot_of[ids] = torch.arange(SMALL, device=DEVICE)
    judge(large, small, chance, token, choice, wish, slot_of, surplus_room(ROWS, DEPTH, large), whole, verdict)

    drafted = [(r, n) for r in range(ROWS) for n in range(depth[r])]
    q = torch.stack([(small.logits[n * ROWS + r].cpu() / warm[r]).softmax(0) for r, n in drafted])
    p = [(logits[s].cpu() / warm[s // WIDTH]).softmax(0) for s in range(ROWS * WIDTH)]
    slots = [r * WIDTH for r in range(ROWS)] + [r * WIDTH + 1 + n for r, n in drafted]
    words = torch.stack([token[r, n + 1].cpu() for r, n in drafted])
    law = Sparse(ids.cpu().expand(len(q), -1), q, VOCAB)
    torch.testing.assert_close(torch.stack([chance[n, r].cpu() for r, n in drafted]), law.prob(words))
    rule = Block() if whole else Token()
    wanted = rule.verify(
        Draft(Tree.chains(depth), words, law), Dense(torch.stack([p[s] for s in slots])), Keyed(wish.stream, wish.start)
    )
    assert (verdict[0].tolist(), verdict[1].tolist()) == (wanted.accepted.tolist(), wanted.token.tolist())
    assert verdict[2].tolist() == [1, 1, 1]


@pytest.mark.parametrize("whole", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("sure", [False, True], ids=["laws", "one-hot"])
def test_rows_of_temperature_0_are_verified_as_greedy_ones_beside_sampled_ones(whole, sure):
    torch.manual_seed(1)
    wish, logits = wishes([3, 3, 3], [0.0, 1.0, 0.0]), normal(ROWS * WIDTH, VOCAB) * 3
    large, choice = laws(logits), torch.zeros(ROWS, WIDTH, dtype=torch.long, device=DEVICE)
    choose(large, wish, choice, WIDTH, Purpose.EMIT, race=False)
    token = torch.cat([choice[:, :1], choice[:, :-1]], dim=1)  # the most probable tokens, as drafts
    token[2, 2] = (token[2, 2] + 1) % VOCAB
    chance, small = torch.ones(DEPTH, ROWS, device=DEVICE), laws(normal(DEPTH * ROWS, VOCAB))
    for n in range(DEPTH):
        choose(small.section(n * ROWS, ROWS), wish, torch.zeros_like(choice[:, :1]), 1, Purpose.EMIT, race=False)
    (kept, following, sound), room = found(), surplus_room(ROWS, DEPTH, large)
    judge(large, None if sure else small, chance, token, choice, wish, None, room, whole, (kept, following, sound))
    assert (int(kept[0]), int(kept[2])) == (3, 1)
    assert (int(following[0]), int(following[2])) == (int(choice[0, 3]), int(choice[2, 1]))
    assert sound.tolist() == [1, 1, 1]


@pytest.mark.parametrize("whole", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_without_laws_are_judged_as_one_hot(whole, seed):
    torch.manual_seed(seed)
    depth = [3, 2, 0 if seed % 2 else 3]
    wish, token = wishes(depth, [1.0, 0.7, 1.3]), torch.randint(VOCAB, (ROWS, WIDTH)).to(DEVICE)
    logits = normal(ROWS * WIDTH, VOCAB)
    for r in range(ROWS):
        for n in range(DEPTH):  # likely, but not sure
            logits[r * WIDTH + n, token[r, n + 1]] = 8.5 + float(torch.rand(1))
    large, verdict, choice = laws(logits), found(), torch.zeros_like(token)
    choose(large, wish, choice, WIDTH, Purpose.EMIT, race=False)
    sure = torch.ones(DEPTH, ROWS, device=DEVICE)
    judge(large, None, sure, token, choice, wish, None, surplus_room(ROWS, DEPTH, large), whole, verdict)

    warm = wish.temperature.cpu().tolist()
    p = [(logits[s].cpu() / warm[s // WIDTH]).softmax(0) for s in range(ROWS * WIDTH)]
    drafted = [(r, n) for r in range(ROWS) for n in range(depth[r])]
    slots = [r * WIDTH for r in range(ROWS)] + [r * WIDTH + 1 + n for r, n in drafted]
    words = torch.stack([token[r, n + 1].cpu() for r, n in drafted])
    rule = Block() if whole else Token()
    wanted = rule.verify(
        Draft(Tree.chains(depth), words, OneHot(words, VOCAB)),
        Dense(torch.stack([p[s] for s in slots])),
        Keyed(wish.stream, wish.start),
    )
    assert (verdict[0].tolist(), verdict[1].tolist()) == (wanted.accepted.tolist(), wanted.token.tolist())


def test_what_matches_is_kept_and_a_slot_without_a_law_is_told():
    torch.manual_seed(3)
    wish = wishes([3, 2, 3], [0.0, 0.0, 0.0])
    token, choice = (
        ints(9, 1, 2, 3, 9, 4, 5, 6, 9, 7, 8, 1).view(3, 4),
        ints(1, 2, 0, 5, 4, 5, 6, 2, 0, 8, 1, 3).view(3, 4),
    )
    best = torch.zeros(12, device=DEVICE)
    best[2], best[9] = math.nan, math.nan  # the slot after two kept tokens of row 0; one that row 2 never reaches
    verdict = found()
    match(choice, token, wish, best, verdict)
    assert [part.tolist() for part in verdict] == [[2, 2, 0], [0, 6, 0], [0, 1, 1]]


def test_drafting_stops_before_a_law_without_a_likely_token():
    torch.manual_seed(4)
    wish, token = wishes([3, 3, 3], [1.0, 1.0, 1.0], stop=0.5), ints(*[0] * 12).view(3, 4)
    logits = torch.zeros(ROWS, SMALL, device=DEVICE)
    logits[0, 7] = logits[2, 9] = 20.0
    ids = torch.arange(SMALL, device=DEVICE)
    draft(laws(logits), wish, token[:, 2:], WIDTH, 1, Purpose.DRAFT, torch.zeros(ROWS, device=DEVICE), ids)
    assert wish.depth.tolist() == [3, 1, 3]
    assert (token[0, 2], token[2, 2]) == (7, 9)


def test_laws_are_cut_as_core_cuts_them():
    torch.manual_seed(5)
    how = [Sampling(0.7, 5), Sampling(1.0, 0, 0.6), Sampling(1.3, 40, 0.9, 0.02), Sampling(0.8), Sampling(0.0, 3)]
    logits = (normal(2 * len(how), 200) * 3).round(decimals=1)  # many are equal
    columns = [[getattr(wish, name) for wish in how] for name in ("temperature", "top_k", "top_p", "min_p")]
    warm, *limits = torch.tensor(columns, dtype=torch.float32, device=DEVICE)
    nothing = torch.zeros(len(how), device=DEVICE)
    made = logits.clone()
    cut(made, SamplingInputs(warm, nothing, nothing, nothing, nothing, limits))
    wanted = sampling.law(logits, [wish for wish in how for _ in range(2)]).dense()
    assert torch.equal(made[:8] > -math.inf, wanted[:8] > 0)
    assert torch.equal(made[:8].masked_fill(wanted[:8] == 0, 0), logits[:8].masked_fill(wanted[:8] == 0, 0))
    assert torch.equal(made[8:], logits[8:]), "greedy rows are left alone"
    assert int((made[:8] == -math.inf).sum(-1)[2:4].min()) > 0
