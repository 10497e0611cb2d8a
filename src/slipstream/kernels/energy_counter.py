"""The energy counter of a GPU in joules, from NVIDIA's driver.

The library is part of the driver and is called with ctypes, so nothing has to be installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"


class NoCounter(Exception):
    """There is no energy counter. The message is the reason."""


class Nvml:
    """The NVML functions that are used. `library`: the library, or a fake in tests."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._do("nvmlInit_v2")

    def find(self, uuid: str | None) -> ctypes.c_void_p:
        """The board with this UUID. Without a UUID, the only board; NoCounter if there are several.

        Indices are not used, because CUDA_VISIBLE_DEVICES changes CUDA's indices but not NVML's."""
        board = ctypes.c_void_p()
        try:
            if uuid is None:
                raise NoCounter("torch does not tell which GPU it uses")
            self._do("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(board))
        except NoCounter:
            count = ctypes.c_uint()
            self._do("nvmlDeviceGetCount_v2", ctypes.byref(count))
            if count.value != 1:
                raise
            self._do("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(board))
        return board

    def joules(self, board: ctypes.c_void_p) -> float:
        """Joules since the driver was loaded."""
        spent = ctypes.c_ulonglong()
        self._do("nvmlDeviceGetTotalEnergyConsumption", board, ctypes.byref(spent))
        return spent.value / 1000

    def _do(self, name: str, *arguments: Any) -> None:
        try:
            failed = getattr(self._library, name)(*arguments)
        except AttributeError as error:
            raise NoCounter(f"the driver is too old: its library has no {name}") from error
        if failed:
            raise NoCounter(f"{name} failed with NVML error {failed}")


def gpu_counter(device: int | None = None) -> Callable[[], float]:
    """A function that reads the joules of a CUDA device, by default the current one. `NoCounter` if it has none."""
    if not torch.cuda.is_available():
        raise NoCounter("torch sees no CUDA device")
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoCounter(str(error)) from error
    return counter(library, _uuid(device))


def counter(library: Any, uuid: str | None) -> Callable[[], float]:
    """A function that reads the joules of the board with this UUID. `NoCounter` if it has no counter."""
    nvml = Nvml(library)
    board = nvml.find(uuid)
    nvml.joules(board)  # boards before Volta refuse
    return partial(nvml.joules, board)


def _uuid(device: int | None) -> str | None:
    """The device's UUID in NVML's spelling."""
    number = torch.cuda.current_device() if device is None else device
    uuid = getattr(torch.cuda.get_device_properties(number), "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
