"""The memory of a GPU that caches may take, and what they begin with.

Graphs hold the addresses of caches. When a cache grows, all graphs are captured again, so it begins with room for usual
batches and texts.
"""

from __future__ import annotations

import torch

from slipstream.engines.native.scheduler import DeviceLimits
from slipstream.models.run.gpu.passes import GpuPasses
from slipstream.models.run.torch_model import TorchModel

ROWS = 256  # rows that decode together by default
CACHE_SHARE = 0.65  # of the memory that is free once the model is loaded; growing copies one layer after the other
FIRST_SHARE = 0.1  # of it that a cache begins with
OFFSETS = (1 << 31) - 1  # the largest offset in a tensor: kernels compute offsets in 32 bits
USUAL = 1 << 18  # tokens that a cache begins with where there is room: 256 rows of 1,024


def device_limits(model: TorchModel, passes: GpuPasses) -> DeviceLimits:
    """Rows and tokens that suit the device, now that the model is loaded."""
    free, token = _free_bytes(passes.like.device), _token_bytes(model, passes)
    most = OFFSETS // max(part.shape[1] * part.shape[3] for entry in passes.entries for part in entry)
    rows = ROWS if not passes.row_bytes else int(CACHE_SHARE / 2 * free / passes.row_bytes)
    return DeviceLimits(max(1, min(ROWS, rows)), min(int(CACHE_SHARE * free / token), most), passes.prompt_tokens)


def reserve(model: TorchModel, passes: GpuPasses, tokens: int) -> None:
    """Let the cache of a model begin with room for usual batches, of up to so many tokens, and for retained rows, which
    never make it grow."""
    room, token = int(FIRST_SHARE * _free_bytes(model.device)), _token_bytes(model, passes)
    model.cache.grow(first_room(tokens, token, room, model.prefixes.retained.places_for(token)))


def first_room(tokens: int, token_bytes: int, room: int, retained: int = 0) -> int:
    """Tokens that a cache begins with, as far as so many bytes allow it."""
    return min(tokens, USUAL + retained, room // token_bytes)


def _free_bytes(device: torch.device) -> int:
    """Free memory of a GPU; 0 on a CPU, where nothing is captured."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _token_bytes(model: TorchModel, passes: GpuPasses) -> int:
    """Bytes of a token in the cache, with the states that are kept for drafters."""
    states = len(model.features) * passes.like.nbytes
    return states + sum(key.nbytes + value.nbytes for key, value in passes.entries)
