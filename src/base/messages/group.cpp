// SPDX-License-Identifier: Apache-2.0
// group.cpp: messages of ep::Group.
#include "base/messages/table.hpp"

namespace shoal::messages {

static constexpr Message kGroupRows[] = {
    {500, "The ranks made the group with different options; the message names two PEs that differ.",
     "Pass the same GroupOptions on all ranks."},
    {501, "An array of the gate has another shape, type or memory than the call needs.",
     "Pass contiguous float32 arrays of the shape shown, all on the host or all on one GPU."},
    {502, "The logits have a shape but a null address.", "Pass the address of the logits."},
    {503, "A logit or a bias is NaN or infinite: the router that computed it diverged.",
     "Find the first NaN in the layers before the gate; -infinity is allowed in logits to exclude "
     "an expert."},
    {504,
     "An option of the gate is outside its range; groups must divide the experts, and the kept "
     "groups must have enough experts for top_k.",
     "Pass the values that the model was trained with; the message states the range."},
    {505,
     "Logits in GPU memory need arrays of the caller for the result, so that the call can return "
     "before the GPU has computed it.",
     "Give GateArrays, or use `shoal.torch.gate`."},
    {506, "Logits are on one device and the bias on another.",
     "Copy the bias to the device of the logits."},
    {507, "This build has no CUDA, so the gate runs on the host only.",
     "Build with a CUDA compiler, or copy the logits to the host."},
    {508,
     "The gate on GPUs keeps all logits of a token in one block, which limits the number of experts.",
     "Compute the gate on the host for so many experts."},
    {510, "The group was closed, or its world was, before this call.",
     "Keep the group open until its last call; create a new one in a new world."},
    {511,
     "An earlier operation of the group failed, and its message follows; the ranks are out of "
     "step since.",
     "Cure the quoted failure and create a new group. With `mask_failed`, low-latency operations "
     "continue without the failed rank."},
    {512,
     "A warning: a group was destroyed without `Group::close`, and its queued work failed for the "
     "reason that follows. Its memory stays allocated until the world closes.",
     "Cure the reason; `Group::close` on all ranks throws such failures."},
    {513, "Masks exist only in groups that continue without failed ranks.",
     "Make the group with `mask_failed` = true."},
    {514,
     "A warning: the other ranks did not close the group in time. This is expected on a rank that "
     "leaves early.",
     "Nothing to do; the memory is released with the world."},
    {515,
     "A handle was used after its group was closed. Results of the group stay readable, but no "
     "call takes them any more.",
     "Make the call before `Group::close`."},
    {516, "The rank does not exist, or is this rank, which cannot mask itself.",
     "Pass another rank of the group."},
    {520,
     "Low-latency operations are received in the order of their sends, and an earlier one is still"
     " open.",
     "Call `receive` of the earlier operation first."},
    {521,
     "At most two low-latency operations of a kind can be in flight, because each uses one of two "
     "buffers.",
     "Receive the operation that the message names before the next send."},
    {522, "The pending operation was received before, or the object is empty.",
     "Call `receive` once for each send."},
    {523,
     "Without `defer_receive` the receive is queued at once, and an earlier operation has not been"
     " received.",
     "Receive the earlier operation first."},
    {530, "The handle is empty, was released, or belongs to another group.",
     "Use the handle of a dispatch of this group while the group is open."},
    {531, "The number of ranks or nodes cannot form a group.",
     "Pass at least one rank, and a number of nodes that divides the ranks."},
    {535, "An earlier call was not allowed in a capture, which ended the capture of this stream.",
     "End the capture with `cudaStreamEndCapture`, whose result is an error, and find the first "
     "call that failed."},
    {536,
     "A captured call cannot allocate its result, because the graph writes there in every replay.",
     "Give the memory of the result: `CombineOptions.out` and `out_weights`; for dispatches use "
     "the result where it lies."},
    {537, "A new dispatch waits on the host for its sizes, which a capture cannot do.",
     "Set `DispatchOptions.worst_case_rows`, or use a cached handle."},
    {538, "Threads of the host move the rows of this group, so a graph cannot replay its calls.",
     "Capture the other kernels only, or use kernels between nodes "
     "(`SHOAL_EP_BETWEEN_NODES=kernels`)."},
    {540,
     "The ranks made different calls, or passed different kinds of rows, scales, weights or "
     "handles; the message names two of them.",
     "Make the same calls in the same order with the same kinds of arguments on all ranks."},
    {541, "The dispatch of this handle was refused on the GPU.",
     "Call `Group::synchronize`, which throws the reason."},
    {542,
     "A PE is sent more rows than its result has room for: `worst_case_rows` is too small, or "
     "expert-major rows need one row for each expert of a token.",
     "Raise `DispatchOptions.worst_case_rows`, or `GroupOptions.max_tokens`, on the PE that the "
     "message names."},
    {543,
     "A routing index names an expert that does not exist; the router wrote it, or the array was "
     "not filled yet when the call ran.",
     "Pass 0 to experts - 1, or -1 for none, and order the call after the kernel that computes the"
     " indices. `GroupOptions.none_expert` names another id for none."},
    {544, "An index of `topk_rows` is outside the rows of y or out.",
     "Pass the array that `Group::expand` filled for the same layout."},
    {545, "One token names the same expert twice, whose outputs would be added twice.",
     "Name each expert once per token, and -1 for unused slots."},
    {546,
     "A warning: a replayed graph met a failure, and no call has thrown it yet. Results of replays"
     " are not written any more.",
     "Call `Group::synchronize` after replays; it throws the failure."},
    {550,
     "The network did not take what kernels send: a connection failed, or was busy for longer than"
     " the timeout.",
     "Look at the error of the network that follows, and at the PE that it names; raise the "
     "setting that the message names when the network is only slow."},
    {551,
     "A rank did not arrive at this operation in time: it made fewer calls, is stuck in other "
     "work, or ended. The message names it, and what was expected and seen.",
     "Look at the output of the rank that the message names; `shoal-info --live` shows what each "
     "waits for. Raise the setting that the message names for long first calls."},
    {552,
     "Another PE ended, reported an error or gave the group up, which ends the operation here.",
     "Look at the message of that PE; its failure came first."},
    {553,
     "The program ended the wait of a dispatch or combine (`set_interrupt_check`; Ctrl-C in "
     "Python).",
     "Make a new group: this one takes no further calls, and its memory is released with the "
     "world. After an interrupt of `Group::synchronize` on a GPU it stays usable."},
    {554,
     "The kernel of a dispatch did not report its sizes in time, so the call does not know how many "
     "rows arrive; or a PE failed meanwhile.",
     "Look for another kernel that holds the GPU or waits for one that cannot start, and for the "
     "failure of another PE. `CUDA_DEVICE_MAX_CONNECTIONS=32` gives streams queues of their own; "
     "raise the setting that the message names when the GPU is only busy."},
    {555, "The group or call is larger than the kernels support; the message states the limit.",
     "Use fewer ranks, experts, experts per token or tokens per rank, or shorter rows; groups in "
     "host memory have wider limits."},
    {556, "A warning: the GPU had failed before the group ended.",
     "Look for the first failure of the GPU (`dmesg`, `compute-sanitizer`)."},
    {557, "The group cannot use kernels between nodes; the reason is in the message.",
     "Cure the reason: set `SHOAL_PROXY_SLOTS` above 0, use fewer ranks, or raise "
     "`SHOAL_SYMMETRIC_SIZE`; or set `SHOAL_EP_BETWEEN_NODES=automatic`."},
    {558,
     "A warning: rows of this group take a slower way than the GPUs allow; the message says which "
     "way and why.",
     "Check `shoal-info --gpus` for peer access; set `SHOAL_TRANSPORT_INSIDE=staged` when the way "
     "is intended."},
    {560, "The GPU has no memory left for the result.",
     "Free GPU memory; for a combine, pass memory for the result "
     "(`LowLatencyCombineOptions.out`)."},
    {561,
     "A warning of a group with `mask_failed`: a rank did not arrive in time, is out of reach or "
     "has excluded this one, and is excluded from now on.",
     "`Group::masked` lists the excluded ranks. Raise `SHOAL_TIMEOUT_MS` or "
     "`GroupOptions.timeout` when the rank was only late."},
    {562,
     "A rank called normal mode and another one low-latency mode of the same group, so that each "
     "waits for the other. The group takes no further calls.",
     "Choose the mode on all ranks by a number that they have agreed on, such as the largest "
     "number of tokens; a rank without tokens calls too."},
    {565,
     "The expert output lies outside the symmetric heap and has to be copied, or is encoded "
     "(`CombineOptions.quantize`), and the group has no room for it, or too little.",
     "Make the group with `combine_staging` and a larger `max_tokens`; without `quantize`, write "
     "the expert output to `Dispatched::x` or to a shared buffer."},
    {566, "One result has more rows than the kernels between nodes can number.",
     "Lower `DispatchOptions.worst_case_rows` or `GroupOptions.max_tokens`, or set "
     "`SHOAL_EP_BETWEEN_NODES=staged`."},
    {567, "Results of earlier dispatches still hold the receive area.",
     "Release them (in Python, drop the references), or raise `GroupOptions.live_results`."},
    {568,
     "With `GroupOptions.live_results` 1, a copy of the expert output takes the memory of another "
     "result, which this rank still holds. The other ranks wait for its combine until their timeout.",
     "Release transient results before the next call, and all but one result before a combine; or "
     "raise `GroupOptions.live_results`."},
    {570, "An array has another shape or type than the call needs.",
     "Pass an array of the shape and type that the message states."},
    {571, "The rows of the array are not contiguous.",
     "Pass a contiguous copy (in torch, `tensor.contiguous()`)."},
    {572, "The array has a shape but a null address.", "Pass the address of the array."},
    {573, "Rows in GPU memory are moved 16 bytes at a time and must start at a multiple of that.",
     "Pass an aligned buffer, not a view that starts in the middle of a row."},
    {574,
     "The routing is empty, or the routing or handle belongs to a group of other ranks, experts or "
     "`top_k`, or on another kind of device.",
     "Compute the routing with `route` of the group that dispatches."},
    {575, "The call has more tokens than the group was made for.",
     "Pass fewer tokens, or make the group with a larger `max_tokens` or, for low-latency calls, "
     "`low_latency_max_tokens`."},
    {576, "The number of SMs is outside its range.",
     "Pass a value in the stated range; with 0 Shoal chooses."},
    {577, "A group on the host runs no work on streams.",
     "Leave the stream and events out, or set `SHOAL_HEAP=cuda`."},
    {578, "The group was made for the other mode only.",
     "Set `max_tokens` or `low_latency_max_tokens` in GroupOptions."},
    {579, "The rows are wider than those the group was made for.",
     "Make the group with the widest dtype in `GroupOptions.dtype`."},
    {580, "Rows are moved 16 bytes at a time, and the bytes of a row are not a multiple of that.",
     "Choose `hidden` and dtype so that a row is a multiple of 16 bytes. In the formats of "
     "low latency it is a multiple of the channels that the message states."},
    {581, "The scales have another type or more columns than the group was made for.",
     "Pass float32 or int32 scales, and set `GroupOptions.max_scales`."},
    {582, "Two arguments of the call exclude each other, or one needs the other.",
     "Leave one of them out, or give both, as the message says."},
    {583, "An option is outside its range.", "Pass a value in the range that the message states."},
    {584, "The value is none of the enumeration's, as after a cast of another library's number.",
     "Pass a value of `Quantize`, `ScaleLayout` or `Reduction`."},
    {585, "The handle is empty or of another group.",
     "Pass the handle that `receive` of the dispatch returned."},
    {586, "The combine got other indices or weights than its dispatch.",
     "Pass the same arrays, unchanged, to both; or give no weights to the dispatch."},
    {587, "With `zero_copy`, y must be the memory that the group gave for this combine.",
     "Call `next_combine_buffer` before each combine and write the expert output there."},
    {590,
     "The dispatch did not bring this array: scales or weights were not sent, or a cached handle "
     "repeats no indices.",
     "Leave the array out, or send the input with the dispatch."},
    {591, "The world was closed while an asynchronous operation waited for its turn.",
     "Wait for all futures before closing the world."},
    {592,
     "Rows of an NVFP4 dispatch with a global scale per expert are encoded once for each expert, "
     "which this group cannot do; the reason is in the message.",
     "Pass one global scale for all experts, or dispatch bfloat16 rows and encode what arrives."},
    {595,
     "Another rank sent data that no call can produce: the versions of Shoal differ, or its memory"
     " was overwritten.",
     "Install the same version on all ranks, and look for writes outside of buffers "
     "(`compute-sanitizer`)."},
    {596,
     "The ranks combined different dispatches, passed different `log_fmt`, `quantize` or "
     "`reduction`, or gave weights to the dispatch on some ranks only; the message names two of "
     "them.",
     "Pass the handle of the same dispatch and the same options on all ranks."},
    {597, "The ranks passed different encodings to one low-latency dispatch.",
     "Pass the same `quantize` on all ranks."},
    {600, "Nodes (ranks that reach each other by load and store) have different numbers of ranks.",
     "Make the group on a team with the same number of PEs on each node; `SHOAL_NODE_SIZE` can "
     "split a host."},
    {601, "The array is not in the kind of memory where the group lies.",
     "Pass arrays on the device of the group, or set `SHOAL_HEAP`."},
    {602, "The token or rank does not exist in this routing.",
     "Pass a token and a rank in the stated ranges."},
    {605, "An option of the group is outside its range.",
     "Pass a value in the range that the message states."},
    {606, "The group was made for no mode.",
     "Set `max_tokens`, `low_latency_max_tokens`, or both."},
    {607, "The first experts of the ranks do not ascend from 0 to the number of experts.",
     "Pass the first expert of every rank, or none: experts are then spread evenly over the ranks, "
     "also where the ranks do not divide their number."},
    {608, "One rank could receive more rows than can be numbered.",
     "Lower `max_tokens` or `low_latency_max_tokens`, or use fewer ranks."},
};

const std::span<const Message> kGroup = kGroupRows;

}  // namespace shoal::messages
