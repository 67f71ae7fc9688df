# SPDX-License-Identifier: Apache-2.0
"""What a job logs about its environment and, at level info, about its world."""

import os
import subprocess


def run(bin_dir, **variables):
    command = [bin_dir / "shoal-run", "-n", "2", bin_dir / "shoal-info", "--init-timeline"]
    environment = {**os.environ, "SHOAL_SYMMETRIC_SIZE": "64M", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_variables_without_effect_are_named_once_and_end_no_job(bin_dir):
    output = run(
        bin_dir,
        NVSHMEM_REMOTE_TRANSPORT="ibgda",
        NVSHMEM_MAX_TEAMS="7",
        NVSHMEM_DEBUG="VERSION",
        NVSHMEM_ENABLE_NIC_PE_MAPPING="true",
        NVSHMEM_QP_DEPTH="1024",
        SHOAL_TIMEOUT="5",
    )
    assert output.count("without effect on Shoal: NVSHMEM_QP_DEPTH") == 1, output
    assert output.count('NVSHMEM_REMOTE_TRANSPORT: "ibgda"') == 1, output
    assert output.count("did you mean SHOAL_TIMEOUT_MS?") == 1, output


def test_info_reports_version_transports_and_sizes(bin_dir):
    output = run(bin_dir, SHOAL_LOG="info")
    assert output.count("Shoal 0.1.0 (protocol ") == 1, output
    assert "2 PEs on 1 host, 2 per node; heap of 67108864 bytes per PE in host memory" in output
    for pe in (0, 1):
        assert f"PE {pe} on node 0: transports self (1), shm (1)" in output, output


def test_nothing_is_logged_otherwise(bin_dir):
    assert "shoal[" not in run(bin_dir, SHOAL_LOG="warn")
