"""The kernel equals `functional.linear`, and a row's bits depend on that row alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from grids import by_plain_arithmetic, least_and_most, random_grid
from slipstream.kernels.cpu import compile, few_bits
from slipstream.kernels.cpu import linear as cpu_linear
from slipstream.kernels.machine import warn

needs_integers = pytest.mark.skipif(not cpu_linear.has_integers(), reason="needs instructions for products of bytes")
needs_kernel = pytest.mark.skipif(not cpu_linear.available(), reason=cpu_linear.status())
SHAPES = [(1, 1), (7, 5), (8, 64), (33, 19), (192, 576), (130, 301), (65, 4096)]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def numbers(*shape: int, halved: bool = False, seed: int = 0) -> Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return drawn.bfloat16().float() if halved else drawn


@needs_kernel
@pytest.mark.parametrize("halved", [True, False])
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 300])
def test_equals_torch_up_to_rounding(rows: int, outputs: int, inputs: int, halved: bool) -> None:
    x, weight, bias = numbers(rows, inputs), numbers(outputs, inputs, halved=halved, seed=1), numbers(outputs, seed=2)
    packed = cpu_linear.pack(weight, bias)
    assert packed.is_bfloat16 == halved
    assert torch.equal(packed.unpack(), weight)
    exact = functional.linear(x.double(), weight.double(), bias.double())
    bound = 2e-7 * inputs * functional.linear(x.abs().double(), weight.abs().double(), bias.abs().double())
    assert ((cpu_linear.linear(x, packed) - exact).abs() <= bound).all()


@needs_kernel
@pytest.mark.parametrize("scale", [1.0, 2.0**12 + 1])  # beside 1 it needs four bytes
def test_whole_numbers_are_exact(scale: float) -> None:
    x, weight = (numbers(rows, 40).mul(3).round() for rows in (21, 50))
    weight[0, 0] = scale
    packed = cpu_linear.pack(weight)
    assert packed.is_bfloat16 == (scale == 1)
    assert torch.equal(cpu_linear.linear(x, packed), functional.linear(x, weight))


@needs_kernel
@pytest.mark.parametrize("halved", [True, False])
@pytest.mark.parametrize(("outputs", "inputs"), [(192, 576), (576, 1536), (1003, 129)])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(outputs: int, inputs: int, halved: bool) -> None:
    x, packed = numbers(64, inputs), cpu_linear.pack(numbers(outputs, inputs, halved=halved, seed=1))
    torch.set_num_threads(1)
    alone = torch.cat([cpu_linear.linear(row, packed) for row in x.split(1)])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in range(1, 65):
            assert torch.equal(cpu_linear.linear(x[64 - rows :], packed), alone[64 - rows :])


@needs_kernel
def test_a_row_has_the_same_bits_in_a_prompt_of_several_tiles() -> None:
    x, packed = numbers(700, 576), cpu_linear.pack(numbers(72, 576, halved=True, seed=1))
    together = cpu_linear.linear(x, packed)
    for row in (0, 1, 7, 8, 223, 224, 225, 699):
        assert torch.equal(cpu_linear.linear(x[row : row + 1], packed)[0], together[row])


@needs_kernel
def test_two_and_four_bytes_give_the_same_bits() -> None:
    x, weight = numbers(11, 100), numbers(24, 100, halved=True, seed=1)
    other = torch.cat([weight, torch.full((1, 100), 1 / 3)])  # one more output that forbids two bytes
    small, large = cpu_linear.pack(weight), cpu_linear.pack(other)
    assert (small.is_bfloat16, large.is_bfloat16) == (True, False)
    assert torch.equal(cpu_linear.linear(x, small), cpu_linear.linear(x, large)[:, :24])


@needs_kernel
def test_shapes_strides_and_refusals() -> None:
    packed = cpu_linear.pack(numbers(10, 6))
    assert cpu_linear.linear(numbers(0, 6), packed).shape == (0, 10)
    assert cpu_linear.linear(numbers(6), packed).shape == (10,)
    x = numbers(6, 3, 2).permute(2, 1, 0)
    assert torch.equal(cpu_linear.linear(x, packed), cpu_linear.linear(x.contiguous(), packed))
    for wrong in (numbers(2, 5), numbers(2, 6).double()):
        with pytest.raises(ValueError, match=r"takes \[\.\.\., 6\] in float32 on cpu"):
            cpu_linear.linear(wrong, packed)


@needs_integers
@pytest.mark.parametrize("row_bits", [16, 8])
@pytest.mark.parametrize("kind", few_bits.FORMS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17, 19, 23, 24, 27, 32, 33, 50])
def test_every_form_is_multiplied_by_plain_arithmetic_to_the_bit(rows: int, kind: str, row_bits: int) -> None:
    found, x = random_grid(kind, 37, 512), numbers(rows, 512, seed=3) * 5
    x[rows // 2, 32:64] = 0
    packed = cpu_linear.pack_grid(found, row_bits=row_bits)
    assert (packed.kind, packed.is_integer, packed.row_bits) == (kind, True, row_bits)
    assert torch.equal(packed.unpack(), found.weight())
    assert torch.equal(cpu_linear.linear(x, packed), by_plain_arithmetic(x, found, row_bits))


@needs_integers
@pytest.mark.parametrize("row_bits", [16, 8])
@pytest.mark.parametrize("kind", few_bits.FORMS)
def test_the_largest_sums_there_are_fit(kind: str, row_bits: int) -> None:
    """Instructions that add up pairs in sixteen bits stop at the largest number of these."""
    x, (least, most) = torch.full((18, 256), -3.0), least_and_most(kind)
    found = random_grid(kind, 20, 256)
    found.number.fill_(least or most)
    result = cpu_linear.linear(x, cpu_linear.pack_grid(found, row_bits=row_bits))
    assert torch.equal(result, by_plain_arithmetic(x, found, row_bits))


@needs_integers
@pytest.mark.parametrize("row_bits", [16, 8])
@pytest.mark.parametrize("kind", few_bits.FORMS)
def test_every_form_has_rows_of_its_own(kind: str, row_bits: int) -> None:
    x, found = numbers(70, 768), random_grid(kind, 130, 768)
    packed = cpu_linear.pack_grid(found, numbers(130, seed=4), row_bits)
    alone = torch.cat([cpu_linear.linear(row, packed) for row in x.split(1)])
    for rows in (*range(2, 34), 40, 70):
        assert torch.equal(cpu_linear.linear(x[:rows], packed), alone[:rows])


@needs_integers
def test_a_row_has_the_same_bits_in_a_prompt_of_several_tiles_of_bytes() -> None:
    """Tiles of rows begin where blocks of rows do, however many inputs there are."""
    x, packed = numbers(60, 4864), cpu_linear.pack_grid(random_grid("int4", 20, 4864), row_bits=8)
    alone = torch.cat([cpu_linear.linear(row, packed) for row in x.split(1)])
    assert torch.equal(cpu_linear.linear(x, packed), alone)


@needs_integers
def test_activations_of_eight_bits_are_others_and_not_far_off() -> None:
    found, x = random_grid("int8", 64, 576), numbers(9, 576)
    wide, short = (cpu_linear.linear(x, cpu_linear.pack_grid(found, row_bits=bits)) for bits in (16, 8))
    error = float((short - wide).norm() / wide.norm())
    assert 1e-4 < error < 1e-2


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A process that has not looked for the kernel yet, with an empty cache."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    cpu_linear._loaded.cache_clear()
    warn.cache_clear()
    yield tmp_path
    cpu_linear._loaded.cache_clear()


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_there_is_a_sentence(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], compiler: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert not cpu_linear.available()
    assert f"not available: {compiler}" in cpu_linear.status()
    assert cpu_linear.why_not(8)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"slipstream: compiled kernels are not used: {compiler} ")
    assert err.endswith("; decoding on this CPU is several times slower\n")
    assert err.count("\n") == 1, "the same is said once"
    with pytest.raises(RuntimeError, match="not available"):
        cpu_linear.pack(numbers(2, 2))


def test_an_empty_path_has_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.setenv("SLIPSTREAM_DEBUG", "1")
    assert cpu_linear.status() == "cpu linear kernel: not available: no C++ compiler on PATH; using torch"


@needs_kernel
def test_two_builders_at_once_leave_one_whole_library(fresh: Path) -> None:
    source = fresh / "tiny.cpp"
    source.write_text('extern "C" int tiny() { return 1; }')
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: compile.build(source), range(2))
    assert first == second == compile.build(source)
    assert list((fresh / "kernels").iterdir()) == [first]
    source.write_text('extern "C" int tiny() { return 2; }')
    assert compile.build(source) != first
