"""The hash of packages notices whatever is changed, whoever hashes which block."""

from __future__ import annotations

import pytest
import torch

from slipstream.kernels.cpu import hash as cpu_hash
from slipstream.kernels.cpu.compile import Unavailable

SIZE = 2 * cpu_hash.BLOCK + 1234


@pytest.fixture(scope="module")
def kernel() -> cpu_hash.HashKernel:
    try:
        return cpu_hash.kernel()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def data() -> torch.Tensor:
    return torch.randint(256, (SIZE,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_blocks_are_hashed_apart_and_in_order(kernel, data):
    blocks = [data[start : start + cpu_hash.BLOCK] for start in range(0, SIZE, cpu_hash.BLOCK)]
    hashes = b"".join(kernel.hash(block).to_bytes(8, "little") for block in blocks)
    assert kernel.hash_blocks(data) == kernel.hash(torch.tensor(list(hashes), dtype=torch.uint8))


def test_any_change_is_noticed(kernel, data):
    expected = kernel.hash_blocks(data)
    for place in (0, 31, cpu_hash.BLOCK - 1, cpu_hash.BLOCK, SIZE - 1):
        data[place] ^= 1
        assert kernel.hash_blocks(data) != expected
        data[place] ^= 1
    assert kernel.hash_blocks(data) == expected
    assert kernel.hash_blocks(data[:-1]) != expected
    one, other = slice(0, cpu_hash.BLOCK), slice(cpu_hash.BLOCK, 2 * cpu_hash.BLOCK)
    data[one], data[other] = data[other].clone(), data[one].clone()
    assert kernel.hash_blocks(data) != expected, "a sum of the words would be the same"


def test_the_number_of_threads_makes_no_difference(kernel, data):
    threads, hashes = torch.get_num_threads(), set()
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        hashes.add(kernel.hash_blocks(data))
    torch.set_num_threads(threads)
    assert len(hashes) == 1
