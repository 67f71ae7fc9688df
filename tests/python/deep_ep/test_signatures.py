# SPDX-License-Identifier: Apache-2.0
"""The names and signatures of the package, which callers inspect."""

import inspect
from pathlib import Path

import pytest
import torch

import deep_ep
from deep_ep import Buffer, ElasticBuffer
from deep_ep.utils import comm, envs, event, find_pkgs, gate, refs, semantic, testing
from deep_ep.utils import math as ep_math


SIGNATURES = {
    Buffer.__init__: "self group num_nvl_bytes=0 num_rdma_bytes=0 low_latency_mode=False num_qps_per_rank=24 "
    "allow_nvlink_for_low_latency_mode=True allow_mnnvl=False explicitly_destroy=False "
    "enable_shrink=False comm=None use_fabric=False num_topk=0 num_max_tokens_per_rank=0 hidden=0 "
    "num_experts=0 preinitialize=False allow_nvlink_for_normal_mode=True",
    Buffer.get_dispatch_layout: "self topk_idx num_experts previous_event=None async_finish=False "
    "allocate_on_comm_stream=False",
    Buffer.dispatch: "self x handle=None num_tokens_per_rank=None num_tokens_per_rdma_rank=None is_token_in_rank=None "
    "num_tokens_per_expert=None topk_idx=None topk_weights=None expert_alignment=1 "
    "num_worst_tokens=0 config=None "
    "previous_event=None async_finish=False allocate_on_comm_stream=False",
    Buffer.combine: "self x handle topk_weights=None bias=None config=None previous_event=None async_finish=False "
    "allocate_on_comm_stream=False",
    Buffer.internode_dispatch: "self x handle=None num_tokens_per_rank=None num_tokens_per_rdma_rank=None "
    "is_token_in_rank=None num_tokens_per_expert=None topk_idx=None topk_weights=None "
    "expert_alignment=1 config=None "
    "previous_event=None async_finish=False allocate_on_comm_stream=False",
    Buffer.internode_combine: "self x handle topk_weights=None bias=None config=None previous_event=None "
    "async_finish=False allocate_on_comm_stream=False",
    Buffer.low_latency_dispatch: "self x topk_idx num_max_dispatch_tokens_per_rank num_experts "
    "cumulative_local_expert_recv_stats=None dispatch_wait_recv_cost_stats=None use_fp8=True "
    "round_scale=False "
    "use_ue8m0=False async_finish=False return_recv_hook=False use_nvfp4=False x_global_scale=None "
    "topk_weights=None use_ue8m0_for_sf=False",
    Buffer.low_latency_combine: "self x topk_idx topk_weights handle use_logfmt=False zero_copy=False "
    "async_finish=False return_recv_hook=False out=None combine_wait_recv_cost_stats=None "
    "overlap=False packed_recv_count=None comp_signal=None block_m=64 threshold=0 num_sms=0 "
    "src_signals=None src_signal_expect_value=0",
    Buffer.get_local_buffer_tensor: "self dtype size=None offset=0 use_rdma_buffer=False",
    Buffer.low_latency_update_mask_buffer: "self rank_to_mask mask=False",
    Buffer.low_latency_query_mask_buffer: "self mask_status",
    Buffer.low_latency_clean_mask_buffer: "self",
    Buffer.get_next_low_latency_combine_buffer: "self handle",
    Buffer.clean_low_latency_buffer: "self num_max_dispatch_tokens_per_rank hidden num_experts",
    Buffer.get_low_latency_rdma_size_hint: "num_max_dispatch_tokens_per_rank hidden num_ranks num_experts",
    Buffer.get_dispatch_config: "num_ranks",
    Buffer.get_combine_config: "num_ranks",
    Buffer.set_num_sms: "new_num_sms",
    Buffer.is_sm90_compiled: "",
    Buffer.disable_ll_layered: "",
    Buffer.capture: "",
    Buffer.get_comm_stream: "self",
    Buffer.destroy: "self",
    ElasticBuffer.__init__: "self group num_bytes=None num_cpu_bytes=0 num_max_tokens_per_rank=0 hidden=0 num_topk=0 "
    "use_fp8_dispatch=False deterministic=False allow_hybrid_mode=True "
    "allow_multiple_reduction=True "
    "prefer_overlap_with_compute=True sl_idx=3 num_allocated_qps=0 num_cpu_timeout_secs=300 "
    "num_gpu_timeout_secs=100 "
    "explicitly_destroy=False num_experts=0 preinitialize=False",
    Buffer.warmup: "self num_max_tokens_per_rank=0 hidden=0 num_experts=0 num_topk=0 background=False",
    ElasticBuffer.warmup: "self num_experts num_topk=0 num_max_tokens_per_rank=0 hidden=0 do_expand=False "
    "background=False",
    ElasticBuffer.dispatch: "self x topk_idx=None topk_weights=None cumulative_local_expert_recv_stats=None "
    "num_experts=None num_max_tokens_per_rank=None expert_alignment=None num_sms=0 num_qps=0 "
    "previous_event=None "
    "previous_event_before_epilogue=None async_with_compute_stream=False "
    "allocate_on_comm_stream=False handle=None "
    "do_handle_copy=True do_cpu_sync=None do_expand=False do_zero_padding=False "
    "use_tma_aligned_col_major_sf=False",
    ElasticBuffer.combine: "self x handle topk_weights=None bias=None num_sms=0 num_qps=0 previous_event=None "
    "previous_event_before_epilogue=None async_with_compute_stream=False "
    "allocate_on_comm_stream=False",
    ElasticBuffer.barrier: "self use_comm_stream=True with_cpu_sync=False sequential=True",
    ElasticBuffer.destroy: "self",
    ElasticBuffer.capture: "",
    ElasticBuffer.get_comm_stream: "self",
    ElasticBuffer.get_buffer_size_hint: "group num_max_tokens_per_rank hidden num_topk=0 use_fp8_dispatch=False "
    "allow_hybrid_mode=True allow_multiple_reduction=True",
    ElasticBuffer.get_engram_storage_size_hint: "num_entries hidden num_max_tokens_per_rank dtype=torch.bfloat16",
    ElasticBuffer.get_pp_buffer_size_hint: "num_max_tensor_bytes num_max_inflight_tensors",
    ElasticBuffer.get_agrs_num_max_session_bytes: "group shapes dtype",
    ElasticBuffer.get_agrs_buffer_size_hint: "group num_max_session_bytes",
    ElasticBuffer.get_physical_domain_size: "self",
    ElasticBuffer.get_logical_domain_size: "self",
    ElasticBuffer.get_theoretical_num_sms: "self num_experts num_topk num_scaleout_topk=0 rdma_gbs=0 nvlink_gbs=0 "
    "sm_read_gbs=200 sm_write_gbs=50",
    ElasticBuffer.get_theoretical_num_qps: "self num_sms",
    ElasticBuffer.pp_set_config: "self num_max_tensor_bytes num_max_inflight_tensors",
    ElasticBuffer.pp_send: "self t dst_rank_idx num_sms=0",
    ElasticBuffer.pp_recv: "self t src_rank_idx num_sms=0",
    ElasticBuffer.agrs_set_config: "self num_max_session_bytes num_max_all_gathers_per_session",
    ElasticBuffer.create_agrs_session: "self",
    ElasticBuffer.destroy_agrs_session: "self",
    ElasticBuffer.agrs_new_session: "self enabled=True",
    ElasticBuffer.agrs_get_inplace_tensor: "self shapes dtype",
    ElasticBuffer.all_gather: "self t",
    ElasticBuffer.engram_write: "self storage sf=None",
    ElasticBuffer.engram_fetch: "self indices num_qps=0 use_tma_aligned_col_major_sf=False",
    deep_ep.EPHandle.deterministic_sort: "self do_cpu_sync is_cached_dispatch recv_x recv_sf recv_topk_idx "
    "recv_topk_weights channel_linked_list",
    deep_ep.EPHandle.__init__: "self do_expand num_experts expert_alignment num_max_tokens_per_rank num_sms topk_idx "
    "num_recv_tokens num_expanded_tokens num_recv_tokens_per_expert_list "
    "psum_num_recv_tokens_per_scaleup_rank "
    "psum_num_recv_tokens_per_expert num_unaligned_recv_tokens_per_expert recv_src_metadata "
    "dst_buffer_slot_idx "
    "token_metadata_at_forward channel_linked_list",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_signatures(function):
    """Names, order and defaults: callers pass arguments by position and by name, and inspect
    signatures."""
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default}"
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        shown.append(parameter.name + default)
    assert " ".join(shown) == SIGNATURES[function]


