#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh ENVIRONMENT: checks what `pip install . ./python` installed into a Python environment:
# its programs, its network transports, its launcher plug-ins and its emulated NIC, without
# environment variables that say where they are; and the distribution deep_ep.
set -euo pipefail
environment=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
unset PYTHONPATH LD_LIBRARY_PATH SHOAL_PLUGIN_DIR SHOAL_BIN_DIR
export PATH="$environment/bin:$PATH"
hash -r

cat > ring.py <<'PYTHON'
"""Each PE sends its number to the next one, over the transport that argv names."""

import sys

import numpy as np

import shoal

kind, pes = sys.argv[1], int(sys.argv[2])
with shoal.World.open({"symmetric_size": "64M"}) as world:
    me, n = world.my_pe, world.n_pes
    assert n == pes, f"{n} PEs in place of {pes}"
    box = world.zeros((1,), "int64")
    world.put(box.on((me + 1) % n), np.array([me]))
    shoal.barrier(world.team)
    assert box.local.numpy()[0] == (me - 1) % n
    used = world.describe_transport((me + 1) % n)
    assert used.startswith(kind), used
    group = shoal.ep.Group(world.team, hidden=64, top_k=1, experts=n, max_tokens=8, dtype="float32")
    x = np.full((3, 64), me, np.float32)
    received = group.dispatch(x, group.route(np.full((3, 1), (me + 1) % n)))
    assert (np.asarray(received.x) == (me - 1) % n).all()
    del received
    group.close()
    print(f"PE {me}: passed")
PYTHON

expect_two() {  # expect_two COMMAND...: both PEs report that they passed
  local output
  output=$("$@" 2>&1) || { echo "$*: $output" >&2; return 1; }
  [ "$(grep -o 'PE [01]: passed' <<<"$output" | sort -u | wc -l)" = 2 ] || { echo "$*: $output" >&2; return 1; }
}

package=$(python -c 'import pathlib, shoal; print(pathlib.Path(shoal.__file__).parent)')
case $package in "$environment"/*) ;; *) echo "shoal is $package, not of $environment" >&2; exit 1 ;; esac
[ -z "$(find "$package" -type l)" ] || { echo "symbolic links in the package" >&2; exit 1; }
python -c 'import shoal; print("shoal", shoal.__version__, shoal.run_threads(2, lambda world: world.my_pe, {"symmetric_size": "64M"}))'

python - <<'PYTHON'
"""The distribution deep_ep; importing it needs torch, which is not here."""
import importlib.metadata
import importlib.util
import pathlib

files = importlib.metadata.files("deep_ep")
assert importlib.metadata.version("deep_ep") == "2.1.0+shoal"
package = pathlib.Path(importlib.util.find_spec("deep_ep").origin).parent
assert {file.locate() for file in files} >= set(package.rglob("*.py")) | {package / "py.typed"}
shoal = {str(file) for file in importlib.metadata.files("shoal")}
assert not {str(file) for file in files} & shoal, "both distributions own a file"
PYTHON

for program in shoal-run shoal-info nvshmem-info; do
  [ "$(command -v "$program")" = "$environment/bin/$program" ] || { echo "$program is not on PATH" >&2; exit 1; }
  "$program" --help >/dev/null
done
info=$(shoal-info)
modules=(ofi ucx verbs)
for module in "${modules[@]}"; do
  [ -e "$package/lib/shoal/libshoal_transport_$module.so" ] || { echo "no transport $module" >&2; exit 1; }
  grep -q "$module" <<<"$info" || { echo "shoal-info does not list $module: $info" >&2; exit 1; }
done
for launcher in pmi pmi2 mpi; do
  [ -e "$package/lib/shoal/libshoal_bootstrap_$launcher.so" ] || { echo "no bootstrap $launcher" >&2; exit 1; }
done
if command -v nvcc >/dev/null; then
  [ -s "$package/lib/shoal/nvshmem/libnvshmem_device.ltoir" ] || { echo "no NVSHMEM device library" >&2; exit 1; }
  python -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1]).nvshmemx_cumodule_init' "$package/lib/libshoal_nvshmem.so.0"
fi

expect_two shoal-run -n 2 python ring.py shm 2
for module in ofi ucx; do
  SHOAL_TRANSPORT_INSIDE=$module expect_two shoal-run -n 2 python ring.py "$module" 2
done
emulator=$package/lib/emulator
export SHOAL_EMULATOR_DIRECTORY=$work
for interface in verbs devx; do  # without symbolic links: one file a library
  [ "$(ls "$emulator")" = $'libibverbs.so.1\nlibmlx5.so.1' ] || { ls -l "$emulator" >&2; exit 1; }
  SHOAL_TRANSPORT_INSIDE=verbs SHOAL_VERBS_INTERFACE=$interface SHOAL_VERBS_LIBRARY=$emulator/libibverbs.so.1 \
    expect_two shoal-run -n 2 python ring.py verbs 2
done
if command -v ibv_devinfo >/dev/null; then
  LD_LIBRARY_PATH=$emulator ibv_devinfo | grep -q 'hca_id:.mlx5_0' || { echo "no emulated device" >&2; exit 1; }
fi
if command -v mpirun >/dev/null; then
  mpirun=(mpirun --oversubscribe --allow-run-as-root -n 2)
  OMPI_MCA_btl=self,vader expect_two "${mpirun[@]}" python ring.py shm 2
  OMPI_MCA_btl=self,vader SHOAL_TRANSPORT_INSIDE=ofi expect_two "${mpirun[@]}" python ring.py ofi 2
  OMPI_MCA_btl=self,vader SHOAL_BOOTSTRAP=mpi SHOAL_TRANSPORT_INSIDE=ofi expect_two "${mpirun[@]}" python ring.py ofi 2
  echo "wheel: programs, transports, launchers and the emulated NIC work; mpirun over ofi too"
else
  echo "wheel: programs, transports and the emulated NIC work; there is no mpirun"
fi
