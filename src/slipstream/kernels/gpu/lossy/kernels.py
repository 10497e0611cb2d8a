"""Kernels of the lossy rules. The references are `core.lossy.cascade` and `core.lossy.accept`.

At a slot, p is the target's law and q the law that the next token was drafted from. A cascade emits tokens by the law
pi(x) = a q(x) [p(x) >= g] + b p(x): a = 1, b = 0 where the small model is trusted, a = 0, b = 1 where it is not, and
for the token-specific rule a = 1, b = 1 - q(good). The other rules have pi = p after the tokens they accept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream.kernels.gpu.launch import wait
from slipstream.kernels.gpu.noise import ACCEPT, EMIT, fold, key_of, uniform
from slipstream.kernels.gpu.verify import laws_at, sound_up_to

CHOW, DIFFERENCE, TV, TOKEN = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
TYPICAL, LENIENT, BILD = tl.constexpr(4), tl.constexpr(5), tl.constexpr(6)
KINDS = {"chow": 0, "difference": 1, "tv": 2, "token": 3, "typical": 4, "lenient": 5, "bild": 6}
SUMMED = frozenset({"tv", "token", "typical"})  # kinds that need a sum over the vocabulary


@triton.jit(do_not_specialize=["rows"])
def sum_laws(
    logits, vocab, token, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, temperature, sums, rows,
    first, KIND: tl.constexpr, WIDTH: tl.constexpr, NAMED: tl.constexpr, SURE: tl.constexpr, BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One block of a sum: the total variation distance, q(good), or the entropy of p."""
    if EARLY:
        wait()
    row, n, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot, line = row * WIDTH + n, n * rows + row
    warm = tl.load(temperature + row)
    _, inside, p, q = laws_at(
        logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block,
        draft_vocab, tl.load(token + slot + 1), NAMED, SURE, BLOCK,
    )  # fmt: skip
    if KIND == TV:
        term = tl.abs(p.to(tl.float64) - q.to(tl.float64)) / 2
    elif KIND == TOKEN:
        term = tl.where(p >= (1 - first) / tl.load(total + slot), q, 0.0).to(tl.float64)
    else:
        term = tl.where(p > 0, -p * tl.log(tl.where(p > 0, p, 1.0)), 0.0).to(tl.float64)
    where = (row * (WIDTH - 1) + n) * tl.num_programs(2) + block
    tl.store(sums + where, tl.sum(tl.where(inside, term, 0.0), 0))


