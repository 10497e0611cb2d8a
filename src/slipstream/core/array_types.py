"""Array types for signatures: `Float[Tensor, "nodes vocab"]` says the shape where the argument stands.

In the tests jaxtyping checks shapes at run time. Without jaxtyping, an optional package, they have no effect.
"""

from __future__ import annotations

from torch import Tensor

try:
    from jaxtyping import Bool, Float, Int, UInt8
except ImportError:

    class _Shaped:
        def __class_getitem__(cls, _: object) -> type[Tensor]:
            return Tensor

    Bool = Float = Int = UInt8 = _Shaped  # type: ignore[assignment]

__all__ = ["Bool", "Float", "Int", "Tensor", "UInt8"]
