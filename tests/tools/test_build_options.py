# SPDX-License-Identifier: Apache-2.0
"""Options of the build that users do not set."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_warnings_are_errors_only_where_asked_for(tmp_path):
    """A compiler or a library that a user has may warn where ours do not."""
    command = ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja"]
    command += [f"-DSHOAL_BUILD_{part}=OFF" for part in ("TOOLS", "TESTS", "BENCH")]
    for options, strict in ([], False), (["-DSHOAL_WERROR=ON"], True):
        subprocess.run([*command, *options], check=True, timeout=120, capture_output=True)
        commands = json.loads((tmp_path / "compile_commands.json").read_text())
        ours = [one["command"] for one in commands if "/src/" in one["file"]]
        assert ours and all(("-Werror" in one) == strict for one in ours)
