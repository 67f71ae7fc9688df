#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh BUILD: installs a build into a temporary folder and builds programs against it: with
# find_package(shoal) the README's example, the example in C and one that links shoal::shoal alone;
# the same with pkg-config; and kernels with plain nvcc where that is installed
# (docs/guide/device.md: they need the headers and nothing to link on the device). Also checks that
# every C++ header names the standard it needs, that every header compiles alone or names the one to
# include, and that no Python package is installed.
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
# The same folder each time, for the compile cache.
work=$build/install-check
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
cache=()
! command -v ccache >/dev/null || cache=(ccache)

cmake --install "$build" --prefix "$work/prefix" >/dev/null
mkdir "$work/user"
cp "$source_dir/examples/hello.cpp" "$source_dir/examples/c_moe.c" "$work/user/"
cat > "$work/user/memory.cpp" <<'TEXT'
// Symmetric memory without expert parallelism.
#include <cstdio>
#include <shoal/collective.hpp>
#include <shoal/world.hpp>

int main() {
  shoal::World world = shoal::World::open();
  auto total = world.heap().allocate<long long>(1);
  world.atomic_fetch_add(total.on(0), world.my_pe() + 1);
  shoal::barrier(world.team());
  const long long n = world.n_pes(), sum = world.get_value(total.on(0));
  std::printf("PE %d sees %lld\n", world.my_pe(), sum);
  shoal::barrier(world.team());
  total = {};
  world.close();
  return sum == n * (n + 1) / 2 ? 0 : 1;
}
TEXT
# The minor version before this one, whose names it still has.
version=$(<"$source_dir/VERSION")
IFS=. read -r major minor _ <<<"$version"
wanted=$major.$((minor > 0 ? minor - 1 : 0))
cat > "$work/user/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C CXX)
find_package(shoal $wanted REQUIRED)
add_executable(hello hello.cpp)
target_link_libraries(hello PRIVATE shoal::shoal shoal::ep)
add_executable(memory memory.cpp)
target_link_libraries(memory PRIVATE shoal::shoal)
add_executable(c_moe c_moe.c)
target_link_libraries(c_moe PRIVATE shoal::c)
TEXT
cmake -S "$work/user" -B "$work/user/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/user/build" >/dev/null
for program in hello memory c_moe; do
  "$work/user/build/$program"
  "$work/prefix/bin/shoal-run" -n 2 "$work/user/build/$program"
done

# Completion of options, where bash and zsh look for it.
for program in shoal-run shoal-info shoal-moe; do
  grep -q "^complete .* $program\$" "$work/prefix/share/bash-completion/completions/$program"
  grep -q "^#compdef $program\$" "$work/prefix/share/zsh/site-functions/_$program"
done

# No Python package, no notes for developers.
stray=$(cd "$work/prefix" && find . \( -name '*.py*' -o -name '_core*' -o -name 'README.md' \) -print; [ ! -e "$work/prefix/shoal" ] || echo shoal)
[ -z "$stray" ] || { echo "installed, but not for C++ and C programs: $stray" >&2; exit 1; }

# pkg-config: the libraries, their order and the version.
export PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
rpath="-Wl,-rpath,$work/prefix/lib"
read -ra ep < <(pkg-config --cflags --libs shoal-ep)
read -ra core < <(pkg-config --cflags --libs shoal)
read -ra c < <(pkg-config --cflags --libs shoal-c)
[ "$(pkg-config --modversion shoal shoal-ep shoal-c | sort -u)" = "$version" ]
c++ -std=c++20 "$work/user/hello.cpp" "${ep[@]}" "$rpath" -o "$work/user/pc_hello"
c++ -std=c++20 "$work/user/memory.cpp" "${core[@]}" "$rpath" -o "$work/user/pc_memory"
cc -std=c11 "$work/user/c_moe.c" "${c[@]}" "$rpath" -Wl,-rpath-link,"$work/prefix/lib" -lm -o "$work/user/pc_c_moe"
for program in pc_hello pc_memory pc_c_moe; do "$work/user/$program"; done
mv "$work/prefix" "$work/moved"  # paths are relative to the files
PKG_CONFIG_PATH="$work/moved/lib/pkgconfig" pkg-config --cflags shoal | grep -q "$work/moved"
mv "$work/moved" "$work/prefix"