# Arguments on DeepEP's main branch. A function here may have more arguments after them.
UTILS = {
    comm.get_nccl_comm_handle: "group force_new_comm",
    envs.init_seed: "global_seed",
    envs.dist_print: "s once_in_node",
    envs.init_dist: "local_rank num_local_ranks seed",
    envs.get_physical_domain_size: "group",
    envs.get_logical_domain_size: "group allow_hybrid_mode",
    envs.check_nvlink_connections: "group",
    envs.get_nvlink_gbs: "factor",
    envs.check_fast_rdma_atomic_support: "nic_name",
    envs.get_rdma_gbs: "nic_name",
    event.EventOverlap.__init__: "self event extra_tensors",
    event.EventOverlap.current_stream_wait: "self release_handle",
    event.EventOverlap.register_hook_after_wait: "self hook_after_wait",
    event.EventOverlap.__call__: "self release_handle",
    event.EventOverlap.__exit__: "self exc_type exc_val exc_tb",
    find_pkgs.find_pkg_root: "name lib_name optional",
    find_pkgs.find_nccl_root: "optional",
    find_pkgs.find_nvshmem_root: "optional",
    gate.generate_topk_idx: "rank_count num_tokens num_experts num_ranks num_topk",
    gate.generate_rank_count: "num_tokens num_experts num_ranks num_topk ratio",
    gate.get_precise_unbalanced_scores: "num_tokens num_experts num_ranks num_topk ratio",
    gate.get_scores_by_factor: "num_tokens num_experts num_ranks factor",
    gate.map_unbalanced_ratio_to_factor: "num_tokens num_experts num_ranks num_topk ratio",
    gate.get_random_unbalanced_scores: "num_tokens num_experts num_ranks num_topk ratio",
    gate.get_unbalanced_scores: "num_tokens num_experts num_ranks num_topk ratio precise",
    ep_math.calc_diff: "x y",
    ep_math.safe_div: "a b",
    ep_math.ceil_div: "x y",
    ep_math.align: "x y",
    ep_math.per_token_cast_to_fp8: "x",
    ep_math.per_token_cast_back: "x_fp8 x_scales",
    ep_math.inplace_unique: "x num_slots",
    ep_math.create_grouped_scores: "scores group_idx num_groups",
    ep_math.hash_tensor: "t",
    ep_math.hash_tensors: "tensors",
    ep_math.count_bytes: "tensors",
    refs.dispatch: "x topk_idx topk_weights num_max_tokens_per_rank num_experts",
    refs.generate_pre_combine_data: "src_token_global_idx num_max_tokens_per_rank num_topk hidden",
    refs.ordered_accumulate: "data initial_value",
    refs.combine: "y topk_idx num_scaleout_ranks num_scaleup_ranks num_experts bias "
    "reduce_in_local reduce_in_scaleup",
    semantic.value_or: "value default",
    semantic.weak_lru: "maxsize typed",
    testing.flush_l2_cache: "enabled",
    testing.bench: "fn num_warmups num_tests post_fn flush_l2",
    testing.bench_kineto: "fn kernel_names num_tests suppress_kineto_output trace_path flush_l2 "
    "barrier_comm_profiling num_kernels_per_period barrier",
}


