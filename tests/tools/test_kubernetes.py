# SPDX-License-Identifier: Apache-2.0
"""docs/guide/kubernetes: the manifests are what Kubernetes' own schemas allow, unknown fields being
errors."""

import copy
import pathlib

import pytest

kubernetes_validate = pytest.importorskip("kubernetes_validate")
yaml = pytest.importorskip("yaml")

MANIFESTS = sorted(
    (pathlib.Path(__file__).resolve().parents[2] / "docs/guide/kubernetes").glob("*.yaml")
)
VERSION = kubernetes_validate.latest_version()


def resources(path):
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest_is_valid(path):
    for resource in resources(path):
        kubernetes_validate.validate(resource, VERSION, strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_check_notices_mistakes(path):
    _, job = resources(path)
    misspelt, mistyped = copy.deepcopy(job), copy.deepcopy(job)
    misspelt["spec"]["template"]["spec"]["restartPolice"] = "Never"
    mistyped["spec"]["completions"] = "two"
    for wrong in (misspelt, mistyped):
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_parts_of_the_job_fit_together():
    (path,) = MANIFESTS
    service, job = resources(path)
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert env["SHOAL_SESSION_ID"].startswith(f"{name}-0.{pod['subdomain']}:")
    assert spec["completions"] == spec["parallelism"]
    assert int(env["SHOAL_N_PES"]) == spec["completions"] * int(env["PES_PER_POD"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(env["PES_PER_POD"])
