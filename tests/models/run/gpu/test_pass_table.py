"""The table of a pass says of each packed entry where it lies, where it is in the text, and what it sees."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from slipstream.kernels.gpu.attention import WORDS
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.run.gpu.pass_table import table_of

POSITION, ROW, PLACE, LIMIT, BASE, FIRST, COUNT = range(7)


def piece(generator: random.Random) -> RowSlice:
    """Some text, and most often a chain or a tree after it, of which the first entries ran already."""
    pending = [generator.randrange(90) for _ in range(generator.randint(1, 30))]
    nodes = generator.choice([0, 3, 9])
    parents = [generator.choice([n - 1, generator.randint(-1, n - 1)]) for n in range(nodes)]
    line = RowEntries.of(generator.randrange(999), generator.randrange(50), pending, [(5, n) for n in parents])
    return RowSlice(line, generator.randrange(len(line)))


@pytest.mark.parametrize("seed", range(40))
def test_every_entry_is_where_its_line_says(seed):
    generator = random.Random(seed)
    pieces = [piece(generator) for _ in range(generator.randint(1, 6))]
    size = sum(map(len, pieces)) + 7
    table, _ = table_of(pieces, size, 16)
    bits, at = table[7 : 7 + WORDS].reshape(-1, WORDS).tolist(), 0
    for own in pieces:
        for i in range(own.skip, len(own.line)):
            column = table[:, at].tolist()
            assert column[:3] == [own.line.position[i], own.line.row, own.line.start + i]
            assert column[LIMIT] == column[BASE] == own.line.limit[i]
            assert column[-1] == own.line.token[i]
            seen = [own.line.limit[i] + n for n in range(64 * WORDS) if bits[at][n // 64] >> n % 64 & 1]
            assert seen == sorted(own.line.seen[i])
            at += 1
    assert table[PLACE, at:].tolist() == [-1] * 7, "padding is written nowhere"


def test_pieces_are_cut_into_chunks_but_those_that_begin_at_a_given_entry():
    pieces = [RowSlice(RowEntries.of(row, 10, range(count))) for row, count in ((0, 5), (1, 9), (2, 4))]
    table, chunks = table_of(pieces, 18, 4)
    assert chunks == 6
    assert table[FIRST, :6].tolist() == [0, 4, 5, 9, 13, 14]
    assert table[COUNT, :6].tolist() == [4, 1, 4, 4, 1, 4]
    table, chunks = table_of(pieces, 18, 4, sliced={5})
    assert table[FIRST, :chunks].tolist() == [0, 4, 14]
    assert table[COUNT, :chunks].tolist() == [4, 1, 4]
