# SPDX-License-Identifier: Apache-2.0
"""Config, its buffer sizes and tables, and the sizes of low-latency and elastic buffers."""

import itertools
import math
import os
import subprocess
import sys
from fractions import Fraction

import pytest
from deep_ep import config
from deep_ep.config import Config

import shoal
import shoal.ep

INDEX_BYTES = config.topk_idx_t.itemsize


def padded(size: int) -> int:
    while size % 128:
        size += 1
    return size


@pytest.mark.skipif(INDEX_BYTES != 8, reason="numbers for 64-bit indices")
def test_sizes_that_callers_know():
    assert Config(20, 6, 256).get_nvl_buffer_size_hint(14336, 8) == 335_709_824
    assert Config(20, 6, 288).get_nvl_buffer_size_hint(14336, 16) == 377_673_984
    assert Config(20, 36, 288, 20, 128).get_rdma_buffer_size_hint(14336, 16) == 91_887_744
    assert config.get_low_latency_rdma_size_hint(128, 7168, 8, 288) == 2_146_961_792
    assert config.get_low_latency_rdma_size_hint(128, 7168, 8, 256) == 1_908_410_496
    assert config.get_low_latency_rdma_size_hint(1024, 4096, 8, 32) == 1_090_519_424
    eight = dict(num_scaleout_ranks=1, num_scaleup_ranks=8, num_nvlink_ranks=8)
    assert config.get_elastic_buffer_size(8192, 7168, **eight) == 966_787_072


@pytest.mark.parametrize("num_ranks", [1, 2, 7, 8, 16, 24, 160])
@pytest.mark.parametrize("sms, send, recv", [(0, 1, 2), (2, 6, 256), (24, 20, 140), (20, 12, 130)])
def test_normal_buffers_hold_all_parts(num_ranks, sms, send, recv):
    hidden_bytes = 1000
    chunks = Config(sms, send, recv, send, recv)
    token = hidden_bytes + 8 + 128 * INDEX_BYTES + 128 * 4 + 128 * 4

    nvl = rdma = 0
    peers, nodes = (num_ranks, 1) if num_ranks <= 8 else (8, num_ranks // 8)
    rdma_recv = next(r for r in itertools.count(recv) if r % send == 0)
    for _channel in range(sms // 2):
        for _peer in range(peers):
            nvl += 4 * (2 * nodes) + 4 * 3 + recv * token
        for _node in range(nodes):
            for _direction in ("send", "receive"):
                rdma += 4 * (8 + 8 + 2) + rdma_recv * (token + 16)
    assert chunks.get_nvl_buffer_size_hint(hidden_bytes, num_ranks) == padded(nvl)
    assert chunks.get_rdma_buffer_size_hint(hidden_bytes, num_ranks) == (
        padded(rdma) if num_ranks > 8 else 0
    )


@pytest.mark.parametrize(
    "name, most",
    [
        ("low_latency_max_tokens", config.MAX_TOKENS),
        ("hidden", config.MAX_HIDDEN),
        ("experts", config.MAX_EXPERTS),
    ],
)
def test_limits_are_those_of_groups(name, most):
    small = {"low_latency_max_tokens": 8, "hidden": 128, "top_k": 1, "experts": 8}
    assert shoal.ep.size_hint(1, **{**small, name: most})["low_latency"] > 0
    with pytest.raises(shoal.errors.InvalidArgumentError, match=f"allowed: [01] to {most}"):
        shoal.ep.size_hint(1, **{**small, name: most + 1})


def test_odd_sms_up_to_8_ranks():
    assert Config(21).get_nvl_buffer_size_hint(14336, 8) == Config(20).get_nvl_buffer_size_hint(
        14336, 8
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(num_sms=-1), "num_sms >= 0, got -1"),
        (dict(num_max_nvl_chunked_send_tokens=0), "nvl_chunked_send_tokens > 0, got 0"),
        (dict(num_max_nvl_chunked_recv_tokens=0), "nvl_chunked_recv_tokens > 0, got 0"),
        (dict(num_max_nvl_chunked_send_tokens=256), "got 256 and 256"),
        (dict(num_max_rdma_chunked_send_tokens=0), "rdma_chunked_send_tokens > 0, got 0"),
        (dict(num_max_rdma_chunked_recv_tokens=-4), "rdma_chunked_recv_tokens > 0, got -4"),
        (
            dict(num_max_rdma_chunked_send_tokens=7, num_max_rdma_chunked_recv_tokens=7),
            "got 7 and 7",
        ),
        (dict(num_max_rdma_chunked_send_tokens=300), "got 300 and 300"),
    ],
)
def test_values_out_of_range(arguments, message):
    with pytest.raises(RuntimeError, match=r"^Assertion exception \(.*\): ") as error:
        Config(**arguments)
    assert message in str(error.value)


