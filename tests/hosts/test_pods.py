# SPDX-License-Identifier: Apache-2.0
"""The command and environment of docs/guide/kubernetes/moe-job.yaml, on two hosts in place of
pods."""

import pathlib

import pytest
from hosts import SHARED
from launchers import Job, pe_lines

yaml = pytest.importorskip("yaml")  # a dependency of kubernetes-validate, which ./run test installs

MANIFEST = pathlib.Path(__file__).resolve().parents[2] / "docs/guide/kubernetes/moe-job.yaml"
PES_PER_POD = 2


def pod(container, index, program):
    """Command and environment of pod `index` as Kubernetes starts it, with another program."""
    script, zeroth, _ = container["args"]
    env = {"JOB_COMPLETION_INDEX": index}
    for entry in container["env"]:
        given = entry.get("valueFrom", {})
        if "secretKeyRef" in given:
            env[entry["name"]] = "a secret"
        elif "fieldRef" in given:
            assert given["fieldRef"]["fieldPath"] == "metadata.name"
            env[entry["name"]] = f"moe-{index}-x7xkq"
        else:
            env[entry["name"]] = entry["value"]
    return [*container["command"], script, zeroth, *program], env


def test_pes_of_two_pods_find_each_other(make_network, host_checks, environment):
    _, job = yaml.safe_load_all(MANIFEST.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert job["spec"]["completions"] == 2
    network = make_network(hosts=2)
    here = {
        **environment,
        "PES_PER_POD": PES_PER_POD,
        "SHOAL_N_PES": 2 * PES_PER_POD,
        "SHOAL_HEAP": "host",
    }
    programs = []
    for index in (1, 0):
        command, env = pod(container, index, [host_checks, "bootstrap"])
        programs.append(network.hosts[index].popen(command, {**env, **here}))
    assert not programs[0].wait_for("PE", limit_s=0.5), (
        "a pod waits until the name of the first pod resolves"
    )
    with open(network.login.path(SHARED / "hosts"), "a") as names:  # as the Service does
        names.write(f"{network.hosts[0].address()} moe-0.moe\n")
    results = Job(programs).wait(20)
    assert all(result.ok for result in results), "\n".join(map(str, results))
    lines = pe_lines("".join(result.out for result in results))
    assert {pe: host for pe, (_, host, _) in lines.items()} == {
        0: "host0",
        1: "host0",
        2: "host1",
        3: "host1",
    }


def test_a_pod_fails_with_any_of_its_pes(make_network):
    _, job = yaml.safe_load_all(MANIFEST.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    network = make_network(hosts=1, rails=1)
    command, env = pod(container, 0, ["sh", "-c", '[ "$SHOAL_PE" != 1 ]'])
    result = network.hosts[0].run(
        command, {**env, "SHOAL_SESSION_ID": "host0:1", "PES_PER_POD": PES_PER_POD}, limit_s=20
    )
    assert result.status == 1, result
