# SPDX-License-Identifier: Apache-2.0
"""shoal-info as a user runs it: sections, JSON, pictures, worlds, the doctor."""

import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MACHINES = ROOT / "tests/data/machines"
SYSTEMS = ROOT / "tests/data/doctor"


def info(bin_dir, *args, pes=None, **settings):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SHOAL_", "NVSHMEM_"))
    }
    environment |= {"SHOAL_SYMMETRIC_SIZE": "16M"} | settings
    command = [] if pes is None else [bin_dir / "shoal-run", "--no-label", "-n", str(pes)]
    return subprocess.run(
        [str(part) for part in [*command, bin_dir / "shoal-info", *args]],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )


def document(bin_dir, *args, **more):
    result = info(bin_dir, "--json", *args, **more)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_all_sections_as_text(bin_dir):
    result = info(bin_dir, "-a")
    assert result.returncode == 0, result.stderr
    for title in [
        "Build\n",
        "Settings\n",
        "GPUs: ",
        "Machine: this one",
        "NIC plan, ",
        "Connectivity of 1 PE",
        "RDMA NICs of 1 PE",
        "Start of a world of 1 PE",
    ]:
        assert title in result.stdout, title
    assert "shoal-run -n 4" in result.stdout, "how to see a map of several"


def test_all_sections_as_one_document(bin_dir):
    every = document(bin_dir, "-a")
    assert set(every) == {
        "shoal",
        "build",
        "settings",
        "gpus",
        "topology",
        "connectivity",
        "nics",
        "init_timeline",
    }
    assert every["build"]["version"] == every["shoal"]
    assert [module["name"] for module in every["build"]["networks"]] == ["ofi", "ucx", "verbs"]
    for module in every["build"]["networks"]:
        assert bool(module["library"]) != bool(module["missing"]), (
            "either the library that it uses, or why it is not available"
        )
    (size,) = [row for row in every["settings"] if row["name"] == "SHOAL_SYMMETRIC_SIZE"]
    assert (size["value"], size["origin"]) == ("16M", "environment")
    assert all(
        row["origin"] == "default"
        for row in every["settings"]
        if row["name"] != "SHOAL_SYMMETRIC_SIZE"
    )


def test_the_commit_is_that_of_the_clone(bin_dir):
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    shown = document(bin_dir, "--build")["build"]["commit"]
    assert shown == "unknown" or commit.returncode != 0 or shown.isalnum()


def test_connectivity_of_emulated_nodes(bin_dir):
    found = document(bin_dir, "--connectivity", pes=4, SHOAL_NODE_SIZE="2")["connectivity"]
    assert [pe["node"] for pe in found["pes"]] == [0, 0, 1, 1]
    assert len(found["pairs"]) == 10
    for pair in found["pairs"]:
        assert pair["chosen"] == ("self" if pair["a"] == pair["b"] else "shm")
        assert {transport["name"] for transport in pair["transports"]} == {
            "self",
            "shm",
            "ofi",
            "ucx",
            "verbs",
        }
        assert all(transport["why"] for transport in pair["transports"])
    (far,) = [pair for pair in found["pairs"] if (pair["a"], pair["b"]) == (1, 2)]
    assert "load-store" not in [t["capabilities"] for t in far["transports"] if t["chosen"]][0]


@pytest.mark.parametrize("interface", ["verbs", "devx"])
def test_nics_and_queue_pairs(bin_dir, tmp_path, interface):
    library = bin_dir.parent / "lib" / "emulator" / "libibverbs.so.1"
    if not library.exists():
        pytest.skip("the emulated libibverbs is not built: <infiniband/verbs.h> is not installed")
    settings = {
        "SHOAL_VERBS_LIBRARY": str(library),
        "SHOAL_EMULATOR_DIRECTORY": str(tmp_path),
        "SHOAL_VERBS_INTERFACE": interface,
        "SHOAL_EMULATOR_MAX_QP": "77",
        "SHOAL_EMULATOR_ATOMICS": "nic",
        "SHOAL_TRANSPORT_INSIDE": "verbs",
        "SHOAL_VERBS_QUEUE_PAIRS": "2",
        "SHOAL_VERBS_DEPTH": "400",
    }
    pes = document(bin_dir, "--nics", pes=3, **settings)["nics"]["pes"]
    assert len(pes) == 3
    for number, pe in enumerate(pes):
        (nic,) = pe["nics"]
        assert nic["port"] == "mlx5_0:1"
        assert nic["facts"]["state"] == "active"
        assert nic["facts"]["atomics"] == "among operations of this NIC"
        assert nic["limits"]["queue pairs"] == 77
        pairs = nic["queue_pairs"]
        others = [(number + 1 + i) % 3 for i in range(2)]
        assert [pair["peer"] for pair in pairs] == [*others, *others], "in the order of creation"
        assert len({pair["number"] for pair in pairs}) == 4
        assert {(pair["state"], pair["depth"]) for pair in pairs} == {("RTS", 400)}
    text = info(bin_dir, "--nics", pes=2, **settings).stdout
    assert "RDMA NICs of 2 PEs" in text
    assert "to PE 1  RTS  0 of 400 requests in flight" in text


