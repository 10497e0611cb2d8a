"""Attention of long texts against a plain softmax: on a GPU where there is one, else under Triton's interpreter."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.kernels.gpu.attention import (
    WORDS,
    AttentionHeads,
    AttentionOptions,
    AttentionScratch,
    Layout,
    PromptSlice,
    attend,
    shapes,
    splits,
    survey,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = AttentionHeads(6, 2, 16, 0.25)
PLACES = 13 * shapes.PART


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long, device=DEVICE)


def expected(query, keys, values, layout: Layout, options: AttentionOptions) -> torch.Tensor:
    out = torch.zeros(len(query), HEADS.heads * HEADS.dim, device=DEVICE)
    places = torch.arange(PLACES, device=DEVICE)
    for t in range(len(query)):
        if layout.place[t] < 0:
            continue
        seen = places < layout.limit[t]
        if options.window is not None:
            seen &= places > layout.position[t] - options.window
        for node in range(8):
            seen[min(PLACES - 1, int(layout.base[t]) + node)] |= bool(layout.bits[t, 0] >> node & 1)
        for h in range(HEADS.heads):
            row = layout.row[t]
            score = keys[row, h // HEADS.group] @ query[t, h] * HEADS.scale
            if options.cap is not None:
                score = options.cap * torch.tanh(score / options.cap)
            score = score.masked_fill(~seen, -math.inf)
            if options.sink is not None:
                score = torch.cat([score, options.sink[h : h + 1]])
            law = score.softmax(0)[:PLACES]
            out[t, h * HEADS.dim : (h + 1) * HEADS.dim] = law @ values[row, h // HEADS.group]
    return out


def chain_and_tree() -> Layout:
    """Row 1 has four tokens in a chain, row 2 one token and three nodes, two of them siblings; one token is padding."""
    row, place = ints(1, 1, 1, 1, 2, 2, 2, 2, 0), ints(1600, 1601, 1602, 1603, 140, 141, 142, 143, -1)
    limit = ints(1601, 1602, 1603, 1604, 141, 141, 141, 141, 0)
    position = ints(1600, 1601, 1602, 1603, 140, 141, 141, 142, 0)
    bits = torch.zeros(9, WORDS, dtype=torch.long, device=DEVICE)
    bits[5, 0], bits[6, 0], bits[7, 0] = 0b1, 0b10, 0b101
    return Layout(position, row, place, limit, limit, bits, ints(0, 4, 0), ints(4, 4, 0), 4)


OPTIONS = {
    "plain": AttentionOptions(),
    "window": AttentionOptions(window=300),
    "cap": AttentionOptions(cap=2.0),
    "sink": AttentionOptions(sink=torch.linspace(-1.0, 3.0, 6).to(DEVICE)),
}


@pytest.mark.parametrize(
    ("name", "shares"),
    [("plain", 1), ("plain", 3), ("plain", 13), ("window", 3), ("cap", 3), ("sink", 1), ("sink", 3)],
)
def test_shares_of_a_long_text_give_the_attention_of_the_whole(name, shares, monkeypatch):
    torch.manual_seed(1)
    monkeypatch.setattr(shapes, "PROGRAMS", shares * 6)  # three chunks, two key heads
    monkeypatch.setattr(splits, "TILE", 128 if shares < 13 else 256)  # thirteen shares: more than there are tiles
    keys, values, query = (torch.randn(*size).to(DEVICE) for size in ((3, 2, PLACES, 16),) * 2 + ((9, 6, 16),))
    layout, options = chain_and_tree(), OPTIONS[name]
    space, out = AttentionScratch.of(9, 13, HEADS, query), torch.zeros(9, 96, device=DEVICE)
    assert space.split
    space.query.copy_(query)
    surveyed = shares == 1
    if surveyed:
        survey(layout, space, HEADS)
    attend(layout, keys, values, space, out, HEADS, True, options, surveyed)
    torch.testing.assert_close(out, expected(query, keys, values, layout, options), atol=1e-4, rtol=1e-4)


def test_scratch_of_a_long_text_does_not_grow_with_the_cache():
    query = torch.zeros(1, 6, 16)
    sizes = {parts: AttentionScratch.of(512, parts, HEADS, query).weighted.numel() for parts in (16, 64, 512)}
    assert sizes[16] == sizes[64] == sizes[512]
    exact = AttentionHeads(6, 2, 16, 0.25, exact=True)
    assert not AttentionScratch.of(8, 512, exact, query).split, "sums in fixed order go by parts of fixed size"
    assert AttentionScratch.of(8, 512, exact, query).peak.shape[2] == 512


def test_one_program_takes_all_tokens_of_a_row_with_a_long_text():
    heads = AttentionHeads(32, 8, 128, 0.1)
    assert heads.chunk(8, 8, 128) == 8
    assert heads.chunk(8, 8, 8) == 4, "a short text needs more programs"
    assert AttentionHeads(32, 8, 128, 0.1, exact=True).chunk(8, 8, 128) == 4


@pytest.mark.parametrize("start", [0, 100], ids=["whole", "continued"])
def test_prompts_attend_by_the_library(start):
    torch.manual_seed(2)
    keys, values, query = (torch.randn(*size).to(DEVICE) for size in ((3, 2, PLACES, 16),) * 2 + ((41, 6, 16),))
    place = torch.cat([ints(500), torch.arange(start, start + 40, device=DEVICE)])
    row = torch.full((41,), 2, device=DEVICE)
    row[0] = 1
    bits = torch.zeros(41, WORDS, dtype=torch.long, device=DEVICE)
    prompts = [PromptSlice(2, 1, 40, start)]
    layout = Layout(place, row, place, place + 1, place + 1, bits, ints(0), ints(1), 4, prompts)
    space, out = AttentionScratch.of(41, 16, HEADS, query), torch.zeros(41, 96, device=DEVICE)
    space.query.copy_(query)
    attend(layout, keys, values, space, out, HEADS, tree=False)
    torch.testing.assert_close(out, expected(query, keys, values, layout, AttentionOptions()), atol=1e-3, rtol=1e-3)


def test_nodes_of_a_tree_attend_in_the_order_of_the_text_to_the_bit():
    """In invariant mode a node has the bits of the same text as a chain, wherever its path is stored."""
    torch.manual_seed(3)
    heads = AttentionHeads(6, 2, 16, 0.25, exact=True)
    chain_keys, chain_values, query = (torch.randn(*size).to(DEVICE) for size in ((1, 2, 512, 16),) * 2 + ((3, 6, 16),))
    start = 254  # the path crosses the end of a part
    tree_keys, tree_values = chain_keys.clone(), chain_values.clone()
    for depth, node in enumerate((1, 4, 6)):  # other nodes lie between those of the path
        tree_keys[:, :, start + node] = chain_keys[:, :, start + depth]
        tree_values[:, :, start + node] = chain_values[:, :, start + depth]
    zeros = torch.zeros(3, dtype=torch.long, device=DEVICE)
    bits = torch.zeros(3, WORDS, dtype=torch.long, device=DEVICE)
    place = torch.arange(start, start + 3, device=DEVICE)
    chain = Layout(place, zeros, place, place + 1, place + 1, bits, ints(0, 0), ints(3, 0), 4)
    nodes, limit = ints(start + 1, start + 4, start + 6), torch.full_like(place, start)
    bits = bits.clone()
    bits[:, 0] = ints(0b10, 0b10010, 0b1010010)
    tree = Layout(place, zeros, nodes, limit, limit, bits, ints(0, 1, 2), ints(1, 1, 1), 1)
    outs = []
    for layout, keys, values, branched in (
        (chain, chain_keys, chain_values, False),
        (tree, tree_keys, tree_values, True),
    ):
        space, out = AttentionScratch.of(3, 4, heads, query), torch.zeros(3, 96, device=DEVICE)
        space.query.copy_(query)
        survey(layout, space, heads, branched)
        attend(layout, keys, values, space, out, heads, branched, surveyed=True)
        outs.append(out)
    assert torch.equal(*outs)
    assert heads.chunk(8, 25, 4, tree=True) == 1
