# SPDX-License-Identifier: Apache-2.0
"""Trains a small character-level mixture-of-experts transformer with experts spread over ranks.

    python examples/train_moe.py                          # 4 ranks, 300 steps
    python examples/train_moe.py --single --plot loss.png # also in one process: the same loss curve

Ranks are processes of this machine. Each has its share of the batch and of the experts, and a copy
of the rest of the model. Shoal sends tokens to their experts on the host. torch.distributed (gloo)
averages the gradients of replicated parameters. Parameters and batches do not depend on the number
of ranks, so neither does the loss, up to rounding.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

import shoal
import shoal.ep
from shoal.torch import MoE

TEXT = pathlib.Path(__file__).with_suffix(".txt")
CONTEXT, BATCH = 64, 16  # characters per sample; samples per step on all ranks together
HIDDEN, HEADS, LAYERS = 64, 4, 2
EXPERTS, TOP_K, INTERMEDIATE = 8, 2, 64
LEARNING_RATE = 2e-3
TOLERANCE = 0.05  # between loss curves: training amplifies rounding differences of sums


class Block(nn.Module):
    """Causal attention, then a mixture of experts."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.attention_norm, self.expert_norm = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.experts = MoE(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, group=group)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1))
        heads = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.experts(self.expert_norm(x))


class Transformer(nn.Module):
    """Characters [samples, CONTEXT] to logits of the next character."""

    def __init__(self, letters: int, group: Any = None) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
        self.blocks = nn.Sequential(*(Block(group) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, letters)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.letters(text) + self.places.weight)))


def is_expert(name: str) -> bool:
    return name.endswith(("w_in", "w_out"))


def make_model(letters: int, rank: int, group: Any) -> Transformer:
    """The part of the model on this rank. The parameters do not depend on the number of ranks."""
    torch.manual_seed(0)
    whole = Transformer(letters)
    if group is None:
        return whole
    part = Transformer(letters, group)
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            value = whole.get_parameter(name)
            parameter.copy_(value.chunk(group.team.size)[rank] if is_expert(name) else value)
    return part


def average_gradients(model: nn.Module, ranks: int) -> None:
    """Makes them those of the mean loss. Gradients of experts already contain all tokens."""
    shared = [p.grad for name, p in model.named_parameters() if not is_expert(name)]
    flat = torch.cat([grad.flatten() for grad in shared])
    dist.all_reduce(flat)
    for grad, total in zip(shared, flat.split([grad.numel() for grad in shared])):
        grad.copy_(total.view_as(grad))
    for parameter in model.parameters():
        parameter.grad /= ranks


def train(steps: int, rank: int = 0, ranks: int = 1, group: Any = None) -> list[float]:
    """Returns the loss of each step, averaged over the ranks."""
    text = TEXT.read_text()
    letters = sorted(set(text))
    data = torch.tensor([letters.index(letter) for letter in text])
    model = make_model(len(letters), rank, group)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    chooser = torch.Generator().manual_seed(1)
    losses = []
    title = f"{ranks} rank{'s' if ranks > 1 else ''}"
    with tqdm(range(steps), desc=title, disable=rank > 0) as progress:
        for _ in progress:
            starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=chooser)
            samples = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
            samples = samples.chunk(ranks)[rank]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(samples[:, :-1]).flatten(0, 1), samples[:, 1:].flatten())
            loss.backward()
            total = loss.detach()
            if ranks > 1:
                average_gradients(model, ranks)
                dist.all_reduce(total)
            optimizer.step()
            losses.append(total.item() / ranks)
            progress.set_postfix(loss=f"{losses[-1]:.3f}")
    return losses


def train_rank(rank: int, ranks: int, steps: int, folder: str) -> None:
    """Body of a process: connects, trains, and on rank 0 saves the losses."""
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=timeout)
    with shoal.World.from_torch(settings={"symmetric_size": "64M"}) as world:
        group = shoal.ep.Group(
            world.team,
            hidden=HIDDEN,
            top_k=TOP_K,
            experts=EXPERTS,
            max_tokens=BATCH // ranks * CONTEXT,
            dtype="float32",
        )
        losses = train(steps, rank, ranks, group)
        if rank == 0:
            torch.save(losses, f"{folder}/losses")
    dist.destroy_process_group()


def train_on_ranks(ranks: int, steps: int) -> list[float]:
    """Starts the processes and returns the losses."""
    with tempfile.TemporaryDirectory() as folder:
        # Forked, so that PyTorch is imported once. This process has not computed anything yet.
        mp.start_processes(train_rank, (ranks, steps, folder), nprocs=ranks, start_method="fork")
        return torch.load(f"{folder}/losses")


def plot(path: str, curves: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (name, losses), style in zip(curves.items(), ("-", "--")):
        axes.plot(losses, style, label=name)
    axes.set(xlabel="step", ylabel="loss (nats per character)")
    axes.set_title("Mixture-of-experts transformer on train_moe.txt")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--ranks", type=int, default=4, choices=(1, 2, 4, 8), help="processes (default: 4)")
    add("--steps", type=int, default=300, help="steps of training (default: 300)")
    add("--single", action="store_true", help="also train in one process, and compare")
    add("--plot", metavar="PNG", help="draw the loss curves into this file")
    add("--losses", metavar="JSON", help="write the loss of each step into this file")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; at least 1 is allowed")

    curves = {f"{options.ranks} ranks": train_on_ranks(options.ranks, options.steps)}
    if options.single:
        torch.set_num_threads(1)  # as the ranks
        curves["one process"] = train(options.steps)
    for name, losses in curves.items():
        print(f"{name}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")
    if options.single:
        difference = max(abs(a - b) for a, b in zip(*curves.values()))
        print(f"largest difference between the curves: {difference:.1e}, allowed: {TOLERANCE}")
    if options.losses:
        rounded = {name: [round(x, 8) for x in losses] for name, losses in curves.items()}
        pathlib.Path(options.losses).write_text(json.dumps(rounded))
        print(f"losses: {options.losses}")
    if options.plot:
        plot(options.plot, curves)
        print(f"plot: {options.plot}")
    if options.single and difference > TOLERANCE:
        raise SystemExit("the loss curves differ")


if __name__ == "__main__":
    main()
