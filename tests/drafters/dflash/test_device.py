"""The device form of the dflash drafter: its kernels give the logits of the host path, on a GPU or interpreted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton (pip install triton); its interpreter will do")

from blocks import dflash
from slipstream.core.device import DraftSize
from slipstream.core.types import Budget, Request, Row
from slipstream.drafters.dflash.device import DflashDeviceDrafter
from slipstream.kernels.gpu.cycle import CycleControl
from slipstream.models.run.gpu.pass_sizes import parts_of
from slipstream.models.run.torch_model import TorchModel
from tiny import VOCAB, build

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = (125, 3)  # the block of the first row crosses the boundary between two parts of the cache
DEPTH = 3


@torch.inference_mode()
@pytest.mark.parametrize("markov", [0, 16])
def test_a_captured_block_and_what_it_reads_are_those_of_the_host_path(markov):
    target = TorchModel(build("llama", num_hidden_layers=2).to(DEVICE))
    drafter = dflash(target, range(60), features=(0, 1), block=8, markov=markov)
    drafter.slots._kernel = None
    rows = [Row(Request([(7 * i + n) % VOCAB for i in range(n)], max_tokens=50)) for n in LENGTHS]
    target.open(rows), drafter.open(rows)
    target.prefill(rows, 130)
    like = torch.zeros(1, 32, device=DEVICE)
    device = DflashDeviceDrafter(drafter, target, like)
    assert device.max_depth == 8
    part = device.part()
    state, read = device.begin(rows, [Budget(DEPTH)] * 2, SimpleNamespace(key=DraftSize(DEPTH)))
    assert read == sum(LENGTHS) - 2
    mine = [[tensor.clone() for tensor in pair] for pair in part.held]
    for pair in part.held:
        for tensor in pair:
            tensor.zero_()
    for row in rows:
        drafter.slots._rows[row].held = 0
    torch.testing.assert_close(state.float(), drafter.slots.last_states(rows)[0].float(), rtol=1e-3, atol=1e-3)
    for before, after in zip(mine, part.held, strict=True):
        torch.testing.assert_close(tuple(before), after, rtol=1e-3, atol=1e-3)
    numbers = torch.tensor([[0] * 2, LENGTHS, [DEPTH] * 2, [target.index(row) for row in rows],
                            [device.index(row) for row in rows], [row.tokens[-1] for row in rows], *[[0] * 2] * 5],
                           device=DEVICE)  # fmt: skip
    control = CycleControl(*numbers)
    steps = part.steps(2, DEPTH, parts_of(max(LENGTHS) + DEPTH + 1), state.float())
    steps.begin(control)
    out, token = torch.zeros(DEPTH, 2, 60, device=DEVICE), torch.tensor([[3, 50, 9, 4], [8, 8, 70, 5]], device=DEVICE)
    for n in range(DEPTH):
        steps.run(n, token, out[n])
    expected = drafter.slots.outputs(rows, DEPTH)
    if drafter.markov is not None:
        depths = [drafter.markov(expected[:, n], token[:, n]) for n in range(DEPTH)]
        assert (depths[1] - expected[:, 1, :60]).abs().max() > 0.1, "the head changes nothing"
        expected = torch.stack(depths, 1)
    torch.testing.assert_close(out.transpose(0, 1), expected, rtol=1e-3, atol=1e-3)

    held = [[tensor.clone() for tensor in pair] for pair in part.held]
    reading = part.committed_read(2, 2, 1, like)  # the last two context positions of each row, once more
    layout = reading.layout
    layout.row.copy_(numbers[4].repeat_interleave(2))
    position = torch.tensor([[n - 3, n - 2] for n in LENGTHS], device=DEVICE)
    layout.position.copy_(position.flatten()), layout.place.copy_(position.flatten())
    reading.end.copy_(torch.tensor([1, 3]))
    features = [target.states(row, row.length - 3) for row in rows]
    scaled = [torch.cat([s[layer][:2] * drafter.slots.net.scale[layer] for layer in (0, 1)], -1) for s in features]
    for row, places in zip(numbers[4], position, strict=True):
        for pair in part.held:
            for tensor in pair:
                tensor[0, :, row + places] = 0
    reading.run(torch.cat(scaled))
    torch.testing.assert_close(reading.state, state.float(), rtol=1e-3, atol=1e-3)
    for before, after in zip(held, part.held, strict=True):
        torch.testing.assert_close(after, tuple(before), rtol=1e-3, atol=1e-3)
