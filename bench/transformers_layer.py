#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a layer of experts of transformers over Shoal beside transformers' own all_to_all.

Both exchange the tokens of the same layer of a Mixtral, forward and backward, in alternating
rounds. "exchange": experts that only multiply by the weights, so that what remains is exchange and
permutation. Ranks are processes of this machine, on the CPU (gloo) or with --gpus (NCCL).

--decode: forward alone, of few tokens in bfloat16, also in decode(), which is low-latency mode.
"""

import argparse
import contextlib
import datetime
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import transformers
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from transformers.distributed.expert_parallel import EPImplementationInterface
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

from rounds import origin
from shoal.integrations.experts import SortedExperts
from shoal.integrations.transformers import decode  # registers "shoal"

NAMES = ("all_to_all", "shoal")
DECODE_CALLS = 10  # a round


def local_experts(options, rank, device):
    config = transformers.MixtralConfig(
        hidden_size=options.hidden,
        intermediate_size=options.intermediate,
        num_local_experts=options.experts,
        num_experts_per_tok=options.top_k,
    )
    config._experts_implementation = "grouped_mm"
    here = options.experts // options.ranks
    torch.manual_seed(0)
    experts = MixtralExperts(config)
    for name, parameter in list(experts.named_parameters()):
        values = torch.randn(parameter.shape)[rank * here : (rank + 1) * here] * 0.02
        setattr(experts, name, nn.Parameter(values.to(device, options.dtype)))
    experts.num_experts, experts._is_expert_parallel = here, True
    return experts


def weighted(x, _ids, weights):
    return x * weights


def measure(rank, options, folder):
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if options.gpus else torch.device("cpu")
    if options.gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if options.gpus else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=options.ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    mesh = init_device_mesh(device.type, (options.ranks, 1), mesh_dim_names=("ep", "tp"))
    experts = local_experts(options, rank, device)
    registry = EPImplementationInterface()
    layers = {name: registry[name](experts, mesh["ep"], mesh["tp"]) for name in NAMES}
    shoal_layer = layers["shoal"].layer
    rows = []
    for part, forward in (("layer", experts.forward), ("exchange", weighted)):
        layers["all_to_all"].experts_forward = forward
        shoal_layer.local_experts = SortedExperts(forward)
        for tokens in options.tokens:
            times = measure_tokens(layers, tokens, rank, options, device)
            medians = [statistics.median(of_one) for of_one in times.values()]
            rows.append([part, tokens, *(round(t, 2) for t in medians)])
    if rank == 0:
        torch.save(rows, f"{folder}/rows")
    dist.barrier()
    dist.destroy_process_group()


def measure_tokens(layers, tokens, rank, options, device):
    """Milliseconds of each round, by layer: those of the slowest rank. The first two warm up."""
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(tokens, options.hidden, generator=generator).to(device, options.dtype)
    scores = torch.rand(tokens, options.experts, generator=generator).softmax(-1)
    weights, idx = (part.to(device) for part in scores.topk(options.top_k))
    calls = {name: (layer, contextlib.nullcontext) for name, layer in layers.items()}
    if options.decode:
        calls["decode"] = layers["shoal"], lambda: decode(max(options.tokens))
    weights, repeats = weights.to(options.dtype), DECODE_CALLS if options.decode else 1
    x.requires_grad_(not options.decode), weights.requires_grad_(not options.decode)
    times = {name: [] for name in calls}
    outputs = {}
    for number in range(options.rounds + 2):
        for name, (layer, context) in calls.items():
            x.grad = weights.grad = None
            dist.barrier()
            if options.gpus:
                torch.cuda.synchronize()
            start = time.perf_counter()
            with context(), torch.set_grad_enabled(not options.decode):
                for _ in range(repeats):
                    outputs[name] = layer(x, idx, weights)
            if not options.decode:
                outputs[name].sum().backward()
            if options.gpus:
                torch.cuda.synchronize()
            took = torch.tensor((time.perf_counter() - start) * 1e3 / repeats, device=device)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if number >= 2:
                times[name].append(took.item())
    for output in outputs.values():
        torch.testing.assert_close(output, outputs["all_to_all"], rtol=0.02, atol=1e-3)
    return times


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ranks", type=int, default=4)
    add("--tokens", type=int, nargs="+", help="of each rank (256 1024 4096; --decode: 1 2 8)")
    add("--hidden", type=int, default=512)
    add("--intermediate", type=int, default=512)
    add("--experts", type=int, default=16)
    add("--top-k", type=int, default=4)
    add("--rounds", type=int, default=11)
    add("--gpus", action="store_true", help="one GPU per rank, bfloat16, NCCL")
    add("--decode", action="store_true", help="forward alone, of few tokens, also in decode()")
    add("--machine", default="2 cores", help="its description in the file (%(default)s)")
    add("--json", help="also write the rows to this file")
    options = parser.parse_args()
    options.dtype = torch.bfloat16 if options.gpus or options.decode else torch.float32
    options.tokens = options.tokens or ([1, 2, 8] if options.decode else [256, 1024, 4096])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(measure, (options, folder), options.ranks)
        rows = torch.load(os.path.join(folder, "rows"))
    columns = ["part", "tokens", "all_to_all ms", "Shoal ms", "decode() ms"][: len(rows[0])]
    print(f"{'part':10}{'tokens':>8}" + "".join(f"{name:>15}" for name in columns[2:]))
    for part, tokens, *times in rows:
        ratios = "".join(f"{ours / times[0]:8.2f}" for ours in times[1:])
        print(f"{part:10}{tokens:8}" + "".join(f"{ms:15.2f}" for ms in times) + ratios)
    if options.json:
        result = {**origin(options.machine), "ranks": options.ranks, "hidden": options.hidden}
        result |= {"intermediate": options.intermediate, "experts": options.experts}
        result |= {"top_k": options.top_k, "dtype": str(options.dtype).removeprefix("torch.")}
        with open(options.json, "w") as file:
            json.dump({**result, "columns": columns, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
