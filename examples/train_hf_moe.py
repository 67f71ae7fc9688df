# SPDX-License-Identifier: Apache-2.0
"""Trains a small Mixtral of transformers with its experts spread over ranks by Shoal.

    python examples/train_hf_moe.py                          # 4 ranks on the CPU, 100 steps
    python examples/train_hf_moe.py --single --plot loss.png # also in one process: the same loss
    python examples/train_hf_moe.py --gpus                   # ranks on GPUs

The two lines that concern Shoal are marked. FSDP2 shards the other parameters and averages their
gradients. Batches do not depend on the number of ranks, so neither does the loss, up to rounding.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from train_moe import CONTEXT, TEXT, TOLERANCE, plot
from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel
from transformers.distributed import DistributedConfig

BATCH = 16  # samples per step on all ranks together
LEARNING_RATE = 2e-3


def characters() -> tuple[torch.Tensor, int]:
    text = TEXT.read_text()
    letters = sorted(set(text))
    return torch.tensor([letters.index(letter) for letter in text]), len(letters)


def save_initial(folder: str) -> None:
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=characters()[1],
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def load(folder: str, ranks: int) -> PreTrainedModel:
    if ranks == 1:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    import shoal.integrations.transformers  # registers "shoal"

    config = DistributedConfig(
        fsdp_size=ranks,
        ep_size=ranks,
        ep_implementation="shoal",  # in place of "all_to_all"
    )
    return AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=config, dtype=torch.float32
    )


def train(folder: str, steps: int, rank: int = 0, ranks: int = 1) -> list[float]:
    """Returns the loss of each step, averaged over the ranks."""
    model = load(folder, ranks).train()
    data = characters()[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    chooser = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=chooser)
        samples = torch.stack([data[start : start + CONTEXT] for start in starts])
        samples = samples.chunk(ranks)[rank].to(model.device)
        optimizer.zero_grad()
        loss = model(input_ids=samples, labels=samples).loss
        loss.backward()
        optimizer.step()
        total = loss.detach()
        if ranks > 1:
            dist.all_reduce(total)
        losses.append(total.item() / ranks)
    return losses


def train_rank(rank: int, ranks: int, steps: int, folder: str, gpus: bool) -> None:
    """Body of a process: connects, trains, and on rank 0 saves the losses."""
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)  # transformers chooses the GPU by it, as under torchrun
    if gpus:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        "nccl" if gpus else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=120),
    )
    losses = train(folder, steps, rank, ranks)
    if rank == 0:
        torch.save(losses, f"{folder}/losses")
    dist.barrier()
    dist.destroy_process_group()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--ranks", type=int, default=4, choices=(2, 4, 8), help="processes (default: 4)")
    add("--steps", type=int, default=100, help="steps of training (default: 100)")
    add("--gpus", action="store_true", help="ranks on GPUs, over NCCL")
    add("--single", action="store_true", help="also train in one process, and compare")
    add("--plot", metavar="PNG", help="draw the loss curves into this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        save_initial(folder)
        mp.start_processes(
            train_rank,
            (options.ranks, options.steps, folder, options.gpus),
            nprocs=options.ranks,
            start_method="spawn",
        )
        curves = {f"{options.ranks} ranks": torch.load(f"{folder}/losses")}
        if options.single:
            torch.set_num_threads(1)  # as the ranks
            curves["one process"] = train(folder, options.steps)
    for name, losses in curves.items():
        print(f"{name}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")
    if options.plot:
        plot(options.plot, curves)
        print(f"plot: {pathlib.Path(options.plot)}")
    if options.single:
        difference = max(abs(a - b) for a, b in zip(*curves.values()))
        print(f"largest difference between the curves: {difference:.1e}, allowed: {TOLERANCE}")
        if difference > TOLERANCE:
            raise SystemExit("the loss curves differ")


if __name__ == "__main__":
    main()
