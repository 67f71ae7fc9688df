# SPDX-License-Identifier: Apache-2.0
"""shoal-info --topology: the machine and the NIC plan as text, for this machine and for described
ones."""

import os
import pathlib
import re
import subprocess
import sys

MACHINES = pathlib.Path(__file__).resolve().parents[1] / "data/machines"


def topology(bin_dir, *args, **settings):
    environment = {
        name: value for name, value in os.environ.items() if "NIC" not in name and "HCA" not in name
    } | settings
    return subprocess.run(
        [bin_dir / "shoal-info", "--topology", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )


def plan(text):
    return re.findall(r"PEs on GPU \d+: (.*)", text)


def test_a_dgx(bin_dir):
    result = topology(bin_dir, "--machine", MACHINES / "dgx_h100.xml")
    assert result.returncode == 0, result.stderr
    assert plan(result.stdout) == [f"mlx5_{i}:1 (PIX)" for i in range(8)]
    (row,) = re.findall(r"^ +GPU 4 +(.*-.*)$", result.stdout, re.MULTILINE)
    assert row.split()[:8] == ["SYS"] * 4 + ["-"] + ["NODE"] * 3
    assert "not used: ens6: there are RDMA devices" in result.stdout
    assert "Note" not in result.stdout


def test_the_described_machines_are_what_their_script_writes(tmp_path):
    subprocess.run(
        [sys.executable, MACHINES / "make_machines.py"], cwd=tmp_path, check=True, timeout=60
    )
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert written == {file.name: file.read_text() for file in MACHINES.glob("*.xml")}


def test_settings_decide(bin_dir):
    machine = ("--machine", MACHINES / "hgx_4_nics.xml")
    far = topology(bin_dir, *machine, SHOAL_NIC_LIST="mlx5_3")
    assert (
        plan(far.stdout)
        == ["mlx5_3:1 (SYS)"] * 4 + ["mlx5_3:1 (NODE)"] * 2 + ["mlx5_3:1 (PIX)"] * 2
    )
    assert "Note: GPU 0 (0000:13:00.0) is SYS away from its NIC mlx5_3:1" in far.stdout
    turns = topology(bin_dir, *machine, NVSHMEM_ENABLE_NIC_PE_MAPPING="1")
    assert [line.split(":")[0] for line in plan(turns.stdout)] == [
        f"mlx5_{i % 4}" for i in range(8)
    ]
    wrong = topology(bin_dir, *machine, SHOAL_NIC_LIST="mlx5_O")
    assert wrong.returncode == 1
    assert (
        'no NIC is called "mlx5_O"; did you mean mlx5_0? This host has: mlx5_0:1, mlx5_1:1'
        in wrong.stderr
    )


def test_this_machine_and_none(bin_dir):
    here = topology(bin_dir)
    assert here.returncode == 0, here.stderr
    assert "Machine: this one" in here.stdout and "NIC plan, by distance" in here.stdout
    missing = topology(bin_dir, "--machine", "nowhere.xml")
    assert (
        missing.returncode == 1
        and "nowhere.xml does not describe a machine; allowed: " in missing.stderr
    )
    alone = subprocess.run(
        [bin_dir / "shoal-info", "--machine", "x"], capture_output=True, text=True, timeout=60
    )
    assert alone.returncode != 0
