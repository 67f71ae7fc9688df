#!/usr/bin/env bash
# check.sh BUILD: installs a build into a temporary folder and builds the README's example against it with find_package(shoal).
set -euo pipefail
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >/dev/null
mkdir "$work/user"
cp "$source_dir/examples/hello.cpp" "$work/user/"
cat > "$work/user/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(shoal 0.1 REQUIRED)
add_executable(hello hello.cpp)
target_link_libraries(hello PRIVATE shoal::shoal shoal::ep)
TEXT
cmake -S "$work/user" -B "$work/user/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/user/build" >/dev/null
"$work/user/build/hello"
"$work/prefix/bin/shoal-run" -n 2 "$work/user/build/hello"
echo "installed package: found, linked and ran"
