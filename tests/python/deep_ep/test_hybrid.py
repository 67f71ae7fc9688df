# SPDX-License-Identifier: Apache-2.0
"""HybridEPBuffer on four ranks of a gloo group, against plain torch on gathered inputs."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch_ranks import add_tests, of_all_ranks, run_checks, seeded

import deep_ep
from deep_ep.buffers.spread import first_experts
from deep_ep.hybrid_ep_buffer import indices_to_map
from deep_ep.utils.math import per_token_cast_to_fp8

H, E, MAX = 128, 8, 16
_shared = []


def the_buffer():
    if not _shared:
        _shared.append(deep_ep.HybridEPBuffer(dist.group.WORLD, H, MAX, E // 4))
    return _shared[0]


def make_inputs(seed, tokens=None):
    """Rows, a routing map with 0 to 4 experts per token, and probabilities."""
    generator = seeded(100 * seed + dist.get_rank())
    tokens = (5, 0, MAX, 9)[dist.get_rank()] if tokens is None else tokens
    x = torch.randn((tokens, H), generator=generator).bfloat16()
    routing_map = torch.rand((tokens, E), generator=generator) < 0.25
    excess = routing_map.cumsum(1) > 4
    routing_map &= ~excess
    probs = torch.rand((tokens, E), generator=generator) * routing_map
    return x, routing_map, probs


def expected(x, routing_map, probs, multiple=1):
    """(rows, probs, padded counts) of this rank's experts, by source rank and token."""
    all_ranks, local = of_all_ranks((x, routing_map, probs)), E // 4
    rows, weights, counts = [], [], []
    for expert in range(dist.get_rank() * local, (dist.get_rank() + 1) * local):
        chosen = torch.cat([x_of[map_of[:, expert]] for x_of, map_of, _ in all_ranks])
        gates = torch.cat([p_of[map_of[:, expert], expert] for _, map_of, p_of in all_ranks])
        padding = -len(chosen) % multiple
        rows.append(torch.nn.functional.pad(chosen, (0, 0, 0, padding)))
        weights.append(torch.nn.functional.pad(gates, (0, padding)))
        counts.append(len(rows[-1]))
    return torch.cat(rows), torch.cat(weights), counts


def check_permuted_rows_and_their_sums(_):
    buffer = the_buffer()
    for seed, multiple in enumerate((None, 1, 4, 16, 128, 224, 256)):
        x, routing_map, probs = make_inputs(seed)
        recv, recv_probs, scales, counts, handle = buffer.dispatch_with_permute(
            hidden=x,
            routing_map=routing_map,
            probs=probs,
            num_of_experts_per_rank=E // 4,
            pad_multiple=multiple,
        )
        rows, weights, padded = expected(x, routing_map, probs, multiple or 1)
        assert torch.equal(recv, rows) and torch.equal(recv_probs, weights) and scales is None
        assert counts.dtype == torch.int64 and counts.tolist() == padded
        sums, sent_back = buffer.combine_with_unpermute(
            hidden=recv, probs=recv_probs, handle=handle, pad_multiple=multiple
        )
        copies = routing_map.sum(1, keepdim=True)
        assert torch.allclose(sums.float(), x.float() * copies, rtol=0.02, atol=1e-6)
        assert torch.equal(sent_back, probs)
        sums, sent_back = buffer.combine_with_unpermute(hidden=recv, handle=handle)
        assert sent_back is None


def check_a_handle_repeats_the_layout(_):
    buffer = the_buffer()
    x, routing_map, probs = make_inputs(5)
    *_, handle = buffer.dispatch_with_permute(
        hidden=x, routing_map=routing_map, probs=probs, pad_multiple=4
    )
    assert len(handle) == 9 and hash(handle) is not None
    y = (x * 2).bfloat16()
    recv, recv_probs, _, counts, again = buffer.dispatch_with_permute(
        hidden=y, handle=handle, num_permuted_tokens=torch.tensor(1), pad_multiple=4
    )
    rows, _, padded = expected(y, routing_map, probs, 4)
    assert torch.equal(recv, rows) and recv_probs is None and again is handle
    assert counts.tolist() == padded
    _, recv_probs, *_ = buffer.dispatch_with_permute(hidden=y, handle=handle, probs=probs)
    assert torch.equal(recv_probs, expected(y, routing_map, probs, 4)[1])


