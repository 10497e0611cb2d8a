"""The small kernels of a captured cycle: token layout, inputs of the head, and the record for the host."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from slipstream.kernels.gpu.attention import WORDS, Layout
from slipstream.kernels.gpu.launch import early, long, wait
from slipstream.kernels.gpu.residual import Norm


@triton.jit(do_not_specialize=["rows", "width", "chunk", "chunks"])
def _lay(
    start, depth, owner, last, far, token, position, row, place, limit, count, rows, width, chunk, chunks,
    FIRST: tl.constexpr, LONG: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write the layout of each row's tokens. Token n of row r has the index r * width + n. FIRST, for the steps of a
    head: the index n * rows + r, since tokens run one after the other; the last drafted token needs no step."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    begin, deep, mine = tl.load(start + r), tl.load(depth + r), tl.load(owner + r)
    n = tl.arange(0, LONG)
    inside = n < width
    there = begin - 1 + n
    if FIRST:
        at, real = n * rows + r, deep > n + 1
        tl.store(count + at, real.to(tl.int64), mask=inside)
    else:
        at, real = r * width + n, deep >= n  # beyond what a row drafts nothing is read or written
        size = tl.minimum(tl.maximum(deep + 1 - n * chunk, 0), chunk)
        tl.store(count + r * chunks + n, size, mask=n < chunks)
        tl.store(far + r, deep)
        tl.store(token + r * width, tl.load(last + r))
    tl.store(row + at, mine + 0 * there, mask=inside)
    tl.store(position + at, tl.where(real, there, 0), mask=inside)
    tl.store(place + at, tl.where(real, there, -1), mask=inside)
    tl.store(limit + at, tl.where(real, there + 1, 0), mask=inside)


@triton.jit
def _pair(
    token,
    token_step,
    embedding,
    state,
    first_norm,
    second_norm,
    out,
    size,
    epsilon,
    SIZE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The embedding of a token and the state beside it, each with its own norm."""
    if EARLY:
        wait()
    row, half = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, SIZE)
    inside = at < size
    if half == 0:
        word = tl.load(token + row * token_step)
        piece = tl.load(embedding + word * size + at, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(first_norm + at, mask=inside, other=0.0).to(tl.float32)
    else:
        piece = tl.load(state + row * size + at, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(second_norm + at, mask=inside, other=0.0).to(tl.float32)
    piece = piece * tl.rsqrt(tl.sum(piece * piece, 0) / size + epsilon) * weight
    tl.store(out + (row * 2 + half) * size + at, piece.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _keep(state, row, place, held, row_step, stack, stack_step, scale, size, SIZE: tl.constexpr, EARLY: tl.constexpr):
    """Write a layer's states to their places in the cache, and scaled states to the stack of all layers."""
    if EARLY:
        wait()
    token, at = tl.program_id(0), tl.arange(0, SIZE)
    inside = at < size
    piece = tl.load(state + token * size + at, mask=inside, other=0.0).to(held.dtype.element_ty)
    there = tl.load(place + token)
    if there >= 0:
        tl.store(held + tl.load(row + token) * row_step + there * size + at, piece, mask=inside)
    scaled = piece.to(tl.float32) * tl.load(scale).to(tl.float32)
    tl.store(stack + token * stack_step + at, scaled.to(stack.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "width", "chunk", "chunks", "spare"])
def _commit(
    start, depth, far, owner, token, accepted, next, sound, chance, following, position, row, place, limit, count, end,
    result, last, before, left, goal, rows, width, chunk, chunks, spare, LONG: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write for each row the committed tokens that a head reads next, the record for the host, and the control of the
    next cycle."""
    if EARLY:
        wait()
    r = tl.program_id(0)
    begin, mine, kept = tl.load(start + r), tl.load(owner + r), tl.load(accepted + r)
    live = tl.load(depth + r) >= 0
    final = tl.load(next + r)
    line = result + r * (2 * width + 2)
    tl.store(line, kept.to(tl.float64))
    tl.store(line + 1, final.to(tl.float64))
    tl.store(line + 2, tl.load(sound + r).to(tl.float64))
    tl.store(line + 3, tl.load(far + r).to(tl.float64))
    n = tl.arange(0, LONG)
    inside, follows = n < width, n + 1 < width
    drafted = tl.load(token + r * width + n + 1, mask=follows, other=0)
    tl.store(line + 4 + n, drafted.to(tl.float64), mask=follows)
    likely = tl.load(chance + n * rows + r, mask=follows, other=0.0)
    tl.store(line + 3 + width + n, likely.to(tl.float64), mask=follows)
    at, there, real = r * width + n, begin - 1 + n, live & (n <= kept)
    tl.store(following + at, tl.where(n < kept, drafted, final), mask=inside)
    tl.store(row + at, mine + 0 * there, mask=inside)
    tl.store(position + at, tl.where(real, there, 0), mask=inside)
    tl.store(place + at, tl.where(real, there, -1), mask=inside)
    tl.store(limit + at, tl.where(real, there + 1, 0), mask=inside)
    size = tl.minimum(tl.maximum(kept + 1 - n * chunk, 0), chunk)
    tl.store(count + r * chunks + n, tl.where(live, size, 0), mask=n < chunks)
    tl.store(end + r, r * width + kept)
    if live:
        room = tl.load(left + r) - kept - 1
        tl.store(start + r, begin + kept + 1)
        tl.store(before + r, tl.load(token + r * width + kept))
        tl.store(last + r, final)
        tl.store(left + r, room)
        tl.store(depth + r, tl.where(room > 0, tl.minimum(tl.load(goal + r), room - spare), -1))


@triton.jit(do_not_specialize=["before", "rows", "deep", "spare"])
def _hand_over(
    words, numbers, line, new_words, new_numbers, before, rows, deep, spare,
    START: tl.constexpr, DEPTH: tl.constexpr, LEFT: tl.constexpr, GOAL: tl.constexpr, COUNT: tl.constexpr,
    LONG: tl.constexpr, LIMITS: tl.constexpr,
):  # fmt: skip
    """Write the inputs of each row of another cycle, whose rows are lines of this one. Line -1: no row. START, DEPTH,
    LEFT and GOAL are the places of these fields in `CycleControl`."""
    r, n = tl.program_id(0), tl.arange(0, LONG)
    own = tl.load(line + r)
    there, live = tl.maximum(own, 0), own >= 0
    value = tl.load(words + n * before + there, mask=n < COUNT, other=0)
    depth, left = tl.load(words + DEPTH * before + there), tl.load(words + LEFT * before + there)
    value = tl.where(n == DEPTH, tl.where(depth < 0, -1, tl.minimum(deep, left - spare)), value)
    value = tl.where(n == GOAL, deep, value)
    empty = tl.where(n == START, 1, tl.where(n == DEPTH, -1, 0)).to(value.dtype)
    tl.store(new_words + n * rows + r, tl.where(live, value, empty), mask=n < COUNT)
    number = tl.load(numbers + n * before + there, mask=n < LIMITS, other=0.0)
    tl.store(new_numbers + n * rows + r, number, mask=n < LIMITS)


@dataclass(frozen=True, eq=False)
class CycleControl:
    """The inputs of a cycle for each row. A cycle writes the inputs of the next one here, so the next one can be
    launched before the host has read the result."""

    stream: Tensor
    start: Tensor
    depth: Tensor  # -1: no row, it only fills up the pass
    row: Tensor  # in the target's cache
    head_row: Tensor  # in the drafter's
    last: Tensor  # the last committed token
    nodes: Tensor  # of a tree, beside its depth
    width: Tensor  # candidates after one slot
    before: Tensor  # the committed token before the last
    left: Tensor  # tokens that may still be emitted; depth -1 follows where there are none
    goal: Tensor  # the depth of the next cycle, where so many tokens may still be emitted

    def of_draft(self, start: Tensor, depth: Tensor, last: Tensor) -> CycleControl:
        """The same rows where they lie in the drafter's cache, beginning elsewhere."""
        return replace(self, start=start, depth=depth, row=self.head_row, last=last)


def chain_layout(rows: int, width: int, chunk: int, device: torch.device) -> Layout:
    """An empty layout for `width` tokens of each row, in chunks of tokens of one row."""
    parts = -(-width // chunk)
    table = torch.zeros(5, rows * width, dtype=torch.long, device=device)
    bits = torch.zeros(rows * width, WORDS, dtype=torch.long, device=device)
    first = torch.tensor([r * width + c * chunk for r in range(rows) for c in range(parts)], device=device)
    position, row, place, limit, base = table
    return Layout(position, row, place, limit, base, bits, first, torch.zeros_like(first), chunk)


def lay(control: CycleControl, token: Tensor, far: Tensor, layout: Layout) -> None:
    """Lay out the committed end of each row and the tokens drafted after it. `far` receives the depth of each row."""
    (rows, width), chunk = token.shape, layout.chunk
    _lay[(rows,)](
        *(control.start, control.depth, control.row, control.last, far, token, layout.position, layout.row),
        *(layout.place, layout.limit, layout.count, rows, width, chunk, -(-width // chunk), False, long(width)),
        num_warps=1,
        **early(token, rows * width),
    )


def lay_steps(control: CycleControl, steps: int, layout: Layout) -> None:
    """Lay out the steps of a head: all rows of the first step, then all rows of the next."""
    rows = len(control.start)
    _lay[(rows,)](
        *(control.start, control.depth, control.head_row, control.last, control.depth, control.last),
        *(layout.position, layout.row, layout.place, layout.limit, layout.count, rows, steps, 1, 1, True, long(steps)),
        num_warps=1,
        **early(control.start, rows),
    )


def part(layout: Layout, start: int, size: int) -> Layout:
    """A part of a layout in which every token is a chunk."""
    here = slice(start, start + size)
    return Layout(
        layout.position[here],
        layout.row[here],
        layout.place[here],
        layout.limit[here],
        layout.base[here],
        layout.bits[here],
        layout.first[:size],
        layout.count[here],
        layout.chunk,
    )


def pair(token: Tensor, step: int, embedding: Tensor, state: Tensor, norms: tuple[Norm, Norm], out: Tensor) -> None:
    size = embedding.shape[1]
    first_norm, second_norm = norms
    _pair[len(state), 2](
        *(token, step, embedding, state, first_norm.weight, second_norm.weight, out, size, first_norm.epsilon),
        triton.next_power_of_2(size),
        **early(state, len(state)),
    )


def keep(state: Tensor, layout: Layout, held: Tensor, stack: Tensor, scale: Tensor) -> None:
    size = state.shape[1]
    _keep[(len(state),)](
        *(state, layout.row, layout.place, held, held.stride(0), stack, stack.stride(0), scale, size),
        triton.next_power_of_2(size),
        **early(state, len(state)),
    )


def commit(
    control: CycleControl,
    far: Tensor,
    token: Tensor,
    outcome: tuple[Tensor, Tensor, Tensor],
    chance: Tensor,
    following: Tensor,
    layout: Layout,
    end: Tensor,
    result: Tensor,
    spare: int = 1,
) -> None:
    """Commit the tokens of a cycle. `spare`: tokens that a cycle may emit beyond those it drafts."""
    (rows, width), chunk = token.shape, layout.chunk
    _commit[(rows,)](
        *(control.start, control.depth, far, control.head_row, token, *outcome, chance, following),
        *(layout.position, layout.row, layout.place, layout.limit, layout.count, end, result),
        *(
            control.last,
            control.before,
            control.left,
            control.goal,
            rows,
            width,
            chunk,
            -(-width // chunk),
            spare,
            long(width),
        ),
        num_warps=1,
        **early(token, rows * width),
    )


FIELDS = [field.name for field in fields(CycleControl)]


def hand_over(words: Tensor, numbers: Tensor, line: Tensor, new: tuple[Tensor, Tensor], depth: int, spare: int) -> None:
    """Write the inputs of a cycle of another size, which drafts up to `depth` tokens, from those that a cycle left.

    `words` are the fields of `CycleControl`, [fields, rows], `numbers` those of the sampling. `line`: the old line of
    each row of the new cycle, -1 for none."""
    new_words, new_numbers = new
    (count, before), rows = words.shape, new_words.shape[1]
    _hand_over[(rows,)](
        *(words, numbers, line, new_words, new_numbers, before, rows, depth, spare),
        *map(FIELDS.index, ("start", "depth", "left", "goal")),
        *(count, triton.next_power_of_2(count), len(numbers)),
        num_warps=1,
    )
