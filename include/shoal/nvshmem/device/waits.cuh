// SPDX-License-Identifier: Apache-2.0
// waits.cuh: wait and test inside kernels, by the calling thread, on variables of this PE's heap
// that other PEs write. They have no deadline unless SHOAL_TIMEOUT_MS sets one.
#pragma once

#include <shoal/nvshmem/device/state.cuh>

namespace shoal::nvshmem {

__device__ inline Compare compare_of(int cmp) {
  switch (cmp) {
    case NVSHMEM_CMP_NE:
      return Compare::not_equal;
    case NVSHMEM_CMP_GT:
      return Compare::greater;
    case NVSHMEM_CMP_LE:
      return Compare::less_equal;
    case NVSHMEM_CMP_LT:
      return Compare::less;
    case NVSHMEM_CMP_GE:
      return Compare::greater_equal;
    default:
      return Compare::equal;
  }
}

/// Acquires at system scope.
template <typename T>
__device__ T load_variable(const T* variable) {
  if constexpr (sizeof(T) == 2) {
    const auto value = ptx::ld_relaxed_sys(reinterpret_cast<const std::uint16_t*>(variable));
    ptx::fence_acq_rel_sys();
    return static_cast<T>(value);
  } else {
    return device::detail::load_acquire(variable);
  }
}

/// The variables of a call. `values`: one for all of them, or with `vector` one for each.
template <typename T>
struct Variables {
  const T* variables;
  std::size_t count;
  const int* status;
  Compare compare;
  const T* values;
  bool vector;

  __device__ bool counts(std::size_t i) const { return status == nullptr || status[i] == 0; }
  __device__ T value(std::size_t i) const { return values[vector ? i : 0]; }
  __device__ bool holds(std::size_t i) const {
    return shoal::detail::holds(load_variable(variables + i), compare, value(i));
  }
  /// The first that counts; SIZE_MAX: none does.
  __device__ std::size_t first() const {
    for (std::size_t i = 0; i < count; ++i)
      if (counts(i)) return i;
    return device::kNoIndex;
  }
  __device__ bool all() const {
    for (std::size_t i = 0; i < count; ++i)
      if (counts(i) && !holds(i)) return false;
    return true;
  }
  __device__ std::size_t any() const {
    for (std::size_t i = 0; i < count; ++i)
      if (counts(i) && holds(i)) return i;
    return device::kNoIndex;
  }
  __device__ std::size_t some(std::size_t* indices) const {
    std::size_t found = 0;
    for (std::size_t i = 0; i < count; ++i)
      if (counts(i) && holds(i)) indices[found++] = i;
    return found;
  }

  /// Returns false, and reports the first variable, when a deadline passed.
  template <typename Ready>
  __device__ bool wait(device::FailureKind kind, Ready&& ready) const {
    std::uint64_t waited_ns = 0;
    if (device::detail::poll(world(), waited_ns, ready)) return true;
    const std::size_t i = first();
    using Word = std::conditional_t<sizeof(T) == 2, std::int32_t, T>;
    device::FailureReport report{};
    report.kind = kind;
    report.awaited = -1;
    report.compare = compare;
    report.width = sizeof(Word);
    report.is_signed = std::is_signed_v<T>;
    report.offset = device::detail::heap_offset(world(), variables + i);
    report.expected = static_cast<std::uint64_t>(value(i));
    report.seen = static_cast<std::uint64_t>(load_variable(variables + i));
    report.waited_ns = waited_ns;
    device::detail::record(world(), report);
    return false;
  }
};

template <typename T>
__device__ void wait_all(const Variables<T>& set) {
  set.wait(set.count == 1 ? device::FailureKind::wait_until : device::FailureKind::wait_until_all,
           [&] { return set.all(); });
}
template <typename T>
__device__ std::size_t wait_any(const Variables<T>& set) {
  std::size_t found = device::kNoIndex;
  if (set.first() != device::kNoIndex)
    set.wait(device::FailureKind::wait_until_any,
             [&] { return (found = set.any()) != device::kNoIndex; });
  return found;
}
template <typename T>
__device__ std::size_t wait_some(const Variables<T>& set, std::size_t* indices) {
  std::size_t found = 0;
  if (set.first() != device::kNoIndex)
    set.wait(device::FailureKind::wait_until_any, [&] { return (found = set.some(indices)) != 0; });
  return found;
}

}  // namespace shoal::nvshmem

