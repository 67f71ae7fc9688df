# SPDX-License-Identifier: Apache-2.0
"""The transport `verbs` on Linux' RDMA stack: worlds of two PEs, each with a soft-RoCE device, in
one virtual machine for all tests.

Skipped where no guest can be made; `guest.py setup` prepares a machine.
"""

import os
import pathlib
import re

import guest as machine
import image
import pytest

ENDS = ("va", "vb")  # of the cable between the devices
DISTURBED = {
    "loss": "loss 1%",
    "delay": "delay 1ms",
    "duplicates": "duplicate 2%",
    "reordering": "delay 1ms reorder 25% 50%",
}
SETTINGS = {
    "SHOAL_TRANSPORT_INSIDE": "verbs",
    "SHOAL_TRANSPORT_BETWEEN": "verbs",
    "SHOAL_NODE_SIZE": "1",
    "SHOAL_NIC_MAPPING": "rxe_a:1:1,rxe_b:1:1",
    "SHOAL_SOCKET_INTERFACE": "lo",
    "SHOAL_SYMMETRIC_SIZE": "16M",
    "SHOAL_MAX_TEAMS": "40",
    "SHOAL_TIMEOUT_MS": "30000",
}
# The checks under a disturbance: one half here, the other in `./run soak`.
HALVES = [("collectives", "order", "ep"), ("operations", "fence", "long")]
LIMIT_S = 200  # of a command; seconds on an idle machine


@pytest.fixture(scope="module")
def programs():
    folder = pathlib.Path(os.environ.get("SHOAL_BIN_DIR", "build/release/bin")).resolve()
    module = folder.parent / "lib" / "shoal" / "libshoal_transport_verbs.so"
    if not module.exists():
        pytest.skip("this build has no transport verbs: <infiniband/verbs.h> is not installed")
    return {"run": folder / "shoal-run", "checks": folder / "softroce_checks", "module": module}


@pytest.fixture(scope="module")
def guest(programs):
    try:
        with machine.Guest(programs.values()) as booted:
            yield booted
    except image.Unavailable as reason:
        pytest.skip(f"no guest with soft-RoCE: {reason}")


@pytest.fixture
def world(guest, programs):
    """Runs checks in a world of two PEs, with other settings."""

    def run(*checks, before="", after="", **settings):
        command = f"{programs['run']} -n 2 {programs['checks']} {' '.join(checks)}"
        changed = {f"SHOAL_{name}": str(value) for name, value in settings.items()}
        return guest.run(before + command + after, {**SETTINGS, **changed}, LIMIT_S)

    return run


def passed(result, *checks):
    lines = re.findall(r"PE \d: (\w+) ok", result.out)
    return result.status == 0 and sorted(lines) == sorted([*checks, *checks])


def on_all_ends(what):
    return "".join(f"tc qdisc {what.format(end)}; " for end in ENDS)


def test_the_devices_are_active(guest):
    shown = guest.run("ibv_devinfo", limit_s=20)
    assert shown.status == 0, shown.out
    assert shown.out.count("PORT_ACTIVE") == 2, shown.out
    assert {"rxe_a", "rxe_b"} <= set(shown.out.split()), shown.out


@pytest.mark.parametrize("checks", [("operations", "collectives"), ("order", "fence", "long"), ("words", "ep")],
                         ids="-".join)  # fmt: skip
def test_checks_pass(world, checks):
    result = world(*checks)
    assert passed(result, *checks), result.out


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        pytest.param(name, checks, id=f"{name}-{checks[0]}", marks=marks)
        for index, name in enumerate(DISTURBED)
        for checks, marks in ((HALVES[index % 2], ()), (HALVES[1 - index % 2], pytest.mark.soak))
    ],
)
def test_disturbed_packets(guest, world, name, checks):
    before = on_all_ends(f"replace dev {{}} root netem {DISTURBED[name]}")
    after = f"; status=$?; {on_all_ends('del dev {} root')} exit $status"
    # 67 ms, without end: on a busy machine the emulated processors answer late, and six repetitions
    # have ended the queue pair. What is really lost fails at the deadline of its call.
    settings = {"VERBS_TIMEOUT": 14, "VERBS_RETRIES": 7}
    result = world(*checks, before=before, after=after, **settings)
    assert passed(result, *checks), result.out


# The completion queue of rxe has at most 32767 entries.
@pytest.mark.parametrize("settings", [
    {"VERBS_DEPTH": 32768, "VERBS_QUEUE_PAIRS": 4},
    {"VERBS_DEPTH": 16, "NETWORK_DEPTH": 1, "VERBS_INLINE": 0},
    {"VERBS_GID_INDEX": 0, "VERBS_QUEUE_ORDER": "naive"},
], ids=["deepest", "shallowest", "link-local-address"])  # fmt: skip
def test_limits(world, settings):
    result = world("ep", **settings)
    assert passed(result, "ep"), result.out


@pytest.mark.parametrize(("setting", "value", "text"), [
    ("VERBS_GID_INDEX", 5, "entry 5 of the GID table of rxe_a:1 is empty"),
    ("VERBS_INLINE", 1024, "cannot be created: Invalid argument"),
])  # fmt: skip
def test_what_the_device_refuses_is_named(world, setting, value, text):
    result = world("ep", **{setting: value})
    assert result.status == 1, result.out
    assert text in result.out
    assert f"SHOAL_{setting}" in result.out


# rxe repeats a request without end if 7 retries are asked for: then the deadline of the call ends
# it.
@pytest.mark.parametrize(("retries", "text"), [
    (3, "seen code peer_failed after .* transport retry counter exceeded"),
    (7, "seen code timeout after .* writes and 0 reads are in flight"),
])  # fmt: skip
def test_a_cut_link_is_reported(world, retries, text):
    cut = on_all_ends("replace dev {} root netem loss 100%")
    after = (
        " >/tmp/out 2>&1 & until [ $(grep -c running /tmp/out) = 2 ]; do sleep 0.1; done; "
        f"{cut} wait; cat /tmp/out; {on_all_ends('del dev {} root')}"
    )
    before = "rm -rf /tmp/softroce-seen; "
    result = world("loss", before=before, after=after, VERBS_RETRIES=retries, TIMEOUT_MS=4000)
    assert len(re.findall(f"PE . has {text}", result.out)) == 2, result.out


def test_a_dead_pe_is_reported(world):
    result = world("die")
    assert "PE 0 has seen code peer_failed" in result.out, result.out


# The guest itself. The last test ends it.
def test_exit_status_and_output(guest):
    assert guest.run("echo here; echo there >&2; exit 3") == machine.Result(3, "here\nthere\n")


def test_a_command_past_its_limit_is_killed(guest):
    assert guest.run("echo first; sleep 60", limit_s=1).status == 137
    assert guest.run("echo 'it continues'").out == "it continues\n"


def test_a_dead_guest_is_reported_with_its_console(guest):
    with pytest.raises(machine.Died, match="qemu ended(.|\n)*before the end(.|\n)*Power down"):
        guest.run("echo before the end; echo Power down >/dev/ttyS0; sleep 1; poweroff -f")
