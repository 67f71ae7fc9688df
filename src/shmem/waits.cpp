// SPDX-License-Identifier: Apache-2.0
// Wait and test. The variables are read in the heap's mapping, where other PEs write them.
#include <atomic>

#include "shmem/define.hpp"
#include "team/teams.hpp"

using namespace shoal::shmem;
using shoal::Compare;

namespace {

constexpr std::size_t kNone = SIZE_MAX;

/// The variables of a call, checked.
template <typename T>
class Variables {
 public:
  /// `values` has one element, or one per variable.
  Variables(Program& program, const T* variables, std::size_t count, const int* skip, int compare,
            const T* values, bool one_value)
      : program_(program),
        given_(variables),
        words_(program.in_heap("ivar", variables, bytes_of(count, sizeof(T)))),
        count_(count),
        skip_(skip),
        values_(values),
        step_(one_value ? 0 : 1) {
    shoal::require(compare >= SHMEM_CMP_EQ && compare <= SHMEM_CMP_LE,
                   shoal::Code::invalid_argument,
                   "SHOAL-N838: cmp is {}; allowed: SHMEM_CMP_EQ ({}) to SHMEM_CMP_LE ({})",
                   compare, SHMEM_CMP_EQ, SHMEM_CMP_LE);
    shoal::require(reinterpret_cast<std::uintptr_t>(words_) % sizeof(T) == 0,
                   shoal::Code::invalid_argument,
                   "SHOAL-N820: ivar is {}; allowed: multiples of {}",
                   static_cast<const void*>(variables), sizeof(T));
    compare_ = static_cast<Compare>(compare);
  }

  bool all() const {
    for (std::size_t i = 0; i < count_; ++i)
      if (counts(i) && !holds(i)) return false;
    return true;
  }
  /// The index of one that holds; kNone: none does. Starts behind the last one that this thread
  /// found, so that no variable is skipped forever.
  std::size_t any() const {
    static thread_local std::size_t first = 0;
    for (std::size_t step = 0; step < count_; ++step) {
      const std::size_t i = (first + step) % count_;
      if (!counts(i) || !holds(i)) continue;
      first = i + 1;
      return i;
    }
    return kNone;
  }
  /// Stores the indices of those that hold. Returns their number.
  std::size_t some(std::size_t* indices) const {
    std::size_t found = 0;
    for (std::size_t i = 0; i < count_; ++i)
      if (counts(i) && holds(i)) indices[found++] = i;
    return found;
  }
  bool nothing_counts() const {
    for (std::size_t i = 0; i < count_; ++i)
      if (counts(i)) return false;
    return true;
  }

  template <typename Ready>
  void wait(Ready&& ready) const {
    if (ready()) return;
    shoal::detail::WorldState& core = program_.core;
    core.progress().set(shoal::detail::Activity::waiting, core.teams().world_team().epoch,
                        "wait_until");
    const auto outcome = core.waits().poll(ready, Program::never());
    core.progress().set(shoal::detail::Activity::idle, core.teams().world_team().epoch,
                        "wait_until");
    if (outcome != shoal::detail::WaitOutcome::ready)
      core.waits().throw_failed(
          outcome, "wait",
          fmt::format("waiting for {} variables at {}", count_, static_cast<const void*>(given_)));
  }

 private:
  bool counts(std::size_t i) const { return skip_ == nullptr || skip_[i] == 0; }
  bool holds(std::size_t i) const {
    // atomic_ref takes no const in C++20.
    const T seen = std::atomic_ref<T>(const_cast<T&>(words_[i])).load(std::memory_order_acquire);
    return shoal::detail::holds(seen, compare_, values_[i * step_]);
  }

  Program& program_;
  const T* given_;
  const T* words_;
  std::size_t count_;
  const int* skip_;
  const T* values_;
  std::size_t step_;
  Compare compare_ = Compare::equal;
};

template <typename T>
void wait_all(const char* call, const T* variables, std::size_t count, const int* skip, int compare,
              const T* values, bool one_value) noexcept {
  guarded(call, [&](Program& program) {
    const Variables<T> set(program, variables, count, skip, compare, values, one_value);
    set.wait([&] { return set.all(); });
  });
}

template <typename T>
std::size_t wait_any(const char* call, const T* variables, std::size_t count, const int* skip,
                     int compare, const T* values, bool one_value) noexcept {
  return guarded(call, [&](Program& program) {
    const Variables<T> set(program, variables, count, skip, compare, values, one_value);
    std::size_t found = kNone;
    if (!set.nothing_counts()) set.wait([&] { return (found = set.any()) != kNone; });
    return found;
  });
}

template <typename T>
std::size_t wait_some(const char* call, const T* variables, std::size_t count, std::size_t* indices,
                      const int* skip, int compare, const T* values, bool one_value) noexcept {
  return guarded(call, [&](Program& program) {
    if (count != 0) result("indices", indices);
    const Variables<T> set(program, variables, count, skip, compare, values, one_value);
    std::size_t found = 0;
    if (!set.nothing_counts()) set.wait([&] { return (found = set.some(indices)) != 0; });
    return found;
  });
}

template <typename T>
int test_all(const char* call, const T* variables, std::size_t count, const int* skip, int compare,
             const T* values, bool one_value) noexcept {
  return guarded(call, [&](Program& program) {
    const Variables<T> set(program, variables, count, skip, compare, values, one_value);
    return set.all() ? 1 : 0;
  });
}

template <typename T>
std::size_t test_any(const char* call, const T* variables, std::size_t count, const int* skip,
                     int compare, const T* values, bool one_value) noexcept {
  return guarded(call, [&](Program& program) {
    return Variables<T>(program, variables, count, skip, compare, values, one_value).any();
  });
}

template <typename T>
std::size_t test_some(const char* call, const T* variables, std::size_t count, std::size_t* indices,
                      const int* skip, int compare, const T* values, bool one_value) noexcept {
  return guarded(call, [&](Program& program) {
    if (count != 0) result("indices", indices);
    return Variables<T>(program, variables, count, skip, compare, values, one_value).some(indices);
  });
}

}  // namespace

