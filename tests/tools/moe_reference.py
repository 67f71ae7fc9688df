# SPDX-License-Identifier: Apache-2.0
"""The mixture-of-experts layer in NumPy float64, written from its definition and not from the
program's source."""

import numpy as np


def to_bf16(x):
    """float32 values rounded to bfloat16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def e4m3_values():
    codes = np.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


def through_fp8(x):
    """Values that FP8 dispatch delivers: e4m3 with a scale of amax / 448 per 128 channels."""
    values = e4m3_values()
    thresholds = (values[1:] + values[:-1]) / 2
    result = np.empty(x.shape, np.float32)
    for first in range(0, x.shape[1], 128):
        group = x[:, first : first + 128].astype(np.float32)
        amax = np.maximum(np.abs(group).max(axis=1, keepdims=True), np.float32(1e-4))
        scaled = np.minimum(np.abs(group * (np.float32(448) / amax)).astype(np.float64), 448)
        code = np.searchsorted(thresholds, scaled, side="left")
        tie = (code < 126) & (scaled == thresholds[np.minimum(code, 125)]) & (code % 2 == 1)
        decoded = values[code + tie] * np.sign(group)
        result[:, first : first + 128] = decoded.astype(np.float32) * (amax / np.float32(448))
    return result


def gate(logits, bias, groups, groups_kept, top_k):
    """DeepSeek-V3's choice of experts: indices and normalised weights, each [tokens, top_k]."""
    scores = (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    selection = scores + bias.astype(np.float32)
    tokens, experts = logits.shape
    grouped = selection.reshape(tokens, groups, experts // groups)
    group_score = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2, dtype=np.float32)
    kept = np.argsort(-group_score, axis=1, kind="stable")[:, :groups_kept]
    allowed = np.zeros((tokens, groups), bool)
    np.put_along_axis(allowed, kept, True, axis=1)
    masked = np.where(np.repeat(allowed, experts // groups, axis=1), selection, -np.inf)
    index = np.argsort(-masked, axis=1, kind="stable")[:, :top_k]
    weight = np.take_along_axis(scores, index, axis=1).astype(np.float64)
    return index, weight / weight.sum(axis=1, keepdims=True)


def moe(x, index, weight, weights):
    """The layer's result and the sum of its terms' magnitudes, each [tokens, hidden]. `weights` of
    an expert: gate and up [hidden, ffn], then down [ffn, hidden], rounded to bfloat16."""
    x, hidden = x.astype(np.float64), x.shape[1]
    weights = to_bf16(weights).astype(np.float64)
    result, magnitude = np.zeros_like(x), np.zeros_like(x)
    for expert, matrices in enumerate(weights):
        gate_matrix, up = matrices[:2].reshape(2, hidden, -1)
        token, k = np.nonzero(index == expert)
        inner = x[token] @ gate_matrix
        terms = weight[token, k][:, None] * (
            (inner / (1 + np.exp(-inner)) * (x[token] @ up)) @ matrices[2].reshape(-1, hidden)
        )
        np.add.at(result, token, terms)
        np.add.at(magnitude, token, np.abs(terms))
    return result, magnitude


def make_inputs(seed, tokens, hidden, ffn, experts):
    """Random float32 arrays of a layer by the names of shoal-moe's options."""
    random = np.random.default_rng(seed)
    return {
        "tokens": to_bf16(random.standard_normal((tokens, hidden))),
        "router": random.standard_normal((tokens, experts)).astype(np.float32),
        "bias": (0.02 * random.standard_normal(experts)).astype(np.float32),
        "weights": (random.standard_normal((experts, 3, hidden * ffn)) / 16).astype(np.float32),
    }


def save_inputs(folder, arrays):
    """Writes the arrays to files; returns the options of shoal-moe that name them."""
    options = []
    for name, array in arrays.items():
        array.astype(np.float32).tofile(folder / f"{name}.f32")
        options += [f"--{name}", folder / f"{name}.f32"]
    return options


def load_output(path, hidden):
    """Output of shoal-moe --output, [tokens, hidden]."""
    return np.fromfile(path, np.float32).reshape(-1, hidden)
