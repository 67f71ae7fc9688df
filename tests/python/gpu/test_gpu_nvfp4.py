# SPDX-License-Identifier: Apache-2.0
"""NVFP4 results of low-latency dispatches: the kernel against the same quantization on the host,
which tests/python/deep_ep compares with a search for the nearest values."""

import pytest

torch = pytest.importorskip("torch")

from gpu_worlds import fetch

from deep_ep.buffers.legacy import nvfp4


@pytest.mark.parametrize("experts, rows, hidden", [(3, 300, 512), (1, 5, 7168), (40, 128, 192)])
@pytest.mark.parametrize("scale", [None, 448 * 6 / 5.0, 0.01])
def test_the_kernel_equals_the_host(experts, rows, hidden, scale):
    generator = torch.Generator().manual_seed(hidden)
    x = torch.randn((experts, rows, hidden), generator=generator).bfloat16()
    x[:, 0, :16] = 0
    x[:, 1, 16:32] = torch.tensor([0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6] + [-2.5] * 7)
    counts = torch.randint(0, rows + 1, (experts,), generator=generator, dtype=torch.int32)
    counts[0] = rows
    scale = None if scale is None else torch.tensor([scale])
    want = nvfp4.allocate(experts, rows, hidden, torch.device("cpu"))
    nvfp4.quantize(x, counts, scale, want, None)
    got = nvfp4.allocate(experts, rows, hidden, torch.device("cuda"))
    got[0].fill_(0x5A)
    stream = torch.cuda.current_stream().cuda_stream or 1
    on_gpu = None if scale is None else scale.cuda()
    nvfp4.quantize(x.cuda(), counts.cuda(), on_gpu, got, stream)
    values, tiles = (fetch(tensor) for tensor in got)
    for expert, count in enumerate(counts.tolist()):
        assert torch.equal(values[:count, :, expert], want[0][:count, :, expert])
        assert (values[count:, :, expert] == 0x5A).all(), "rows without a token are not touched"
        for row in range(count):
            place = (row % 32, row % 128 // 32, row // 128, slice(None), slice(None), expert)
            assert torch.equal(tiles[place].view(torch.uint8), want[1][place].view(torch.uint8)), (
                expert,
                row,
            )