def test_without_nics_the_reason_is_shown(bin_dir):
    found = document(bin_dir, "--nics", SHOAL_VERBS_LIBRARY="libnothing.so")["nics"]["pes"]
    assert "libnothing.so" in found[0]["missing"]


def test_an_excluded_transport_is_reported(bin_dir):
    found = document(bin_dir, "--connectivity", pes=2, SHOAL_TRANSPORT_INSIDE="shm")["connectivity"]
    (pair,) = [pair for pair in found["pairs"] if pair["a"] != pair["b"]]
    assert {t["name"]: t["why"] for t in pair["transports"]}[
        "ucx"
    ] == "not loaded: excluded by SHOAL_TRANSPORT_INSIDE"


def test_a_network_is_loaded_where_pairs_want_it(bin_dir):
    (module,) = [
        module
        for module in document(bin_dir, "--build")["build"]["networks"]
        if module["name"] == "ofi"
    ]
    if module["missing"]:
        pytest.skip(module["missing"])
    found = document(
        bin_dir,
        "--connectivity",
        "--init-timeline",
        pes=2,
        SHOAL_TRANSPORT_INSIDE="ofi",
        SHOAL_OFI_PROVIDER="tcp;ofi_rxm",
    )
    (pair,) = [pair for pair in found["connectivity"]["pairs"] if pair["a"] != pair["b"]]
    assert pair["chosen"] == "ofi"
    assert {t["name"]: t["why"] for t in pair["transports"]}[
        "shm"
    ] == "excluded by SHOAL_TRANSPORT_INSIDE"
    assert all(isinstance(pe["nics"], list) for pe in found["connectivity"]["pes"])
    names = [phase["name"] for phase in found["init_timeline"]["pes"][0]["phases"]]
    assert names[names.index("connectivity") :][:5] == [
        "connectivity",
        "NIC choice",
        "network",
        "network links",
        "network map",
    ]


def test_one_pe_prints(bin_dir):
    result = info(bin_dir, "--connectivity", "--init-timeline", pes=3)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Connectivity of 3 PEs") == 1
    assert result.stdout.count("Start of a world of 3 PEs") == 1
    assert "every pair\n    * shm" in result.stdout


def test_a_world_that_does_not_open_is_an_error(bin_dir):
    result = info(bin_dir, "-a", SHOAL_N_PES="2", SHOAL_PE="0")
    assert result.returncode == 1
    assert "neither SHOAL_UNIQUE_ID nor SHOAL_SESSION_ID is set" in result.stderr
    assert "Machine: this one" in result.stdout, "the rest is there"
    assert (
        "SHOAL_UNIQUE_ID"
        in json.loads(
            info(bin_dir, "--json", "--connectivity", SHOAL_N_PES="2", SHOAL_PE="0").stdout
        )["world"]["error"]
    )