@triton.jit
def _sum(sums, row, n, blocks, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    index = tl.arange(0, BLOCKS)
    line = (row * (WIDTH - 1) + n) * blocks + index
    return tl.sum(tl.load(sums + line, mask=index < blocks, other=0.0), 0)


@triton.jit(do_not_specialize=["rows"])
def find_peaks(
    logits, vocab, token, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, temperature, sums, high,
    who, rows, first, WIDTH: tl.constexpr, NAMED: tl.constexpr, SURE: tl.constexpr, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """For the token-specific rule: the largest pi of one block, and its token."""
    if EARLY:
        wait()
    row, n, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = tl.num_programs(2)
    slot, line = row * WIDTH + n, n * rows + row
    warm = tl.load(temperature + row)
    at, inside, p, q = laws_at(
        logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block,
        draft_vocab, tl.load(token + slot + 1), NAMED, SURE, BLOCK,
    )  # fmt: skip
    kept = tl.where(p >= (1 - first) / tl.load(total + slot), q, 0.0).to(tl.float64)
    pi = tl.where(inside, kept + p.to(tl.float64) * (1 - _sum(sums, row, n, blocks, WIDTH, BLOCKS)), -1.0)
    top = tl.max(pi, 0)
    where = (row * (WIDTH - 1) + n) * blocks + block
    tl.store(high + where, top)
    tl.store(who + where, tl.min(tl.where(pi == top, at, vocab), 0))


@triton.jit
def _peak(high, who, vocab, row, n, blocks, WIDTH: tl.constexpr, BLOCKS: tl.constexpr):
    """The token with the largest pi at a slot."""
    index = tl.arange(0, BLOCKS)
    there = index < blocks
    line = (row * (WIDTH - 1) + n) * blocks + index
    each = tl.load(high + line, mask=there, other=-1.0)
    return tl.min(tl.where(each == tl.max(each, 0), tl.load(who + line, mask=there, other=vocab), vocab), 0)


@triton.jit
def _mixture(p, q, top, draft_top, summed, first, KIND: tl.constexpr):
    """a, b and g of pi, pi of the drafted token, and whether the small model is trusted."""
    a, b, least, pi, trusted = p * 0.0, p * 0.0 + 1.0, p * 0.0, p, p < 0
    if KIND == CHOW:
        trusted = draft_top >= 1 - first
    if KIND == DIFFERENCE:
        trusted = draft_top >= top - first
    if KIND == TV:
        trusted = draft_top >= top - first * summed
    if KIND < TOKEN:
        a, b, pi = tl.where(trusted, 1.0, 0.0), tl.where(trusted, 0.0, 1.0), tl.where(trusted, q, p)
    if KIND == TOKEN:
        a, b, least = p * 0.0 + 1.0, 1.0 - summed, (1 - first) * top
        pi = tl.where(p >= least, q, 0.0) + p * b
    return a, b, least, pi, trusted


@triton.jit
def _accepts(p, q, pi, top, summed, coin, same, trusted, first, second, KIND: tl.constexpr, ARGMAX: tl.constexpr):
    """Whether a drafted token is accepted. `same`: it is the most probable one of p, or of pi for the token-specific
    rule."""
    if KIND == TYPICAL:
        fine = p > tl.minimum(p * 0.0 + first, second * tl.exp(-summed))
    elif KIND == BILD:
        fine = -tl.log(p) <= second
    elif ARGMAX:
        fine = trusted | same
        if KIND == LENIENT:
            fine = first * p >= top
    else:
        odds = tl.where(q > 0, pi / tl.where(q > 0, q, 1.0), 0.0)
        if KIND == LENIENT:
            odds = odds * first
        fine = coin < tl.minimum(odds, 1.0)
    return fine


@triton.jit(do_not_specialize=["rows"])
def decide(
    logits, vocab, token, depth, choice, best, total, draft_total, chance, temperature, stream, start, sums, high, who,
    blocks, mixture, whole, accepted, next, sound, rows, first, second,
    KIND: tl.constexpr, SUMS: tl.constexpr, ARGMAX: tl.constexpr, SURE: tl.constexpr, WIDTH: tl.constexpr,
    BLOCKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The number of accepted tokens of a row, and the law of the next one as its mixture (a, b, g). With ARGMAX also
    the next token. A cascade that accepts all of a draft emits its last token as the next one (`whole`)."""
    if EARLY:
        wait()
    row = tl.program_id(0)
    far, warm = tl.load(depth + row), tl.load(temperature + row)
    own, begin = tl.load(stream + row), tl.load(start + row)
    kept = far * 0
    going = far >= 0
    for n in tl.static_range(WIDTH - 1):
        slot, line = row * WIDTH + n, n * rows + row
        word = tl.load(token + slot + 1)
        p = tl.exp((tl.load(logits + slot.to(tl.int64) * vocab + word) - tl.load(best + slot)) / warm)
        top = 1.0 / tl.load(total + slot)
        p, q = (p * top).to(tl.float64), tl.load(chance + line).to(tl.float64)
        draft_top = tl.full((), 1.0, tl.float32)
        if not SURE:
            draft_top = 1.0 / tl.load(draft_total + line)
        top, draft_top = top.to(tl.float64), draft_top.to(tl.float64)
        summed = p * 0.0
        if SUMS:
            summed = _sum(sums, row, n, blocks, WIDTH, BLOCKS)
        a, b, least, pi, trusted = _mixture(p, q, top, draft_top, summed, first, KIND)
        where = mixture + (row * (WIDTH - 1) + n) * 3
        tl.store(where, a)
        tl.store(where + 1, b)
        tl.store(where + 2, least)
        same = tl.load(choice + slot) == word
        if ARGMAX and KIND == TOKEN:
            same = _peak(high, who, vocab, row, n, blocks, WIDTH, BLOCKS) == word
        coin = uniform(key_of(own, begin, begin * 0 + n, ACCEPT))
        fine = _accepts(p, q, pi, top, summed, coin, same, trusted, first, second, KIND, ARGMAX)
        going = going & (n < far) & fine
        kept += going.to(kept.dtype)
    entire = (kept == far) & (far > 0)
    if KIND > TOKEN:
        entire = far < -1  # never: these rules draw a further token after a whole draft
    tl.store(whole + row, entire.to(tl.int64))
    kept = tl.where(entire, kept - 1, kept)
    tl.store(accepted + row, kept)
    tl.store(sound + row, sound_up_to(best, row, kept, WIDTH))
    if ARGMAX:
        final = tl.load(choice + row * WIDTH + kept)
        if KIND == TOKEN:
            at = tl.minimum(kept, WIDTH - 2)
            final = _peak(high, who, vocab, row, at, blocks, WIDTH, BLOCKS).to(tl.int64)
        last = tl.load(token + row * WIDTH + kept + 1, mask=entire, other=0)
        tl.store(next + row, tl.where(entire, last, final))


@triton.jit(do_not_specialize=["rows", "width"])
def race_rest(
    logits, vocab, token, depth, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, temperature,
    stream, start, accepted, mixture, whole, soonest, drawn, rows, width,
    KIND: tl.constexpr, NAMED: tl.constexpr, SURE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One block of two races for the token after the accepted ones: on the residual of pi, and on all of pi."""
    if EARLY:
        wait()
    row, block = tl.program_id(0), tl.program_id(1)
    kept, warm, begin = tl.load(accepted + row), tl.load(temperature + row), tl.load(start + row)
    entire = tl.load(whole + row) > 0
    rejected = (kept < tl.load(depth + row)) & ~entire
    slot, line = row * width + kept, tl.where(rejected, kept, 0) * rows + row
    word = tl.load(token + slot + 1, mask=rejected | entire, other=-1)
    at, inside, p, q = laws_at(
        logits, vocab, best, total, drafts, draft_vocab, draft_best, draft_total, slot_of, warm, slot, line, block,
        tl.where(rejected, draft_vocab, 0), tl.where(rejected, word, -1), NAMED, SURE, BLOCK,
    )  # fmt: skip
    p, q = p.to(tl.float64), q.to(tl.float64)
    pi = p
    if KIND <= TOKEN:
        mix = mixture + (row * (width - 1) + tl.where(rejected, kept, 0)) * 3
        mixed = tl.load(mix) * tl.where(p >= tl.load(mix + 2), q, 0.0) + tl.load(mix + 1) * p
        pi = tl.where(rejected, mixed, p)
    left = pi
    if KIND != TYPICAL and KIND != BILD:
        left = pi - q
    key = key_of(tl.load(stream + row), begin, begin * 0 + kept, EMIT)
    noise = -tl.log(uniform(fold(key, at.to(tl.int64))))
    out = (row * tl.num_programs(1) + block) * 2
    time = tl.where(inside & (left > 0), noise / tl.where(left > 0, left, 1.0), float("inf"))
    time = tl.where(entire, tl.where(at == word, 0.0, float("inf")), time)
    earliest = tl.min(time, 0)
    tl.store(soonest + out, earliest)
    tl.store(drawn + out, tl.min(tl.where(time == earliest, at, vocab), 0))
    time = tl.where(inside & (pi > 0), noise / tl.where(pi > 0, pi, 1.0), float("inf"))
    earliest = tl.min(time, 0)
    tl.store(soonest + out + 1, earliest)
    tl.store(drawn + out + 1, tl.min(tl.where(time == earliest, at, vocab), 0))