def check_fixed_number_of_rows(_):
    """Non-blocking: more rows than needed are zeros, rows that do not fit are dropped."""
    buffer = the_buffer()
    x, routing_map, probs = make_inputs(6)
    rows, weights, padded = expected(x, routing_map, probs, 4)
    for limit in (128, 8, 0):
        recv, recv_probs, _, counts, handle = buffer.dispatch_with_permute(
            hidden=x,
            routing_map=routing_map,
            probs=probs,
            num_permuted_tokens=limit,
            pad_multiple=4,
            non_blocking=True,
        )
        kept = min(limit, len(rows))
        assert recv.shape == (limit, H) and recv_probs.shape == (limit,)
        assert torch.equal(recv[:kept], rows[:kept]) and not recv[kept:].any()
        assert torch.equal(recv_probs[:kept], weights[:kept])
        assert bool(handle[-1]) == (len(rows) > limit) and int(counts.sum()) == kept
        if limit == 128:
            assert counts.tolist() == padded
        sums, sent_back = buffer.combine_with_unpermute(
            hidden=recv, probs=recv_probs, handle=handle, pad_multiple=4
        )
        if limit == 128:
            copies = routing_map.sum(1, keepdim=True)
            assert torch.allclose(sums.float(), x.float() * copies, rtol=0.02, atol=1e-6)
            assert torch.equal(sent_back, probs)
        else:  # the reference of what was kept, by the probabilities that came back
            assert bool((sent_back <= probs).all())


def check_rows_without_permutation(_):
    """Each token arrives once; probabilities have a column for each expert of the domain."""
    buffer = the_buffer()
    x, routing_map, probs = make_inputs(7)
    recv, recv_probs, _, handle = buffer.dispatch(hidden=x, routing_map=routing_map, probs=probs)
    first, local = dist.get_rank() * E // 4, E // 4
    rows, maps, gates = [], [], []
    for x_of, map_of, probs_of in of_all_ranks((x, routing_map, probs)):
        here = map_of[:, first : first + local]
        rows.append(x_of[here.any(1)])
        maps.append(here[here.any(1)])
        gates.append(probs_of[here.any(1), first : first + local])
    assert torch.equal(recv, torch.cat(rows)) and recv_probs.shape == (len(recv), E)
    assert torch.equal(recv_probs[:, first : first + local], torch.cat(gates))
    assert torch.allclose(recv_probs.sum(), torch.cat(gates).sum())
    assert len(handle) == 7 and torch.equal(handle[4], torch.cat(maps))
    assert int(handle[3]) == len(recv)
    copies = handle[4].sum(1, keepdim=True)
    sums, sent_back = buffer.combine((recv * copies).bfloat16(), recv_probs, handle)
    want = x.float() * routing_map.sum(1, keepdim=True)
    assert torch.allclose(sums.float(), want, rtol=0.02, atol=1e-6)
    assert torch.equal(sent_back, probs)
    again, none, *_ = buffer.dispatch(hidden=x, handle=handle)
    assert torch.equal(again, recv) and none is None