def test_rdma_receive_chunk_is_rounded_before_it_is_checked():
    # 7 is rounded up to 12, twice 6; without rounding it would be too small.
    Config(num_max_rdma_chunked_send_tokens=6, num_max_rdma_chunked_recv_tokens=7)


def test_sizes_refuse_what_they_cannot_mean():
    for num_ranks in (0, 9, 12, 20):
        with pytest.raises(RuntimeError, match=f"Assertion exception.*got {num_ranks}"):
            Config().get_nvl_buffer_size_hint(14336, num_ranks)
    for method in ("get_nvl_buffer_size_hint", "get_rdma_buffer_size_hint"):
        with pytest.raises(RuntimeError, match="Assertion exception.*num_sms even.*got 21"):
            getattr(Config(21), method)(14336, 16)
    with pytest.raises(RuntimeError, match="Assertion exception.*got 12"):
        Config().get_rdma_buffer_size_hint(14336, 12)


def test_arguments_by_position_and_by_name():
    assert repr(Config()) == "Config(20, 6, 256, 6, 258)"
    by_name = Config(
        num_sms=24,
        num_max_nvl_chunked_send_tokens=1,
        num_max_nvl_chunked_recv_tokens=2,
        num_max_rdma_chunked_send_tokens=3,
        num_max_rdma_chunked_recv_tokens=6,
    )
    assert repr(by_name) == repr(Config(24, 1, 2, 3, 6))
    assert not hasattr(by_name, "num_sms")
    for wrong in (dict(num_sms=2.5), dict(num_sms="2"), dict(sms=2)):
        with pytest.raises(TypeError):
            Config(**wrong)


def test_recommended_configs():
    # EP: dispatch, combine; NVLink send and receive, RDMA send.
    expected = """
        2  24,256,6 10,256,6    48  32,288,8  1,288,8
        4  6,256,6  9,256,6     64  32,288,8  1,288,8
        8  6,256,6  4,256,6     96  20,480,12 1,480,8
        16 36,288,20 4,288,12   128 20,560,12 1,560,8
        24 32,288,8 1,288,8     144 32,720,12 2,720,8
        32 32,288,8 1,288,8     160 28,720,12 2,720,8
    """.split()
    for num_ranks, dispatch, combine in zip(*[iter(expected)] * 3, strict=True):
        for text, function in (
            (dispatch, config.get_dispatch_config),
            (combine, config.get_combine_config),
        ):
            chunks = [int(number) for number in text.split(",")]
            assert repr(function(int(num_ranks), 22)) == repr(Config(22, *chunks, 128))
    assert len(config.DISPATCH_CHUNKS) == len(config.COMBINE_CHUNKS) == len(expected) // 3
    for function in (config.get_dispatch_config, config.get_combine_config):
        assert repr(function(8)).startswith("Config(20,")
        for num_ranks in (1, 3, 40):
            with pytest.raises(
                AssertionError, match=f"Unsupported number of EP ranks.*{num_ranks}"
            ):
                function(num_ranks)