@pytest.mark.parametrize("function", UTILS, ids=lambda function: function.__qualname__)
def test_names_of_arguments_of_utils(function):
    names = UTILS[function].split()
    assert list(inspect.signature(function).parameters)[: len(names)] == names


def test_package_is_typed():
    assert (Path(deep_ep.__file__).parent / "py.typed").is_file()


def test_exported_names():
    names = "Buffer ElasticBuffer EPHandle EventOverlap EventHandle Config topk_idx_t get_physical_domain_size"
    names += (
        " HybridEPBuffer get_logical_domain_size find_cuda_home check_nccl_so init_jit __version__"
    )
    for name in names.split():
        assert hasattr(deep_ep, name), name
    assert (
        deep_ep.topk_idx_t is torch.int64 and Buffer.num_sms % 2 == 0 and Buffer.is_sm90_compiled()
    )


@pytest.mark.parametrize("buffer", [Buffer, ElasticBuffer])
def test_messages_name_the_class_of_the_user(buffer):
    """Signatures of every method, also of inherited ones."""
    methods = dict(inspect.getmembers(buffer, inspect.isfunction))
    own = {name: one for name, one in methods.items() if one.__module__.startswith("deep_ep.")}
    assert "warmup" in own
    for name, method in own.items():
        assert method.__qualname__ == f"{buffer.__name__}.{name}"
    with pytest.raises(TypeError, match=rf"{buffer.__name__}\.combine\(\) missing"):
        buffer.combine(None)


def test_messages_about_inherited_methods():
    with pytest.raises(TypeError, match=r"Buffer\.warmup_low_latency\(\) missing"):
        Buffer.warmup_low_latency(None)
    with pytest.raises(TypeError, match=r"^ElasticBuffer\.warmup\(\) missing"):
        ElasticBuffer.warmup(None)
