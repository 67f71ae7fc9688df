# SPDX-License-Identifier: Apache-2.0
"""The build backend of deep_ep builds a pure wheel, and refuses to replace another deep_ep."""

import email
import importlib.util
import pathlib
import tomllib
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def deep_ep_wheel():
    path = ROOT / "python/deep_ep_wheel.py"
    spec = importlib.util.spec_from_file_location("deep_ep_wheel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def install(folder, name, version):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text)


def test_wheel_of_deep_ep(deep_ep_wheel, tmp_path):
    name = deep_ep_wheel.build_wheel(str(tmp_path))
    assert name == "deep_ep-2.1.0+shoal-py3-none-any.whl"
    info = "deep_ep-2.1.0+shoal.dist-info"
    with zipfile.ZipFile(tmp_path / name) as wheel:
        files, record = set(wheel.namelist()), wheel.read(f"{info}/RECORD").decode()
        metadata = email.message_from_string(wheel.read(f"{info}/METADATA").decode())
    package = ROOT / "python/deep_ep"
    sources = {f"deep_ep/{path.relative_to(package)}" for path in package.rglob("*.py")}
    added = {f"{info}/{file}" for file in ("METADATA", "WHEEL", "RECORD")}
    assert files == sources | {"deep_ep/py.typed"} | added
    assert {line.split(",")[0] for line in record.splitlines()} == files
    assert metadata["Requires-Dist"] == f"shoal=={(ROOT / 'VERSION').read_text().strip()}"
    project = tomllib.loads((ROOT / "python/pyproject.toml").read_text())["project"]
    assert metadata["Author"] == project["authors"][0]["name"] == "the Shoal authors"
    assert metadata.get_all("Classifier") == project["classifiers"]


def test_another_deep_ep_is_not_replaced(deep_ep_wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(deep_ep_wheel.sysconfig, "get_path", lambda name: str(tmp_path))
    install(tmp_path, "deep_ep", "2.0.9+shoal")  # an earlier one of ours
    install(tmp_path, "deep_ep_tools", "1.0")
    deep_ep_wheel.build_wheel(str(tmp_path))
    install(tmp_path, "Deep.EP", "1.2.1+9af0e0d")
    with pytest.raises(RuntimeError, match=r"deep_ep 1\.2\.1\+9af0e0d .* pip uninstall deep_ep"):
        deep_ep_wheel.build_wheel(str(tmp_path))
