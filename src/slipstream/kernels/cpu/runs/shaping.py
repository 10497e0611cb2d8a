"""What a request changes in its logits, as the kernels read it (`shaping.hpp`); the reference is `core.shaping`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from slipstream.core.types import Row
from slipstream.kernels.cpu.linear import POINTER, SIZE


class TokensStruct(ctypes.Structure):
    """`Tokens` in shaping.hpp."""

    _fields_ = (("id", POINTER), ("count", SIZE))


class ChangesStruct(ctypes.Structure):
    """`Changes` in shaping.hpp."""

    _fields_ = (
        *((name, TokensStruct) for name in ("prompt", "output", "biased", "suppressed", "allowed", "ends")),
        ("bias", POINTER),
        *((name, SIZE) for name in ("penalises", "restricts", "held_back")),
        *((name, ctypes.c_double) for name in ("repetition", "presence", "frequency")),
    )


class LogitChanges:
    """The changes of a row's logits from its present text on: penalties, biases, token sets and `min_tokens`."""

    def __init__(self, row: Row) -> None:
        request, params = row.request, row.request.sampling
        self._arrays: list[ctypes.Array[ctypes.c_int64]] = []  # kept alive: the kernel has addresses only
        bias = self._bias = (ctypes.c_double * len(params.logit_bias))(*params.logit_bias.values())
        self._struct = ChangesStruct(
            *(self._tokens(tokens if params.penalises else ()) for tokens in (request.prompt, row.output)),
            *(self._tokens(params.logit_bias), self._tokens(params.suppress_tokens)),
            *(self._tokens(params.allowed_token_ids or ()), self._tokens(request.ends)),
            ctypes.addressof(bias),
            *(params.penalises, params.allowed_token_ids is not None, request.min_tokens - row.emitted),
            *(params.repetition_penalty, params.presence_penalty, params.frequency_penalty),
        )
        self.address = ctypes.addressof(self._struct)

    def _tokens(self, tokens: Iterable[int]) -> TokensStruct:
        ids = [*tokens]
        self._arrays.append((SIZE * len(ids))(*ids))
        return TokensStruct(ctypes.addressof(self._arrays[-1]), len(ids))
