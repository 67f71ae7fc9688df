# SPDX-License-Identifier: Apache-2.0
"""Log of a job about its environment and, at level info, about its world."""

import json
import os
import pathlib
import re
import subprocess

import pytest


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
        NVSHMEM_SRQ_DEPTH="1024",
        NVSHMEM_DISABLE_NVLS="1",
        NVSHMEM_IBGDA_QP_DEPTH="1024",
        EP_BUFFER_DEBUG="1",
        SHOAL_TIMEOUT="5",
    )
    assert output.count("without effect on Shoal: NVSHMEM_SRQ_DEPTH\n") == 1, output
    assert output.count("did you mean NVSHMEM_QP_DEPTH?") == 1, output
    assert output.count("did you mean SHOAL_TIMEOUT_MS?") == 1, output
    # Variables of DeepEP belong to the worlds of deep_ep, and to the doctor.
    assert "EP_BUFFER_DEBUG" not in output


# Two nodes, whose network is not TCP without a word where the user has named RDMA.
WITHOUT_NIC = {"SHOAL_NODE_SIZE": "1", "SHOAL_VERBS_LIBRARY": "libibverbs-is-not-here.so"}


def test_a_named_network_that_does_not_start_is_a_warning(bin_dir):
    output = run(bin_dir, NVSHMEM_REMOTE_TRANSPORT="ibrc", **WITHOUT_NIC)
    warning = [line for line in output.splitlines() if "transport verbs is not used" in line]
    assert len(warning) == 1, output
    assert "libibverbs-is-not-here.so" in warning[0] and "takes its place" in warning[0], warning
    assert "SHOAL_TRANSPORT_BETWEEN=verbs,network" in warning[0], warning


def test_the_log_says_which_network_was_chosen_and_why(bin_dir):
    output = run(bin_dir, SHOAL_LOG="info", SHOAL_TRANSPORT_BETWEEN="network", **WITHOUT_NIC)
    assert "networks are tried in the order ofi, ucx, verbs: PE 0 has no active RDMA port" in output
    assert re.search("transport (ofi|ucx) carries data", output), output


def test_rdma_ports_come_first(bin_dir):
    folder = bin_dir.parent / "lib" / "emulator"
    if not (folder / "libibverbs.so.1").exists():
        pytest.skip("the emulated libibverbs is not built: <infiniband/verbs.h> is not installed")
    nic = {"SHOAL_NODE_SIZE": "1", "SHOAL_VERBS_LIBRARY": str(folder / "libibverbs.so.1")}
    output = run(bin_dir, SHOAL_LOG="info", SHOAL_TRANSPORT_BETWEEN="network", **nic)
    assert "networks are tried in the order verbs, ucx, ofi: every PE" in output, output
    assert "transport verbs carries data" in output, output
    output = run(bin_dir, SHOAL_TRANSPORT_BETWEEN="network", SHOAL_VERBS_GID_INDEX="255", **nic)
    assert "transport verbs is not used" in output and "SHOAL_VERBS_GID_INDEX" in output, output


def test_no_p2p_is_the_network_inside_a_node(bin_dir):
    output = run(bin_dir, SHOAL_LOG="info", NVSHMEM_DISABLE_P2P="1", **WITHOUT_NIC)
    assert re.search(r"PE 0 on node 0: transports self \(1\), (shm|ofi|ucx) \(1\)", output), output
    output = run(
        bin_dir,
        SHOAL_LOG="info",
        NVSHMEM_DISABLE_P2P="1",
        SHOAL_VERBS_LIBRARY=WITHOUT_NIC["SHOAL_VERBS_LIBRARY"],
    )
    assert re.search(r"PE 0 on node 0: transports self \(1\), (ofi|ucx) \(1\)", output), output


def run_doctor(bin_dir, *options, **variables):
    command = [bin_dir / "shoal-info", "--doctor", "--json", *options]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    return {finding["name"]: finding for finding in json.loads(done.stdout)["doctor"]}


TESTS = pathlib.Path(__file__).resolve().parents[1]
SYSTEMS = TESTS / "data" / "doctor"
VERSION = (TESTS.parent / "VERSION").read_text().strip()


def test_the_doctor_names_variables_with_a_described_system_too(bin_dir):
    for options in ([], ["--root", SYSTEMS / "laptop"]):
        found = run_doctor(
            bin_dir,
            *options,
            NVSHMEM_IB_ENABLE_IBGDA="1",
            NUM_MAX_RDMA_PEERS="20",
            EP_JIT_DEBUG="1",
        )["environment"]
        assert found["state"] == "warning"
        assert "IBGDA is used as SHOAL_VERBS_INTERFACE, SHOAL_GDA" in found["found"], found
        assert "NUM_MAX_RDMA_PEERS is ignored: Shoal's groups" in found["found"], found
        assert "EP_JIT_DEBUG is ignored: Shoal compiles nothing" in found["found"], found


def test_the_doctor_examines_a_group(bin_dir):
    root = ["--root", SYSTEMS / "dgx"]
    assert "assumed group" in run_doctor(bin_dir, *root)["group heap"]["found"]
    group = run_doctor(bin_dir, *root, "--ep", "4096,7168,8,256,16", SHOAL_VERBS_DEPTH="16")
    for name, state in {"heap": "fault", "memory": "ok", "queue depth": "warning"}.items():
        finding = group[f"group {name}"]
        assert finding["state"] == state, finding
        assert "group of 4096 tokens, 7168 channels, top 8 of 256 experts" in finding["found"]


def test_programs_of_nvshmem_print_their_version_and_variables(bin_dir):
    program = bin_dir / "nvshmem_library"
    if not program.exists():
        pytest.skip("no programs of nvshmem.h here: the build has no CUDA, or no tests")
    variables = {
        "SHOAL_HEAP": "host",
        "NVSHMEM_SYMMETRIC_SIZE": "64M",
        "NVSHMEM_VERSION": "1",
        "NVSHMEM_INFO": "yes",
    }
    done = subprocess.run(
        [bin_dir / "shoal-run", "-n", "4", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert len(re.findall(r"Shoal, NVSHMEM \d+\.\d+\.\d+", output)) == 1, output
    assert len(re.findall(r"NVSHMEM_SYMMETRIC_SIZE +SHOAL_SYMMETRIC_SIZE=64M", output)) == 1, output
    assert "without effect" not in output, output


def test_nvshmem_info_is_shoal_info(bin_dir):
    done = subprocess.run(
        [bin_dir / "nvshmem-info", "-b", "-e", "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert {"build", "settings"} <= json.loads(done.stdout).keys()


def test_info_reports_version_transports_and_sizes(bin_dir):
    output = run(bin_dir, SHOAL_LOG="info")
    assert output.count(f"Shoal {VERSION} (protocol ") == 1, output
    assert "2 PEs on 1 host, 2 per node; heap of 67108864 bytes per PE in host memory" in output
    for pe in (0, 1):
        assert f"PE {pe} on node 0: transports self (1), shm (1)" in output, output


def test_nothing_is_logged_otherwise(bin_dir):
    assert "shoal[" not in run(bin_dir, SHOAL_LOG="warn")