def check_indices_in_place_of_a_map(_):
    buffer = the_buffer()
    x, *_ = make_inputs(8)
    generator = seeded(dist.get_rank())
    topk_idx = torch.rand((len(x), E), generator=generator).topk(2, dim=1).indices
    topk_idx[torch.rand((len(x), 2), generator=generator) < 0.2] = -1
    topk_weights = torch.rand((len(x), 2), generator=generator)
    routing_map, probs = indices_to_map(topk_idx, topk_weights, len(x), E)
    for token, (experts, gates) in enumerate(zip(topk_idx.tolist(), topk_weights.tolist())):
        want = {e: g for e, g in zip(experts, gates) if e >= 0}
        assert routing_map[token].nonzero()[:, 0].tolist() == sorted(want)
        assert all(probs[token, e].item() == pytest.approx(g) for e, g in want.items())
    for name in ("dispatch_with_permute", "dispatch"):
        by_map = getattr(buffer, name)(hidden=x, routing_map=routing_map, probs=probs)
        by_index = getattr(buffer, name)(
            hidden=x, topk_idx=topk_idx, topk_weights=topk_weights, num_of_experts=E
        )
        assert torch.equal(by_map[0], by_index[0]) and torch.equal(by_map[1], by_index[1])


def check_fp8(_):
    """Scales for 128 channels, and those of MXFP8 for 32, travel with rows in fp8 and in bytes;
    padding is 0 in both."""
    buffer = deep_ep.HybridEPBuffer(dist.group.WORLD, H, MAX, E // 4, use_fp8=True)
    x, routing_map, probs = make_inputs(9)
    data, scales = per_token_cast_to_fp8(x)
    given = (scales, torch.rand(len(x), H // 32), torch.randint(1, 1 << 31, (len(x), 1)).int())
    for multiple in (16, 128, 224, 256):
        for hidden in (data, data.view(torch.uint8)):
            for factors in given:
                form = {"hidden": hidden, "routing_map": routing_map, "scaling_factor": factors}
                recv, _, recv_scales, padded, handle = buffer.dispatch_with_permute(
                    **form, pad_multiple=multiple
                )
                want, _, counts = expected(data.view(torch.uint8), routing_map, probs, multiple)
                want_scales, *_ = expected(factors, routing_map, probs, multiple)
                assert recv.dtype == hidden.dtype and padded.tolist() == counts
                assert torch.equal(recv.view(torch.uint8), want)
                assert torch.equal(recv_scales, want_scales)
                again = buffer.dispatch_with_permute(
                    hidden=hidden, scaling_factor=factors, handle=handle
                )
                assert torch.equal(again[0].view(torch.uint8), want)
                assert torch.equal(again[2], want_scales)
                by_rank, _, rank_scales, _ = buffer.dispatch(**form)
                here = of_all_ranks((data.view(torch.uint8), routing_map, factors))
                mine = slice(dist.get_rank() * E // 4, (dist.get_rank() + 1) * E // 4)
                kept = [(d[m[:, mine].any(1)], s[m[:, mine].any(1)]) for d, m, s in here]
                assert torch.equal(by_rank.view(torch.uint8), torch.cat([d for d, _ in kept]))
                assert torch.equal(rank_scales, torch.cat([s for _, s in kept]))


def check_more_tokens_than_the_constructor_names(_):
    """One rank has more tokens; its group grows on all ranks."""
    buffer = deep_ep.HybridEPBuffer(dist.group.WORLD, H, 4, E // 4)
    x, routing_map, probs = make_inputs(10, tokens=70 if dist.get_rank() == 2 else 3)
    recv, *_ = buffer.dispatch_with_permute(hidden=x, routing_map=routing_map, probs=probs)
    assert torch.equal(recv, expected(x, routing_map, probs)[0])
    config = buffer.configurer.buffer_config
    assert config.max_num_of_tokens_per_rank == 70 and config.hidden_dim == H
    assert config.num_of_experts_per_rank == E // 4


def check_two_nodes(_):
    """Probabilities of rows without permutation have a column for each expert of the node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_NODE_SIZE", "2")
        buffer = deep_ep.HybridEPBuffer(dist.group.WORLD, H, MAX, E // 4)
    assert (buffer.num_of_nodes, buffer.node_rank) == (2, dist.get_rank() // 2)
    x, routing_map, probs = make_inputs(13)
    recv, recv_probs, *_, handle = buffer.dispatch_with_permute(
        hidden=x, routing_map=routing_map, probs=probs
    )
    rows, weights, _ = expected(x, routing_map, probs)
    assert torch.equal(recv, rows) and torch.equal(recv_probs, weights)
    sums, sent_back = buffer.combine_with_unpermute(hidden=recv, probs=recv_probs, handle=handle)
    copies = routing_map.sum(1, keepdim=True)
    assert torch.allclose(sums.float(), x.float() * copies, rtol=0.02, atol=1e-6)
    assert torch.equal(sent_back, probs)
    recv, recv_probs, _, handle = buffer.dispatch(x, routing_map=routing_map, probs=probs)
    assert recv_probs.shape == (len(recv), E // 2)
    _, sent_back = buffer.combine(recv, recv_probs, handle)
    assert torch.equal(sent_back, probs)
    fewer, some = routing_map[:, :6].contiguous(), probs[:, :6].contiguous()
    recv, recv_probs, _, handle = buffer.dispatch(x, routing_map=fewer, probs=some)
    assert recv_probs.shape == (len(recv), 4 if dist.get_rank() < 2 else 2)
    _, sent_back = buffer.combine(recv, recv_probs, handle)
    assert torch.equal(sent_back, some)


def check_experts_that_the_ranks_do_not_divide(_):
    """All results by a plain reference; with three experts, the last rank has none."""
    buffer, rank = the_buffer(), dist.get_rank()
    for seed, experts in ((20, 10), (21, 3)):
        first = first_experts(experts, 4)
        mine = slice(first[rank], first[rank + 1])
        generator = seeded(100 * seed + rank)
        x = torch.randn((7, H), generator=generator).bfloat16()
        routing_map = torch.rand((7, experts), generator=generator) < 0.3
        probs = torch.rand((7, experts), generator=generator) * routing_map
        copies = routing_map.sum(1, keepdim=True)
        gathered = of_all_ranks((x, routing_map, probs))
        rows = [
            torch.cat([x_of[map_of[:, e]] for x_of, map_of, _ in gathered]) for e in range(experts)
        ][mine]
        gates = [
            torch.cat([p_of[map_of[:, e], e] for _, map_of, p_of in gathered])
            for e in range(experts)
        ][mine]
        for given in (None, first[rank + 1] - first[rank], first[1]):
            for limit in (None, 64, 2):
                recv, recv_probs, _, counts, handle = buffer.dispatch_with_permute(
                    hidden=x,
                    routing_map=routing_map,
                    probs=probs,
                    num_of_experts_per_rank=given,
                    num_permuted_tokens=limit,
                    non_blocking=limit is not None,
                )
                want, total = torch.cat([x[:0], *rows]), sum(len(one) for one in rows)
                kept = total if limit is None else min(limit, total)
                assert torch.equal(recv[:kept], want[:kept]) and int(counts.sum()) == kept
                assert counts.shape == (len(rows),) and bool(handle[-1]) == (kept < total)
                assert handle[4].shape[1] == len(rows)
                if limit != 2:
                    assert counts.tolist() == [len(one) for one in rows]
                    assert torch.equal(recv_probs[:kept], torch.cat([probs[0, :0], *gates]))
                sums, sent_back = buffer.combine_with_unpermute(
                    hidden=recv, probs=recv_probs, handle=handle
                )
                if limit != 2:
                    torch.testing.assert_close(
                        sums.float(), x.float() * copies, rtol=0.02, atol=1e-6
                    )
                    assert torch.equal(sent_back, probs)
        recv, recv_probs, _, handle = buffer.dispatch(x, routing_map=routing_map, probs=probs)
        here = [map_of[:, mine].any(1) for _, map_of, _ in gathered]
        assert torch.equal(recv, torch.cat([one[0][at] for one, at in zip(gathered, here)]))
        want = torch.zeros((len(recv), experts))
        want[:, mine] = torch.cat([one[2][at][:, mine] for one, at in zip(gathered, here)])
        assert torch.equal(recv_probs, want)
        _, sent_back = buffer.combine(recv, recv_probs, handle)
        assert torch.equal(sent_back, probs)


def check_fused_handles(_):
    buffer = the_buffer()
    x, routing_map, probs = make_inputs(11)
    recv, *_, handle = buffer.dispatch_with_permute(
        hidden=x, routing_map=routing_map, probs=probs, fuse_permute_dispatch=True
    )
    sums, _ = buffer.combine_with_unpermute(hidden=recv, handle=handle, fuse_unpermute_combine=True)
    assert len(handle) == 11 and sums.shape == x.shape


def check_errors(_):
    buffer = the_buffer()
    x, routing_map, probs = make_inputs(12, tokens=4)

    def fails(error, message, call, **arguments):
        with pytest.raises(error, match=message):
            call(**arguments)

    send, collect = buffer.dispatch_with_permute, buffer.combine_with_unpermute
    fails(AssertionError, "routing_map, topk_idx or handle", send, hidden=x)
    fails(AssertionError, "bool", send, hidden=x, routing_map=probs)
    fails(AssertionError, "num_of_experts", send, hidden=x, topk_idx=torch.zeros(4, 1).long())
    fails(RuntimeError, "the routing has 4 tokens", send, hidden=x[:3], routing_map=routing_map)
    share = {"hidden": x, "routing_map": routing_map[:, :6], "num_of_experts_per_rank": 3}
    allowed = "2, because 4 ranks share the 6" if dist.get_rank() < 2 else "1 or 2, because"
    fails(RuntimeError, f"num_of_experts_per_rank is 3; allowed: {allowed}", send, **share)
    by_index = {"hidden": x, "topk_idx": torch.zeros(4, 1).long(), "topk_weights": probs[:, :1]}
    fails(RuntimeError, "up to 65536", send, num_of_experts=2**31 - 4, **by_index)
    by_map = {"hidden": x, "routing_map": routing_map, "pad_multiple": 65537}
    fails(RuntimeError, "pad_multiple is 65537; allowed: 1 to 65536", send, **by_map)
    in_bytes = {"hidden": x.to(torch.float8_e4m3fn), "routing_map": routing_map}
    for call in (send, buffer.dispatch):
        fails(AssertionError, "one byte per channel, which needs scaling_factor", call, **in_bytes)
    fails(RuntimeError, "probs are", send, hidden=x, routing_map=routing_map, probs=probs[:, :3])
    fails(
        RuntimeError,
        "num_of_experts_per_rank is 5",
        send,
        hidden=x,
        routing_map=routing_map,
        num_of_experts_per_rank=5,
    )
    fails(
        AssertionError,
        "num_permuted_tokens is None",
        send,
        hidden=x,
        routing_map=routing_map,
        non_blocking=True,
    )
    fails(
        AssertionError,
        "num_permuted_tokens is 2147483648.*up to 2147483647",
        send,
        hidden=x,
        routing_map=routing_map,
        non_blocking=True,
        num_permuted_tokens=2**31,
    )
    fails(AssertionError, "handle is needed", collect, hidden=x)
    fails(RuntimeError, "allowed: the handle", collect, hidden=x, handle=(1, 2))
    wide = torch.ones((1, 64), dtype=torch.bool)
    fails(RuntimeError, "at most 32", send, hidden=x[:1], routing_map=wide)
    recv, *_, handle = send(hidden=x, routing_map=routing_map)
    fails(RuntimeError, "the dispatch returned", collect, hidden=recv[:0, :], handle=handle)
    fails(RuntimeError, "unchanged", buffer.combine, hidden=recv, handle=handle)


def test_parameters_are_found_by_inspection():
    parameters = inspect.signature(deep_ep.HybridEPBuffer.dispatch_with_permute).parameters
    for name in ("fuse_permute_dispatch", "non_blocking", "num_permuted_tokens", "use_fp8"):
        assert name in parameters
    assert (
        "fuse_unpermute_combine"
        in inspect.signature(deep_ep.HybridEPBuffer.combine_with_unpermute).parameters
    )


add_tests(globals(), lambda: run_checks(4, __name__))