// RESULT NAME(ivars, nelems, [indices,] status, cmp, value), and with a value per variable.
#define SHOAL_NVSHMEM_SET(TYPE, RESULT, NAME, EXPRESSION)                                    \
  SHOAL_NVSHMEM_DEVICE(                                                                      \
      RESULT, NAME, (TYPE * ivars, size_t nelems, const int* status, int cmp, TYPE value), { \
        const shoal::nvshmem::Variables<TYPE> set{                                           \
            ivars, nelems, status, shoal::nvshmem::compare_of(cmp), &value, false};          \
        return EXPRESSION;                                                                   \
      })                                                                                     \
  SHOAL_NVSHMEM_DEVICE(                                                                      \
      RESULT, NAME##_vector,                                                                 \
      (TYPE * ivars, size_t nelems, const int* status, int cmp, const TYPE* values), {       \
        const shoal::nvshmem::Variables<TYPE> set{                                           \
            ivars, nelems, status, shoal::nvshmem::compare_of(cmp), values, true};           \
        return EXPRESSION;                                                                   \
      })
#define SHOAL_NVSHMEM_SOME(TYPE, NAME, EXPRESSION)                                              \
  SHOAL_NVSHMEM_DEVICE(                                                                         \
      size_t, NAME,                                                                             \
      (TYPE * ivars, size_t nelems, size_t* indices, const int* status, int cmp, TYPE value), { \
        const shoal::nvshmem::Variables<TYPE> set{                                              \
            ivars, nelems, status, shoal::nvshmem::compare_of(cmp), &value, false};             \
        return EXPRESSION;                                                                      \
      })                                                                                        \
  SHOAL_NVSHMEM_DEVICE(                                                                         \
      size_t, NAME##_vector,                                                                    \
      (TYPE * ivars, size_t nelems, size_t* indices, const int* status, int cmp,                \
       const TYPE* values),                                                                     \
      {                                                                                         \
        const shoal::nvshmem::Variables<TYPE> set{                                              \
            ivars, nelems, status, shoal::nvshmem::compare_of(cmp), values, true};              \
        return EXPRESSION;                                                                      \
      })
#define SHOAL_NVSHMEM_TYPE(TYPE, NAME)                                                            \
  SHOAL_NVSHMEM_DEVICE(void, nvshmem_##NAME##_wait_until, (TYPE * ivar, int cmp, TYPE value), {   \
    shoal::nvshmem::wait_all(shoal::nvshmem::Variables<TYPE>{                                     \
        ivar, 1, nullptr, shoal::nvshmem::compare_of(cmp), &value, false});                       \
  })                                                                                              \
  SHOAL_NVSHMEM_DEVICE(int, nvshmem_##NAME##_test, (TYPE * ivar, int cmp, TYPE value), {          \
    return shoal::detail::holds(shoal::nvshmem::load_variable(ivar),                              \
                                shoal::nvshmem::compare_of(cmp), value);                          \
  })                                                                                              \
  SHOAL_NVSHMEM_SET(TYPE, void, nvshmem_##NAME##_wait_until_all, shoal::nvshmem::wait_all(set))   \
  SHOAL_NVSHMEM_SET(TYPE, size_t, nvshmem_##NAME##_wait_until_any, shoal::nvshmem::wait_any(set)) \
  SHOAL_NVSHMEM_SOME(TYPE, nvshmem_##NAME##_wait_until_some,                                      \
                     shoal::nvshmem::wait_some(set, indices))                                     \
  SHOAL_NVSHMEM_SET(TYPE, int, nvshmem_##NAME##_test_all, set.all())                              \
  SHOAL_NVSHMEM_SET(TYPE, size_t, nvshmem_##NAME##_test_any, set.any())                           \
  SHOAL_NVSHMEM_SOME(TYPE, nvshmem_##NAME##_test_some, set.some(indices))
SHOAL_NVSHMEM_WAIT_TYPES(SHOAL_NVSHMEM_TYPE)
#undef SHOAL_NVSHMEM_TYPE
#undef SHOAL_NVSHMEM_SET
#undef SHOAL_NVSHMEM_SOME

/// Returns the value that ended the wait.
SHOAL_NVSHMEM_DEVICE(uint64_t, nvshmem_signal_wait_until,
                     (uint64_t* sig_addr, int cmp, uint64_t value), {
                       nvshmem_uint64_wait_until(sig_addr, cmp, value);
                       return shoal::nvshmem::load_variable(sig_addr);
                     })