#define DEFINE_ONE(TYPE, NAME)                                                          \
  SHMEM_DEFINE(void, NAME##_wait_until, (TYPE * ivar, int cmp, TYPE value)) {           \
    wait_all<TYPE>("shmem_" #NAME "_wait_until", ivar, 1, nullptr, cmp, &value, true);  \
  }                                                                                     \
  SHMEM_DEFINE(int, NAME##_test, (TYPE * ivar, int cmp, TYPE value)) {                  \
    return test_all<TYPE>("shmem_" #NAME "_test", ivar, 1, nullptr, cmp, &value, true); \
  }

// A routine with one value for all variables, and its form with a value per variable.
#define DEFINE_SET(RESULT, FUNCTION, TYPE, NAME)                                                \
  SHMEM_DEFINE(RESULT, NAME,                                                                    \
               (TYPE * ivars, size_t nelems, const int* status, int cmp, TYPE value)) {         \
    return FUNCTION<TYPE>("shmem_" #NAME, ivars, nelems, status, cmp, &value, true);            \
  }                                                                                             \
  SHMEM_DEFINE(RESULT, NAME##_vector,                                                           \
               (TYPE * ivars, size_t nelems, const int* status, int cmp, const TYPE* values)) { \
    return FUNCTION<TYPE>("shmem_" #NAME "_vector", ivars, nelems, status, cmp, values, false); \
  }
#define DEFINE_SOME(FUNCTION, TYPE, NAME)                                                        \
  SHMEM_DEFINE(                                                                                  \
      size_t, NAME,                                                                              \
      (TYPE * ivars, size_t nelems, size_t* indices, const int* status, int cmp, TYPE value)) {  \
    return FUNCTION<TYPE>("shmem_" #NAME, ivars, nelems, indices, status, cmp, &value, true);    \
  }                                                                                              \
  SHMEM_DEFINE(size_t, NAME##_vector,                                                            \
               (TYPE * ivars, size_t nelems, size_t* indices, const int* status, int cmp,        \
                const TYPE* values)) {                                                           \
    return FUNCTION<TYPE>("shmem_" #NAME "_vector", ivars, nelems, indices, status, cmp, values, \
                          false);                                                                \
  }
#define DEFINE_TYPE(TYPE, NAME)                             \
  DEFINE_ONE(TYPE, NAME)                                    \
  DEFINE_SET(void, wait_all, TYPE, NAME##_wait_until_all)   \
  DEFINE_SET(size_t, wait_any, TYPE, NAME##_wait_until_any) \
  DEFINE_SOME(wait_some, TYPE, NAME##_wait_until_some)      \
  DEFINE_SET(int, test_all, TYPE, NAME##_test_all)          \
  DEFINE_SET(size_t, test_any, TYPE, NAME##_test_any)       \
  DEFINE_SOME(test_some, TYPE, NAME##_test_some)
SHOAL_SHMEM_AMO_TYPES(DEFINE_TYPE)
DEFINE_ONE(short, short)
DEFINE_ONE(unsigned short, ushort)

SHMEM_DEFINE(uint64_t, signal_wait_until, (uint64_t* sig_addr, int cmp, uint64_t value)) {
  const char* const call = "shmem_signal_wait_until";
  return guarded(call, [&](Program& program) {
    // The value that ended the wait: a later signal may change it again.
    const std::uint64_t* const word = program.in_heap("sig_addr", sig_addr, sizeof *sig_addr);
    const Variables<std::uint64_t> one(program, sig_addr, 1, nullptr, cmp, &value, true);
    std::uint64_t seen = 0;
    one.wait([&] {
      seen = std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
      return shoal::detail::holds(seen, static_cast<Compare>(cmp), value);
    });
    return seen;
  });
}

// Deprecated: waits for another value.
#define DEFINE_WAIT(TYPE, NAME)                                                   \
  SHMEM_DEFINE(void, NAME, (TYPE * ivar, TYPE value)) {                           \
    wait_all<TYPE>("shmem_" #NAME, ivar, 1, nullptr, SHMEM_CMP_NE, &value, true); \
  }
DEFINE_WAIT(long, wait)
DEFINE_WAIT(short, short_wait)
DEFINE_WAIT(int, int_wait)
DEFINE_WAIT(long, long_wait)
DEFINE_WAIT(long long, longlong_wait)
SHMEM_DEFINE(void, wait_until, (long* ivar, int cmp, long value)) {
  wait_all<long>("shmem_wait_until", ivar, 1, nullptr, cmp, &value, true);
}
