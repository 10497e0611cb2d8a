"""The counter of joules that NVIDIA's driver keeps for each GPU.

The library comes with the driver and is called through ctypes: nothing need be installed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"


class NoCounter(Exception):
    """Why there is nothing to read."""


class Nvml:
    """The four calls that are needed, of the library or of what stands in for it in tests."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._do("nvmlInit_v2")

    def find(self, uuid: str | None) -> ctypes.c_void_p:
        """The board of this name. A program may see some boards only, under numbers of its own, so a number names none;
        where the name is not known, the only board there is is the one."""
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
        """Since the driver was loaded."""
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
    """What reads the joules of a CUDA device, the current one if none is named; `NoCounter` says why there is none."""
    if not torch.cuda.is_available():
        raise NoCounter("torch sees no CUDA device")
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise NoCounter(str(error)) from error
    return counter(library, _uuid(device))


def counter(library: Any, uuid: str | None) -> Callable[[], float]:
    """What reads the joules of the board of this name; `NoCounter` where it has none."""
    nvml = Nvml(library)
    board = nvml.find(uuid)
    nvml.joules(board)  # boards before Volta refuse
    return partial(nvml.joules, board)


def _uuid(device: int | None) -> str | None:
    """As NVML spells it."""
    number = torch.cuda.current_device() if device is None else device
    uuid = getattr(torch.cuda.get_device_properties(number), "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"
