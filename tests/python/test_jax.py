# SPDX-License-Identifier: Apache-2.0
"""shoal.jax under jit and grad on four processes, against the same layer in NumPy and on one
process."""

import multiprocessing
import traceback

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import numpy as np

import shoal
import shoal.ep
import shoal.jax

HIDDEN, EXPERTS, TOP_K, MAX_TOKENS = 16, 8, 2, 12
DEADLINE_S = 90


def inputs(rank):
    """x, topk_idx, topk_weights, with a different number of tokens on each rank and some top-k
    slots without an expert."""
    random = np.random.default_rng(rank)
    count = (9, 12, 1, 5)[rank]
    idx = np.argsort(random.random((count, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int32)
    idx[random.random(idx.shape) < 0.2] = -1
    x = random.standard_normal((count, HIDDEN), np.float32)
    return x, idx, random.random(idx.shape, np.float32)


def matrices():
    return np.random.default_rng(99).standard_normal((EXPERTS, HIDDEN, HIDDEN), np.float32) / 4


def expert_output(x, idx, weights, experts):
    # one_hot of -1 is 0.
    share = (jax.nn.one_hot(idx, len(experts)) * weights[..., None]).sum(axis=1)
    return jnp.einsum("re,rh,ehk->rk", share, jnp.tanh(x), experts)


def two_layers(group, x, idx, weights, experts):
    for _ in range(2):
        received = shoal.jax.dispatch(group, x, idx, weights)
        x = shoal.jax.combine(
            group,
            expert_output(received.x, received.topk_idx, received.topk_weights, experts),
            received,
        )
    return x


def reference(x, idx, weights, experts):
    for _ in range(2):
        x = expert_output(x, idx, weights, experts)
    return x


def check_layer_under_jit(group, rank, ranks):
    """Results, and gradients with the losses of all ranks added."""
    x, idx, weights = inputs(rank)
    here = matrices().reshape(ranks, -1, HIDDEN, HIDDEN)[rank]
    step = jax.jit(lambda x, weights, here: (two_layers(group, x, idx, weights, here) ** 2).sum())
    loss, gradients = jax.jit(jax.value_and_grad(step, argnums=(0, 1, 2)))(x, weights, here)

    parts = [inputs(other) for other in range(ranks)]
    everything = [np.concatenate(part) for part in zip(*parts)]
    counts = np.cumsum([len(part[0]) for part in parts])[:-1]
    layer = lambda x, weights, experts: reference(x, everything[1], weights, experts)
    rows = np.split(np.asarray(layer(everything[0], everything[2], matrices())), counts)[rank]
    np.testing.assert_allclose(loss, (rows**2).sum(), rtol=1e-4)
    total = jax.grad(lambda *arguments: (layer(*arguments) ** 2).sum(), argnums=(0, 1, 2))
    expected = total(everything[0], everything[2], matrices())
    expected = [np.split(np.asarray(part), counts)[rank] for part in expected[:2]] + [
        np.asarray(expected[2]).reshape(ranks, -1, HIDDEN, HIDDEN)[rank]
    ]
    for actual, wanted in zip(gradients, expected):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4)


def check_gradient_that_is_a_constant(group, rank, ranks):
    """The gradient of a sum does not use forward values, and still follows them on all ranks."""
    x, idx, weights = inputs(rank)

    def total(x):
        received = shoal.jax.dispatch(group, x, idx, weights)
        return shoal.jax.combine(group, received.x, received).sum()

    copies = sum(
        (idx // group.local_experts == r).any(axis=1, where=idx >= 0) for r in range(ranks)
    )
    gradient = jax.jit(jax.grad(total))(x)
    np.testing.assert_array_equal(gradient, np.broadcast_to(copies[:, None], x.shape))


def check_received(group, rank, ranks):
    x, idx, weights = inputs(rank)
    received = jax.jit(
        lambda x: shoal.jax.dispatch(group, x, idx, weights, rows=ranks * MAX_TOKENS - 1)
    )(x)
    first = rank * group.local_experts
    rows = []
    for x, idx, weights in (inputs(other) for other in range(ranks)):
        here = (idx >= first) & (idx < first + group.local_experts)
        token = np.flatnonzero(here.any(axis=1))
        rows.append(
            (
                x[token],
                np.where(here, idx - first, -1)[token],
                np.where(here, weights, 0)[token],
                token,
            )
        )
    for actual, parts, unused in zip(received[:4], zip(*rows), (0, -1, 0, 0)):
        wanted = np.concatenate(parts)
        assert int(received.count) == len(wanted)
        np.testing.assert_array_equal(actual[: len(wanted)], wanted)
        assert (np.asarray(actual[len(wanted) :]) == unused).all()


def check_bfloat16(group, rank, ranks):
    x, idx, weights = inputs(rank)
    received = shoal.jax.dispatch(group, jnp.asarray(x, jnp.bfloat16), idx, weights)
    out = shoal.jax.combine(group, received.x, received)
    copies = sum(
        (idx // group.local_experts == r).any(axis=1, where=idx >= 0) for r in range(ranks)
    )
    expected = jnp.asarray(
        jnp.asarray(x, jnp.bfloat16).astype(jnp.float32) * copies[:, None], jnp.bfloat16
    )
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out.astype(jnp.float32), expected.astype(jnp.float32))


def check_errors(group, rank, ranks):
    """XLA's errors contain Shoal's messages, before anything is sent. The group stays usable."""
    x, idx, weights = inputs(0)
    with pytest.raises(ValueError, match=f"rows is 0; allowed: 1 to ranks .* {ranks * MAX_TOKENS}"):
        shoal.jax.dispatch(group, x, idx, weights, rows=0)
    with pytest.raises(ValueError, match="no tokens"):
        shoal.jax.dispatch(group, x[:0], idx[:0], weights[:0])
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"topk_idx\[0, 0\] is 8; allowed: 0 to 7"):
        shoal.jax.dispatch(group, x, np.full_like(idx, 8), weights).x.block_until_ready()
    received = shoal.jax.dispatch(group, x, idx, weights)
    gone = received._replace(handle=received.handle + 1000)
    with pytest.raises(jax.errors.JaxRuntimeError, match="keep_layouts"):
        shoal.jax.combine(group, received.x, gone).block_until_ready()
    assert shoal.jax.combine(group, received.x, received).shape == x.shape


def check_layouts_kept(group, rank, ranks):
    x, idx, weights = inputs(0)
    shoal.jax.keep_layouts(2)
    try:
        old, *_, new = [
            shoal.jax.dispatch(group, x, idx, weights, rows=ranks * MAX_TOKENS) for _ in range(3)
        ]
        shoal.jax.combine(group, new.x, new).block_until_ready()
        with pytest.raises(jax.errors.JaxRuntimeError, match="2 are kept"):
            shoal.jax.combine(group, old.x, old).block_until_ready()
    finally:
        shoal.jax.keep_layouts(256)


def check_order_of_independent_calls(group, rank, ranks):
    """`after` orders two dispatches that share no data, the same way on all ranks."""
    x, idx, weights = inputs(rank)

    @jax.jit
    def both(x):
        first = shoal.jax.dispatch(group, x, idx, weights)
        second = shoal.jax.dispatch(group, -x, idx, weights, after=first.handle)
        return first.handle, second.handle, first.x + second.x

    first, second, zero = both(x)
    assert second == first + 1
    assert (np.asarray(zero) == 0).all()


CHECKS = [name for name in globals() if name.startswith("check_")]


def rank_main(unique_id, rank, ranks, pipe):
    """Runs all checks and sends their failures by name."""
    failures, name = dict.fromkeys(CHECKS, "not run: an earlier check failed"), CHECKS[0]
    try:
        settings = {"symmetric_size": "64M", "timeout": 20.0}
        with shoal.World.from_unique_id(unique_id, rank, ranks, settings) as world:
            options = {
                "hidden": HIDDEN,
                "experts": EXPERTS,
                "top_k": TOP_K,
                "max_tokens": MAX_TOKENS,
            }
            group = shoal.ep.Group(world.team, dtype="float32", **options)
            for name in CHECKS:
                globals()[name](group, rank, ranks)
                failures[name] = ""
            group.close()
    except Exception:
        failures[name] = traceback.format_exc()
    pipe.send(failures)


@pytest.fixture(scope="module", params=[4])
def results(request):
    # JAX has threads, which a fork would lose.
    context = multiprocessing.get_context("spawn")
    unique_id, ranks = shoal.UniqueId.create(), []
    for rank in range(request.param):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=rank_main, args=(str(unique_id), rank, request.param, theirs)
        )
        process.start()
        theirs.close()
        ranks.append((process, ours))
    try:
        for rank, (_, pipe) in enumerate(ranks):
            assert pipe.poll(DEADLINE_S), f"rank {rank} has not ended after {DEADLINE_S} s"
        yield [pipe.recv() for _, pipe in ranks]
    finally:
        for process, _ in ranks:
            process.join(10)
            if process.is_alive():
                process.kill()


@pytest.mark.parametrize("name", CHECKS)
def test_on_ranks(results, name):
    failed = [f"rank {rank}: {result[name]}" for rank, result in enumerate(results) if result[name]]
    if failed:
        pytest.fail("\n".join(failed), pytrace=False)
