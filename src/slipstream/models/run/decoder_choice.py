"""Which implementation runs a model's layers: kernels, captured graphs, or the model's own modules.

The choice does not depend on a model's name. Its parts are looked up (`layer_parts`), and then a few tokens run through
the model's own modules and through the kernels. If the output of any layer or a logit differs by more than rounding,
the modules are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from slipstream.core.array_types import Tensor
from slipstream.kernels.cpu.decoder import kernel
from slipstream.kernels.machine import say
from slipstream.models.cache.attention_mask import ints
from slipstream.models.cache.packing import RowEntries, RowSlice
from slipstream.models.cache.tensors import KVCache
from slipstream.models.run.attention import WHOLE, view
from slipstream.models.run.cpu.decoder import CpuDecoder
from slipstream.models.run.layers import watch
from slipstream.models.run.support_check import ModelAnatomy
from slipstream.models.weights.linears import row_bits

if TYPE_CHECKING:
    from slipstream.models.run.gpu.decoder import GpuDecoder
    from slipstream.models.run.gpu.passes import GpuPasses

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Relative to the norm of the compared tensor. It covers rounding; another activation or a missing bias exceeds it."""
INT8_TOLERANCE = 3e-2  # for int8 activations: a difference in the last digit may round one to its neighbour
PROBE = 5  # tokens


def choose_decoder(model: Any, anatomy: ModelAnatomy, exact: bool = False) -> CpuDecoder | GpuPasses | None:
    """The fastest implementation whose numbers agree with the model's own modules; None: run the modules.

    `exact`: sums have one order whatever the number of tokens, on a GPU too. A model's modules do not promise that.
    `anatomy.agreed` skips the comparison, which was made before.
    """
    decoder: CpuDecoder | GpuPasses | None
    gpu = model.device.type == "cuda"
    try:
        decoder = _gpu_kernels(model, anatomy, exact) if gpu else _cpu_kernels(model, anatomy)
        label = "own kernels, captured as graphs" if gpu else "all layers in one call"
    except (AttributeError, TypeError) as error:  # a part is missing or of another kind
        decoder, label = None, f"its own modules ({error})"
    if decoder is not None and not anatomy.agreed and not agrees(decoder, model, anatomy.layers):
        decoder, label = None, "its own modules (its layers compute something else)"
    if decoder is None and gpu and not exact:
        decoder, capture = captured_modules(model, anatomy)
        label = f"{label}, {capture}"
    say(f"{model.config.model_type}: {label}")
    return decoder


def _cpu_kernels(model: Any, anatomy: ModelAnatomy) -> CpuDecoder:
    decoder_kernel = kernel(row_bits(model))
    if decoder_kernel is None or model.device.type != "cpu" or model.dtype != torch.float32:
        raise TypeError(f"no kernel for {model.dtype} on {model.device.type}")
    return CpuDecoder(model, anatomy.layers, anatomy.windows, decoder_kernel)


def _gpu_kernels(model: Any, anatomy: ModelAnatomy, exact: bool) -> GpuDecoder:
    try:
        from slipstream.models.run.gpu.decoder import GpuDecoder
    except ImportError as error:
        raise TypeError(f"Triton is not installed: {error}") from error
    if model.dtype not in TOLERANCE:
        raise TypeError(f"no kernel for {model.dtype}")
    return GpuDecoder(model, anatomy.layers, anatomy.windows, exact)


def captured_modules(model: Any, anatomy: ModelAnatomy) -> tuple[GpuPasses | None, str]:
    """A model's own modules as CUDA graphs, compiled except for attention where possible, and a label for the log.

    A few tokens tell whether the modules can be captured, and whether the numbers stay the same.
    """
    failure = ""
    for fuse, label in ((True, "partly compiled, captured as graphs"), (False, "captured as graphs")):
        try:
            from slipstream.models.run.gpu.modules import record

            with torch.inference_mode():
                modules, expected, logits = record(model, anatomy, _probe_tokens(model), fuse)
                if _near(logits, expected):
                    return modules, f"{label}{failure}"
            failure = f" (not {label}: the numbers differ)"
        except Exception as error:  # a model's own code may do anything; if it cannot be captured, it runs uncaptured
            failure = f" (not {label}: {type(error).__name__}: {str(error).partition(chr(10))[0]})"
    return None, f"one by one{failure}"


def _probe_tokens(model: Any) -> list[int]:
    return [(i * 977 + 13) % model.config.get_text_config().vocab_size for i in range(PROBE)]


def agrees(decoder: CpuDecoder | GpuPasses, model: Any, layers: Sequence[Any]) -> bool:
    """Whether the model's own modules, with our attention in them, compute the same for a few tokens.

    Every layer gets the same input and is compared in what it adds to it; the head is compared on the last state.
    """
    count, device = len(layers), model.device
    tolerance = INT8_TOLERANCE if row_bits(model) == 8 else None
    token = _probe_tokens(model)
    own, other = KVCache(), KVCache()
    pieces = [RowSlice(RowEntries.of(cache.take(), 0, token)) for cache in (own, other)]
    context = view(own, dict.fromkeys(range(count)), pieces[:1], device)
    ids, position = ints([token], device), torch.arange(PROBE, device=device)[None]
    with torch.inference_mode(), watch(layers, range(count)) as expected:
        output = model(ids, attention_mask=WHOLE.to(device), position_ids=position, slipstream=context)
        state = model.get_input_embeddings()(ids)[0]
        for i in range(count):
            _, outputs, _ = decoder.forward(other, pieces[1:], (i, i + 1), state if i else None, [i])
            if not _near(outputs[i], expected[i], state, tolerance):
                return False
            state = expected[i]
        return _near(decoder.logits(state), output[0][0], tolerance=tolerance)


def _near(actual: Tensor, expected: Tensor, given: Tensor | None = None, tolerance: float | None = None) -> bool:
    """Equal up to rounding: of the update that was computed on top of `given`, and of the state in the model's type."""
    update = expected if given is None else expected - given
    slack = (tolerance or TOLERANCE[expected.dtype]) * update.float().norm() + torch.finfo(
        expected.dtype
    ).eps / 2 * expected.float().norm()
    return bool((actual.float() - expected.float()).norm() <= slack)