# Names of the minor version before: each compiles, with a warning that names its replacement.
cat > "$work/user/old_names.cpp" <<'TEXT'
#include <shoal/collective.hpp>
#include <shoal/cuda_collective.hpp>
#include <shoal/detail/stream_steps.hpp>
#include <shoal/world.hpp>

void old_names(shoal::Team& team, void* to, const void* from, const std::size_t* sizes,
               const shoal::cuda::StreamCollectives& on, const shoal::cuda::StreamOperations& stream,
               std::uint64_t* flags) {
  const std::span<const std::size_t> all(sizes, 2);
  team.destroy();
  shoal::TensorView view(static_cast<const float*>(from), shoal::DataType::float32, {2});
  shoal::broadcast(team, to, from, 8, 0);
  shoal::all_gather(team, to, from, 8);
  shoal::all_to_all(team, to, from, 8);
  shoal::all_to_all_v(team, to, all, all, from, all, all);
  on.broadcast(to, from, 8, 0);
  on.all_gather(to, from, 8);
  on.all_to_all(to, from, 8);
  on.all_to_all_v({});
  on.reduce(shoal::ReduceOp::sum, flags, flags, 2);
  on.reduce_scatter(shoal::ReduceOp::sum, flags, flags, 2);
  stream.put_when(flags, 1, {}, from, 8, {}, 1);
  stream.take_when(flags, 1, to, from, 8, {}, 1);
  stream.wait_for_all(team, flags, 1);
  shoal::cuda::Block block;
  stream.put_to_all(team, {&block, 1}, flags, 1);
  shoal::cuda::EntryFetch fetch;
  stream.fetch_entries(fetch);
}
TEXT
c++ -std=c++20 -Wall -Wextra -I "$work/prefix/include" -c "$work/user/old_names.cpp" -o "$work/user/old_names.o" 2>"$work/messages"
lines=$(sed -n 's/.*old_names\.cpp:\([0-9]*\):.*deprecated: use .*/\1/p' "$work/messages" | sort -u | wc -l)
statements=$(sed -n '/^  team\.destroy/,/^}/p' "$work/user/old_names.cpp" | grep -c ';$')
[ "$lines" = "$statements" ] || { echo "of $statements old names $lines give a warning" >&2; cat "$work/messages" >&2; exit 1; }

# Templates of the headers convert without warnings, and take spans of any extent.
cat > "$work/user/templates.cpp" <<'TEXT'
#include <array>
#include <shoal/collective.hpp>
#include <shoal/cuda_collective.hpp>
#include <shoal/ep/group.hpp>
#include <vector>

using shoal::Compare;

template <typename T>
void with(const shoal::World& world, const shoal::cuda::StreamOperations& stream,
          shoal::RemoteSpan<T> remote, std::vector<T>& local) {
  world.put(remote, local);
  world.get(std::span(local), remote);
  world.put_value(remote, local[0]);
  local[0] = world.get_value(remote);
  world.put_strided(remote, 2, local.data(), 1, 1);
  world.get_strided(local.data(), 1, remote, 2, 1);
  local[0] = world.atomic_compare_swap(remote, local[0], local[1]);
  stream.put_value(remote, local[0]);
  stream.put_strided(remote, 2, local.data(), 1, 1);
  stream.get_strided(local.data(), 1, remote, 2, 1);
  stream.atomic(shoal::AtomicOp::add, remote, local[0], local.data());
  world.wait_all(local, Compare::equal, std::array{local[0]});
  if (world.wait_any(std::span(local), Compare::equal, local) == shoal::World::no_index) return;
  if (world.test_some(std::span<T, 2>(local), Compare::equal, local).empty()) return;
}
template void with<int>(const shoal::World&, const shoal::cuda::StreamOperations&,
                        shoal::RemoteSpan<int>, std::vector<int>&);
template void with<unsigned long>(const shoal::World&, const shoal::cuda::StreamOperations&,
                                  shoal::RemoteSpan<unsigned long>, std::vector<unsigned long>&);

void collectives(const shoal::Team& team, const shoal::cuda::StreamCollectives& on,
                 std::span<float, 4> all, std::span<float> some) {
  using shoal::ReduceOp;
  shoal::broadcast(team, all, some, 0);
  shoal::all_gather(team, all, some);
  shoal::all_to_all(team, all, some);
  shoal::reduce(team, ReduceOp::sum, all, some);
  shoal::reduce_scatter(team, ReduceOp::sum, all, some);
  on.broadcast(all, some, 0);
  on.all_gather(all, some);
  on.all_to_all(all, some);
  on.reduce(ReduceOp::sum, all, some);
  on.reduce_scatter(ReduceOp::sum, all, some);
}