@pytest.mark.parametrize(
    "tokens, hidden, ranks, experts",
    [
        (1, 512, 2, 4),
        (5, 2048, 4, 12),
        (64, 7168, 8, 8),
        (128, 128, 2, 8),
        (1, 640, 2, 4),
        (16, 2688, 8, 128),
        (5, 2944, 4, 12),
    ],
)
def test_low_latency_buffer_holds_all_parts(tokens, hidden, ranks, experts):
    scales = -(-hidden // 512) * 16
    dispatch, combine = 16 + max(hidden * 2, hidden + scales), scales + hidden * 2
    half = max(tokens * dispatch, experts * tokens * combine)
    half += max(experts * tokens * dispatch, experts * tokens * combine) + padded(4 * experts)
    hint = config.get_low_latency_rdma_size_hint(tokens, hidden, ranks, experts)
    assert hint % 128 == 0 and 0 < hint - 2 * half <= 128


def test_low_latency_size_refuses_bad_shapes():
    with pytest.raises(RuntimeError, match="Assertion exception.*got 0"):
        config.get_low_latency_rdma_size_hint(0, 7168, 8, 64)
    with pytest.raises(RuntimeError, match="Assertion exception.*got 7166"):
        config.get_low_latency_rdma_size_hint(128, 7166, 8, 64)


@pytest.mark.parametrize(
    "bits, expected",
    [
        ("", "torch.int64 8"),
        pytest.param("0", "torch.int64 8", marks=pytest.mark.soak),
        pytest.param("64", "torch.int64 8", marks=pytest.mark.soak),
        ("32", "torch.int32 4"),
    ],
)
def test_index_type_follows_the_environment(bits, expected):
    # One channel, one peer, 128 tokens: 1032 bytes per token in addition to its 128 indices.
    program = (
        "from deep_ep.config import Config, topk_idx_t;"
        "size = Config(2, 1, 128).get_nvl_buffer_size_hint(0, 1);"
        "print(topk_idx_t, (size - 128 * 1032) // (128 * 128))"
    )
    result = _python(program, EP_NUM_TOPK_IDX_BITS=bits)
    assert result.stdout.strip() == expected, result.stderr


def test_index_type_refuses_other_widths():
    result = _python("import deep_ep.config", EP_NUM_TOPK_IDX_BITS="12")
    assert (
        result.returncode != 0
        and "EP_NUM_TOPK_IDX_BITS: got '12', allowed 0, 32, 64" in result.stderr
    )


def _python(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


# Elastic.


def elastic_size(tokens, hidden, topk=0, fp8=False, so=1, su=8, nv=None, **more) -> int:
    return config.get_elastic_buffer_size(
        tokens,
        hidden,
        topk,
        fp8,
        num_scaleout_ranks=so,
        num_scaleup_ranks=su,
        num_nvlink_ranks=nv or su,
        **more,
    )


def test_elastic_token_bytes():
    # With 2^21 tokens per rank the size is the bytes of a token for all ranks, in units of 2 MiB.
    tokens = 2 << 20
    assert elastic_size(tokens, 7168, 8, su=1) == 14464 << 21  # BF16 dispatch
    # Combine, which is larger than FP8 dispatch.
    assert elastic_size(tokens, 7168, 8, fp8=True, su=1) == 14400 << 21
    # FP8, 64 ranks.
    assert (
        elastic_size(tokens, 7168, 8, fp8=True, su=64) == 64 * (7168 + 7168 // 32 * 4 + 128) << 21
    )
    assert elastic_size(tokens, 7168, 8, su=8, allow_multiple_reduction=False) == 8 * 14464 << 21
    assert elastic_size(tokens, 7168, 8, su=2, allow_multiple_reduction=False) == 8 * 14400 << 21
    # Without NVLink between ranks, dispatch needs one more send area and combine one more row per
    # rank.
    assert elastic_size(tokens, 7168, 8, su=4, nv=2) == max(5 * 14464, 8 * 14400) << 21
    assert (
        elastic_size(tokens, 7168, 8, su=4, nv=2, allow_multiple_reduction=False)
        == (8 + 4 * 8) * 14400 << 21
    )


@pytest.mark.parametrize("tokens, so, su", [(4096, 2, 4), (1, 512, 2), (300, 16, 16)])
def test_elastic_two_levels(tokens, so, su):
    topk, channels = 8, so * (tokens + 1280)
    dispatch = 14464 * (su * so * tokens + tokens + channels)
    combine = 14400 * (min(su, topk) * so * tokens + min(so, topk) * tokens + channels)
    size = elastic_size(tokens, 7168, topk, so=so, su=su)
    assert size == math.ceil(max(dispatch, combine) / 2**21) * 2**21
    plain = 14400 * (topk * so * tokens + topk * tokens + topk * channels)
    size = elastic_size(tokens, 7168, topk, so=so, su=su, allow_multiple_reduction=False)
    assert size == math.ceil(max(dispatch, plain) / 2**21) * 2**21


def parts_touched(experts: int, topk: int, parts: int) -> Fraction:
    choices = list(itertools.combinations(range(experts), topk))
    return Fraction(
        sum(len({e // (experts // parts) for e in choice}) for choice in choices), len(choices)
    )


def num_sms(
    experts=16, topk=3, so=1, su=4, nv=None, rdma_gbs=0.0, nvlink_gbs=0.0, device=10**9, **more
) -> int:
    return config.get_theoretical_num_sms(
        experts,
        topk,
        rdma_gbs=rdma_gbs,
        nvlink_gbs=nvlink_gbs,
        num_scaleout_ranks=so,
        num_scaleup_ranks=su,
        num_nvlink_ranks=nv or su,
        num_device_sms=device,
        **more,
    )


def even(n: Fraction) -> int:
    return max(4, 2 * math.ceil(math.ceil(Fraction(5, 4) * n) / 2))


def test_sms_of_one_domain():
    rows = parts_touched(16, 3, 4)
    traffic = Fraction(3, 4)
    assert num_sms(nvlink_gbs=400000) == even(400000 / traffic / 50)
    assert num_sms(nvlink_gbs=400000, sm_read_gbs=1) == even(400000 / traffic / rows)
    # With several NVLink domains and no second level, a row is staged once more and fewer peers are
    # reached by NVLink.
    write, traffic = 1 / rows + Fraction(2, 4), Fraction(2, 4) * Fraction(1, 2)
    assert num_sms(nvlink_gbs=400000, nv=2) == even(400000 / traffic * write / 50)


def test_sms_of_two_levels():
    rows, node_rows = parts_touched(16, 3, 4), parts_touched(16, 3, 2)
    write = 1 / rows + node_rows / (rows * 2) + 1
    nvlink, rdma = Fraction(1, 2), node_rows * Fraction(1, 2) / rows
    slow_network = num_sms(so=2, su=2, nvlink_gbs=400000, rdma_gbs=50000)
    assert slow_network == even(50000 / rdma * write / 50)
    assert num_sms(so=2, su=2, nvlink_gbs=4000, rdma_gbs=50000) == even(4000 / nvlink * write / 50)
    read = (1 + node_rows) / rows
    assert num_sms(so=2, su=2, nvlink_gbs=400000, rdma_gbs=50000, sm_read_gbs=1) == even(
        50000 / rdma * read
    )


def test_sms_limits():
    assert num_sms(nvlink_gbs=1) == 4
    assert num_sms(nvlink_gbs=1, prefer_overlap_with_compute=False) == 64
    assert num_sms(nvlink_gbs=1, prefer_overlap_with_compute=False, device=20) == 20
    assert num_sms(nvlink_gbs=400000, device=132) == 132
    assert num_sms(su=1, nvlink_gbs=400, device=132) == 132  # nothing crosses a link
    assert num_sms() == num_sms(so=2, su=2) == 20  # no speed known
    # An unknown network is no reason to divide by zero.
    assert num_sms(so=2, su=2, nvlink_gbs=4000) == num_sms(
        so=2, su=2, nvlink_gbs=4000, rdma_gbs=1e9
    )
    for wrong in (dict(num_scaleout_topk=1), dict(experts=18), dict(topk=0), dict(topk=17)):
        with pytest.raises(AssertionError, match="got"):
            num_sms(**wrong)


def test_queue_pairs():
    assert [
        config.get_theoretical_num_qps(n, num_scaleout_ranks=1, num_allocated_qps=17)
        for n in (4, 24)
    ] == [4, 9]
    assert config.get_theoretical_num_qps(4, num_scaleout_ranks=2, num_allocated_qps=129) == 65
    assert config.get_theoretical_num_qps(24, num_scaleout_ranks=2, num_allocated_qps=129) == 129