def test_timeline_has_all_phases_in_order(bin_dir):
    pes = document(bin_dir, "--init-timeline", pes=4)["init_timeline"]["pes"]
    assert len(pes) == 4
    for pe in pes:
        names = [phase["name"] for phase in pe["phases"]]
        assert names[:3] == ["settings", "bootstrap", "identity"] and names[-1] == "final barrier"
        assert all(0 <= phase["waited_ms"] <= phase["ms"] for phase in pe["phases"])
        assert pe["total_ms"] == pytest.approx(sum(phase["ms"] for phase in pe["phases"]))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--topology", "--machine", MACHINES / "dgx_h100.xml"),
        ("--topology", "--pes", "4"),
        ("--init-timeline",),
    ],
)
def test_pictures_are_svg(bin_dir, tmp_path, arguments):
    picture = tmp_path / "picture.svg"
    result = info(bin_dir, *arguments, "--svg", picture)
    assert result.returncode == 0, result.stderr
    document_root = xml.etree.ElementTree.parse(picture).getroot()
    assert document_root.tag == "{http://www.w3.org/2000/svg}svg"
    width, height = float(document_root.get("width")), float(document_root.get("height"))
    for box in document_root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        assert (
            x >= 0
            and y >= 0
            and x + float(box.get("width")) <= width + 1
            and y + float(box.get("height")) <= height + 1
        )
    for text in document_root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.get("x")) <= width and 0 <= float(text.get("y")) <= height


def test_a_file_beyond_the_limit_is_an_error_with_a_message(bin_dir, tmp_path):
    picture = tmp_path / "picture.svg"
    program = f"ulimit -f 0; exec {bin_dir}/shoal-info --topology --svg {picture}"
    result = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1, result.stderr
    assert f"cannot write {picture}" in result.stderr


def test_a_link_at_the_name_of_an_unfinished_picture_is_not_followed(bin_dir, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "picture.svg.part").symlink_to(victim)
    result = info(bin_dir, "--topology", "--svg", tmp_path / "picture.svg")
    assert result.returncode == 0, result.stderr
    assert victim.read_text() == "precious"
    assert "<svg" in (tmp_path / "picture.svg").read_text()


def test_picture_that_cannot_be_written(bin_dir, tmp_path):
    result = info(bin_dir, "--topology", "--svg", tmp_path / "nowhere/picture.svg")
    assert result.returncode == 1 and "cannot write" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--machine", "x"),
        ("--root", "x"),
        ("--pes", "2"),
        ("--svg", "x"),
        ("--html", "x"),
        ("--topology", "--html", "x"),
        ("--topology", "--init-timeline", "--svg", "x"),
    ],
)
def test_options_that_need_others(bin_dir, arguments):
    assert info(bin_dir, *arguments).returncode not in (0, 1)


def test_the_described_systems_are_what_their_script_writes(tmp_path):
    subprocess.run([sys.executable, SYSTEMS / "make_systems.py", tmp_path], check=True, timeout=60)

    def files(folder):
        return {
            file.relative_to(folder): file.read_bytes()
            for name in ("dgx", "faulty", "laptop")
            for file in (folder / name).rglob("*")
            if file.is_file()
        }

    assert files(tmp_path) == files(SYSTEMS)


def test_doctor_of_described_systems(bin_dir):
    healthy = info(bin_dir, "--doctor", "--root", SYSTEMS / "dgx")
    assert healthy.returncode == 0 and "0 faults" in healthy.stdout
    ill = info(bin_dir, "--doctor", "--root", SYSTEMS / "faulty", SHOAL_SYMMETRIC_SIZE="8G")
    assert ill.returncode == 1
    for remedy in [
        "modprobe nvidia_peermem",
        "ulimit -l unlimited",
        "iommu=pt",
        "PeerMappingOverride=1;",
        "--shm-size",
        "SHOAL_HOST_ID=",
    ]:
        assert remedy in ill.stdout.replace("\n" + " " * 40, " "), remedy


def test_doctor_of_this_system(bin_dir):
    result = info(bin_dir, "--doctor", "--json", "--pes", "1")
    findings = json.loads(result.stdout)["doctor"]
    assert len(findings) == len({finding["name"] for finding in findings}) >= 20
    for finding in findings:
        assert finding["state"] in ("ok", "warning", "fault", "not applicable")
        assert bool(finding["cure"]) == (finding["state"] in ("warning", "fault")), finding
    assert result.returncode == any(finding["state"] == "fault" for finding in findings)


def test_page_of_shoal_info_has_every_check(bin_dir):
    page = (ROOT / "docs/guide/shoal-info.md").read_text()
    findings = json.loads(info(bin_dir, "--doctor", "--json", "--root", SYSTEMS / "laptop").stdout)[
        "doctor"
    ]
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert [name for name in rows if name in {finding["name"] for finding in findings}] == [
        finding["name"] for finding in findings
    ]
