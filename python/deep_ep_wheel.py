# SPDX-License-Identifier: Apache-2.0
"""The build backend (PEP 517) of the distribution ``deep_ep``: a pure wheel of the package here.

Programs ask importlib.metadata for the version of deep_ep. It is a distribution of its own so that
pip removes another deep_ep before it installs this one, and the other way round. A build from
source refuses instead: the user decides which of the two stays.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # before Python 3.11
    import tomli as tomllib

_HERE = Path(__file__).resolve().parent
_WHEEL = "Wheel-Version: 1.0\nGenerator: deep_ep_wheel\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _version() -> str:
    text = (_HERE / "deep_ep/__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)[1]


def _info() -> tuple[str, dict[str, str]]:
    """The name of the metadata folder, and its files except RECORD."""
    version = _version()
    project = tomllib.loads((_HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"Author: {', '.join(author['name'] for author in project['authors'])}",
        "License: Apache-2.0",
        f"Keywords: {','.join(project['keywords'])}",
        f"Requires-Python: {project['requires-python']}",
        f"Requires-Dist: shoal=={(_HERE.parent / 'VERSION').read_text(encoding='utf-8').strip()}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
    ]
    metadata = "\n".join(lines) + "\n"
    return f"deep_ep-{version}.dist-info", {"METADATA": metadata, "WHEEL": _WHEEL}


def _refuse_to_replace_another() -> None:
    """Raises RuntimeError where another deep_ep is installed in the environment of the build."""
    paths = sorted({sysconfig.get_path(name) for name in ("purelib", "platlib")})
    for found in importlib.metadata.distributions(path=paths):
        name = re.sub(r"[-_.]+", "-", found.metadata["Name"] or "").lower()
        if name == "deep-ep" and not found.version.endswith("+shoal"):
            raise RuntimeError(
                f"deep_ep {found.version} is installed in {paths[0]}; Shoal's package has the same "
                "name. Remove the other one first: pip uninstall deep_ep"
            )


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: dict[str, Any] | None = None
) -> str:
    name, files = _info()
    folder = Path(metadata_directory, name)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    return name


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    _refuse_to_replace_another()
    name, files = _info()
    contents = {
        path.relative_to(_HERE).as_posix(): path.read_bytes()
        for path in sorted((_HERE / "deep_ep").rglob("*"))
        if path.suffix == ".py" or path.name == "py.typed"
    }
    contents |= {f"{name}/{file}": text.encode() for file, text in files.items()}
    record = f"{name}/RECORD"
    lines = [_record_line(path, data) for path, data in contents.items()] + [f"{record},,\n"]
    contents[record] = "".join(lines).encode()
    wheel = f"deep_ep-{_version()}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in contents.items():
            archive.writestr(zipfile.ZipInfo(path), data, zipfile.ZIP_DEFLATED)
    return wheel


def _record_line(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"