shoal::ep::Routing routed(shoal::ep::Group& group, const std::vector<std::int64_t>& shape) {
  const shoal::ConstTensorView topk_idx(nullptr, shoal::DataType::int64, shape);
  if (shape.size() == 1) return group.route(topk_idx);
  if (shape.size() == 3) return group.route(topk_idx, {.sms = 4});
  return group.route(topk_idx, {});
}
TEXT
for compiler in c++ $(command -v clang++ clang++-19 | head -n 1 || true); do
  "$compiler" -std=c++20 -Wall -Wextra -Wconversion -Wsign-conversion -Werror -I "$work/prefix/include" -fsyntax-only "$work/user/templates.cpp"
done

# Headers: each names the standard it needs, and compiles alone.
include=(-I "$work/prefix/include")
strict=(-Wall -Wextra -Werror "${include[@]}")
clang=$(command -v clang++ clang++-19 | head -n 1 || true)
compiles_alone() {  # compiles_alone COMPILER SUFFIX
  echo "#include <$name>" >"$work/alone$2"
  (cd "$work" && "${cache[@]}" $1 "${strict[@]}" -c "alone$2" -o alone.o)
}
asks_for() {  # asks_for HEADER: including $name fails, and the message says what to include
  ! echo "#include <$name>" | cc -std=c11 -x c "${strict[@]}" -fsyntax-only - 2>"$work/messages"
  grep -q "include <$1>" "$work/messages" || { echo "$name does not ask for $1" >&2; exit 1; }
}
while read -r header; do
  name=${header#"$work/prefix/include/"}
  case $name in
    shoal/pe.hpp | shoal/nvshmem/*) ;;  # C++17 suffices for programs with nvshmem.h
    device_host/* | non_abi/*)  # what such programs include by NVSHMEM's paths
      c++ -std=c++17 -x c++ "${strict[@]}" -fsyntax-only - <<<"#include <$name>"
      ;;
    *.hpp | *.cuh)
      ! c++ -std=c++17 -x c++ -E "${include[@]}" "$header" 2>"$work/messages" >/dev/null
      grep -q 'Shoal needs C++20' "$work/messages" || { echo "$name does not ask for C++20" >&2; exit 1; }
      ;;
  esac
  case $name in
    shoal/mpi.hpp | *.cuh) ;;  # need MPI's header or a CUDA compiler
    shoal/shmem/constants.h | shoal/shmem/types.h) ;;  # compiled with shmem.h
    shoal/nvshmem/constants.h | shoal/nvshmem/types.h) ;;  # compiled with nvshmem.h
    shoal/shmem/*.h) asks_for shmem.h ;;
    shoal/nvshmem/*.h) asks_for nvshmem.h ;;
    *.hpp)
      compiles_alone "c++ -std=c++20 -Wconversion -Wsign-conversion" .cpp
      [ -z "$clang" ] || compiles_alone "$clang -std=c++20 -Wconversion -Wsign-conversion" .cpp
      ;;
    *.h) compiles_alone "cc -std=c11" .c ;;
  esac
done < <(find "$work/prefix/include" -type f)

kernels="no CUDA compiler: no kernels"
if command -v nvcc >/dev/null; then
  "${cache[@]}" nvcc -std=c++20 -arch=sm_80 -I "$work/prefix/include" -c "$source_dir/examples/device_ring.cu" -o "$work/user/device_ring.o"
  nvcc -arch=sm_80 "$work/user/device_ring.o" -o "$work/user/device_ring" -L "$work/prefix/lib" -lshoal -Xlinker "-rpath=$work/prefix/lib"
  for file in libnvshmem_host.so.3 libnvshmem_device.ltoir; do
    [ -s "$work/prefix/lib/shoal/nvshmem/$file" ] || { echo "no lib/shoal/nvshmem/$file" >&2; exit 1; }
  done
  status=0
  "$work/user/device_ring" || status=$?
  case $status in
    0) kernels="kernels compiled and ran" ;;
    77) kernels="kernels compiled; there is no GPU to run them" ;;
    *) exit "$status" ;;
  esac
fi
echo "installed package: found, linked and ran; $kernels"
