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
CACHE_SHARE = 0.4  # of the memory that is free once the model is loaded; growing copies one layer after the other
FIRST_SHARE = 0.1  # of it that a cache begins with
USUAL = 64, 4096  # rows, and places of each, that a cache begins with where there is room


def device_limits(model: TorchModel, passes: GpuPasses) -> DeviceLimits:
    """Rows and tokens that suit the device, now that the model is loaded."""
    free, token = _free_bytes(passes.like.device), _token_bytes(model, passes)
    rows = ROWS if not passes.row_bytes else int(CACHE_SHARE * free / passes.row_bytes)
    return DeviceLimits(max(1, min(ROWS, rows)), int(CACHE_SHARE * free / token), passes.prompt_tokens)


def reserve(model: TorchModel, passes: GpuPasses, rows: int) -> None:
    """Let the cache of a model begin with room for usual texts, for up to so many rows."""
    room, token = int(FIRST_SHARE * _free_bytes(model.device)), _token_bytes(model, passes)
    model.cache.grow(*first_room(rows, model.context, token, passes.row_bytes, room))


def first_room(rows: int, context: int, token: int, row: int, room: int) -> tuple[int, int]:
    """Rows and places that a cache begins with: usual ones, then as many rows as there may be, as far as `room` allows.
    `token` and `row`: bytes of a token, and of a row beside its tokens; rows that have such stay at the usual number.
    All numbers are powers of two."""
    count = places = 1
    for most_rows, most_places in ((USUAL[0], 1), USUAL, (USUAL[0] if row else rows, USUAL[1])):
        while count < min(rows, most_rows) and 2 * count * (row + places * token) <= room:
            count *= 2
        while places < min(context, most_places) and count * (row + 2 * places * token) <= room:
            places *= 2
    return count, places


def _free_bytes(device: torch.device) -> int:
    """Free memory of a GPU; 0 on a CPU, where nothing is captured."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def _token_bytes(model: TorchModel, passes: GpuPasses) -> int:
    """Bytes of a token in the cache, with the states that are kept for drafters."""
    states = len(model.features) * passes.like.nbytes
    return states + sum(key.nbytes + value.nbytes for key, value in passes.entries)
