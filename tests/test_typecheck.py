"""The checks of types and shapes that run in all other tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("beartype")
pytest.importorskip("jaxtyping")

import torch
from jaxtyping import Float
from torch import Tensor

import typecheck
from slipstream.core.law import OneHot

if TYPE_CHECKING:
    from slipstream.nowhere import Unknown


@typecheck.check
def outer(x: Float[Tensor, " n"], y: Float[Tensor, " m"] | None, same: bool = False) -> Float[Tensor, "n m"]:
    y = x if y is None else y
    return torch.outer(y, x) if same else torch.outer(x, y)


@typecheck.check
def half(x: float, sink: Unknown | None = None) -> float:
    return x / 2 if sink is None else sink


@typecheck.check
@dataclass(frozen=True)
class Pair:
    left: Float[Tensor, " n"]
    right: Float[Tensor, " n"]
    name: str = ""


def test_sizes_are_compared_within_a_call_and_not_between_calls() -> None:
    for n, m in [(2, 3), (4, 5)]:
        assert outer(torch.ones(n), torch.ones(m)).shape == (n, m)
        with pytest.raises(TypeError, match="violates type hint"):
            outer(torch.ones(n), torch.ones(m), same=True)  # the result has the sizes exchanged
    assert outer(torch.ones(2), None, same=True).shape == (2, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: outer(torch.ones(2, dtype=torch.long), None),
        lambda: outer(torch.ones(2, 2), None),
        lambda: half("1"),  # type: ignore[arg-type]
        lambda: half(1.0, sink="no float"),  # type: ignore[arg-type]
        lambda: Pair(torch.ones(2), torch.ones(3)),
        lambda: Pair(torch.ones(2), torch.ones(2), name=1),  # type: ignore[arg-type]
    ],
)
def test_what_contradicts_a_signature_is_refused(call: Any) -> None:
    with pytest.raises(TypeError, match="violates type hint"):
        call()


def test_an_int_is_a_float_and_names_for_type_checkers_alone_are_anything() -> None:
    assert half(3) == 1.5
    assert half(3.0, sink=2.5) == 2.5
    assert outer.__annotations__["same"] == "bool"
    assert Pair(torch.ones(2), torch.ones(2)).name == ""


def scaled_by(factor: float, tail: bool = True) -> Any:
    @typecheck.check
    def scale(x: float, *more: float, power: int = 1) -> float:
        return factor * x**power + sum(more) if tail else "no float"

    @typecheck.check
    def add(x: Float[Tensor, " n"], y: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return factor * (x + y)

    return scale, add


def test_functions_inside_functions_are_checked_each_with_its_own_variables() -> None:
    (double, add), (triple, _), (bad, _) = scaled_by(2), scaled_by(3), scaled_by(2, tail=False)
    assert (double(5), triple(5), double(5, 1.0, power=2)) == (10, 15, 51)
    assert add(torch.ones(2), torch.ones(2)).tolist() == [4, 4]
    for call in (
        lambda: double("5"),
        lambda: triple(5, "1"),
        lambda: double(5, power=0.5),
        lambda: bad(5),
        lambda: add(torch.ones(2), torch.ones(3)),
    ):
        with pytest.raises(TypeError, match="violates type hint"):
            call()


def test_the_package_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="violates type hint"):
        OneHot(torch.zeros(2), 5)  # token numbers are whole
    (tmp_path / "one_module.py").write_text("def outer():\n    def inner(x: int) -> None: ...\n    return inner\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.meta_path", [typecheck.Finder(("one_module",)), *__import__("sys").meta_path])
    import one_module  # type: ignore[import-not-found]

    with pytest.raises(TypeError, match="violates type hint"):
        one_module.outer()("no int")
