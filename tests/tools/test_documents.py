# SPDX-License-Identifier: Apache-2.0
"""The pages agree with the code: the README's example is examples/hello.cpp, docs/reference/settings.md is what the table says."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_readme_shows_the_example_that_is_built():
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```cpp\n(.*?)```", readme, re.DOTALL)
    assert (ROOT / "examples/hello.cpp").read_text() in blocks


def test_example_runs_alone_and_on_four_pes(bin_dir):
    alone = subprocess.run([bin_dir / "example_hello"], capture_output=True, text=True, timeout=60)
    assert alone.returncode == 0, alone.stderr
    assert "PE 0 of 1 got 100" in alone.stdout
    four = subprocess.run([bin_dir / "shoal-run", "-n", "4", bin_dir / "example_hello"], capture_output=True, text=True, timeout=60)
    assert four.returncode == 0, four.stderr
    for pe in range(4):
        assert f"PE {pe} of 4 got {100 + (pe - 1) % 4}" in four.stdout
        # Two members answer each token with its own row: the sum is twice what was sent.
        assert f"token 0 came back as {2 * (1 + pe)}" in four.stdout


def test_settings_page_is_generated_from_the_table(bin_dir):
    page = subprocess.run([bin_dir / "shoal-info", "--settings-page"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert page == (ROOT / "docs/reference/settings.md").read_text(), "run ./run settings"


def test_bad_setting_names_the_variable(bin_dir):
    result = subprocess.run([bin_dir / "shoal-info", "--settings"], capture_output=True, text=True, timeout=60,
                            env={"SHOAL_TIMEOUT_MS": "soon"})
    assert result.returncode != 0
    assert 'SHOAL_TIMEOUT_MS is "soon"; allowed: milliseconds from 1' in result.stderr


def test_log_settings_choose_level_and_file(bin_dir, tmp_path):
    environment = {**os.environ, "SHOAL_LOG": "debug", "SHOAL_LOG_FILE": str(tmp_path / "%p.log")}
    subprocess.run([bin_dir / "example_hello"], env=environment, check=True, capture_output=True, timeout=60)
    (log,) = tmp_path.iterdir()
    assert log.stem.isdigit(), "%p is the process id"
    assert "phase final barrier took" in log.read_text()
    environment["SHOAL_LOG_FILE"], environment["SHOAL_LOG"] = str(tmp_path / "quiet"), "error"
    subprocess.run([bin_dir / "example_hello"], env=environment, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "quiet").read_text() == ""


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"
