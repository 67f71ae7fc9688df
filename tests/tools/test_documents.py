# SPDX-License-Identifier: Apache-2.0
"""The pages agree with the code: READMEs, the table of settings, links between pages."""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


READMES = ["README.md", "README.zh.md"]


def code_blocks(page, language=r"\w+"):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", READMES)
def test_readme_shows_the_example_that_is_built(page):
    licence, program = (ROOT / "examples/hello.cpp").read_text().split("\n", 1)
    assert "SPDX" in licence
    assert code_blocks(page, "cpp") == [program]


@pytest.mark.parametrize("page", READMES)
def test_readme_is_short(page):
    assert len((ROOT / page).read_text().splitlines()) <= 80
    (python,) = code_blocks(page, "python")
    assert len(python.splitlines()) <= 12
    (cpp,) = code_blocks(page, "cpp")
    assert len(cpp.splitlines()) <= 20


def test_overview_is_short():
    assert len((ROOT / "docs/internals/architecture.md").read_text().split()) <= 2000


TRANSLATED = ["README.md", "docs/guide/from-deepep.md"]


@pytest.mark.parametrize("page", TRANSLATED)
def test_translations_have_the_same_code_links_and_tables(page):
    translation = page.replace(".md", ".zh.md")
    english, chinese = ((ROOT / name).read_text() for name in (page, translation))
    assert code_blocks(page) == code_blocks(translation)
    names = [pathlib.Path(name).name for name in (page, translation)]
    assert f"]({names[1]})" in english and f"]({names[0]})" in chinese

    def links(text):  # to sections by page: headings are translated
        targets = (link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text))
        return {target.replace(".zh.md", ".md") for target in targets}

    assert links(english) == links(chinese)

    def cells(text):  # in code style, of all rows of tables
        rows = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
        return [sorted(re.findall(r"`[^`]+`", row)) for row in rows]

    assert cells(english) == cells(chinese)


@pytest.mark.parametrize("page", READMES)
def test_figures_of_readmes_are_the_measured_ones(page):
    """In the order of the page; the smaller one of a row is bold."""
    text = (ROOT / page).read_text()
    files = [ROOT / f"docs/data/2-gpus/deep-ep-{name}.json" for name in ("peer", "pairs")]
    peer, shoal = (json.loads(file.read_text()) for file in files)
    assert peer["commit"] in text and shoal["commit"] in text and shoal["date"] in text
    keys = [
        "Buffer, with CPU sync, BF16: new pair, us",
        "ElasticBuffer, with CPU sync, BF16: new pair, us",
        "ElasticBuffer, 4096 tokens, expert-major, with CPU sync: new pair, us",
        "ElasticBuffer, 128 tokens, expert-major, without CPU sync: in a graph, us",
        "low latency, FP8: dispatch, us",
        "low latency, BF16: combine, us",
    ]

    def shown(key):
        values = [one["figures"][key] for one in (peer, shoal)]
        texts = [f"{value:.0f}" if value >= 100 else f"{value:.1f}" for value in values]
        texts[values.index(min(values))] = f"**{texts[values.index(min(values))]}**"
        return f"{texts[0]} | {texts[1]}"

    rows = re.findall(r"^\|.*\| (\**[\d.]+\** \| \**[\d.]+\**) \|$", text, re.MULTILINE)
    assert rows == [shown(key) for key in keys]


def test_example_runs_alone_and_on_four_pes(bin_dir):
    alone = subprocess.run([bin_dir / "example_hello"], capture_output=True, text=True, timeout=60)
    assert alone.returncode == 0, alone.stderr
    assert "PE 0 of 1 got 100 and 1" in alone.stdout
    command = [bin_dir / "shoal-run", "-n", "4", bin_dir / "example_hello"]
    four = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert four.returncode == 0, four.stderr
    for pe in range(4):
        # Two ranks return each token unchanged: the sum is twice what was sent.
        assert f"PE {pe} of 4 got {100 + (pe - 1) % 4} and {2 * (1 + pe)}" in four.stdout


def test_settings_page_is_generated_from_the_table(bin_dir):
    command = [bin_dir / "shoal-info", "--settings-page"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == (ROOT / "docs/reference/settings.md").read_text(), "run ./run settings"


def test_page_of_nvshmem_lists_every_alias():
    settings = (ROOT / "docs/reference/settings.md").read_text()
    page = (ROOT / "docs/guide/from-nvshmem.md").read_text()
    rows = re.findall(r"^\| `(SHOAL_\w+)` \| (`NVSHMEM_[^|]+) \|", settings, re.MULTILINE)
    aliases = {(alias, name) for name, names in rows for alias in re.findall(r"NVSHMEM_\w+", names)}
    cells = re.findall(r"^\| (`NVSHMEM_[^|]+) \| (`SHOAL_[^|]+) \|", page, re.MULTILINE)
    listed = {
        (alias, name)
        for left, right in cells
        for alias in re.findall(r"NVSHMEM_\w+", left)
        for name in re.findall(r"SHOAL_\w+", right)
    }
    assert len(aliases) > 10
    assert listed == aliases


def test_reference_has_every_error_code():
    page = (ROOT / "docs/reference/errors.md").read_text()
    header = (ROOT / "include/shoal/error.hpp").read_text()
    body = re.sub(r"//[^\n]*", "", re.search(r"enum class Code \{(.*?)\};", header, re.DOTALL)[1])
    codes = re.findall(r"\b([a-z_]+)\b", body)
    first, second = page.split("## Who throws")
    assert re.findall(r"^\| `([a-z_]+)` \|", first, re.MULTILINE) == codes
    assert re.findall(r"^\| `([a-z_]+)` \|", second, re.MULTILINE) == codes
    numbers = [int(number) for number in re.findall(r"`SHOAL_[A-Z_]+` \((\d)\) \|", first)]
    assert numbers == list(range(1, len(codes) + 1))


def test_version_is_the_same_everywhere(bin_dir):
    version = (ROOT / "VERSION").read_text().strip()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    header = (bin_dir.parent / "include/shoal/c/version.h").read_text()
    numbers = re.findall(
        r"^#define SHOAL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.MULTILINE
    )
    assert ".".join(numbers) == version and f'#define SHOAL_VERSION "{version}"' in header

    def printed(program):
        command = [bin_dir / program, "--version"]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    assert printed("shoal-info").strip() == version
    assert printed("shoal-run").strip() == f"shoal-run {version}"
    for package in (bin_dir.parent / "pkgconfig").glob("*.pc"):
        assert f"\nVersion: {version}\n" in package.read_text()
    config = (bin_dir.parent / "shoal-config-version.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{version}")' in config
    minor = version.rpartition(".")[0]
    for page in ("docs/guide/getting-started.md", "docs/guide/c.md"):
        assert f"find_package(shoal {minor} REQUIRED)" in (ROOT / page).read_text()


def test_version_of_the_python_packages(bin_dir):
    if not (bin_dir.parent / "python/shoal").exists():
        pytest.skip("this build has no Python packages")
    command = [sys.executable, "-c", "import shoal; print(shoal.__version__)"]
    environment = {**os.environ, "PYTHONPATH": str(bin_dir.parent / "python")}
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert result.stdout == (ROOT / "VERSION").read_text()
    metadata = importlib.import_module("scikit_build_core.metadata.regex")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    settings = project["tool"]["scikit-build"]["metadata"]["version"]
    assert settings.pop("provider") == metadata.__name__
    settings["input"] = str(ROOT / settings["input"])
    assert metadata.dynamic_metadata("version", settings) == result.stdout.strip()


@pytest.mark.parametrize(
    ("asked", "accepted"),
    [
        ("1.4", True),
        ("1.4.2", True),
        ("1.3", True),
        ("1.3.7", True),
        ("1.2.9", False),
        ("1.4.3", False),
        ("1.5", False),
        ("0.4", False),
    ],
)
def test_find_package_accepts_the_minor_version_before(tmp_path, asked, accepted):
    template = (ROOT / "cmake/shoal-config-version.cmake.in").read_text()
    values = {"PROJECT_VERSION": "1.4.2", "PROJECT_VERSION_MAJOR": "1"}
    values |= {"PROJECT_VERSION_MINOR": "4", "CMAKE_SIZEOF_VOID_P": "8"}
    text = re.sub(r"@(\w+)@", lambda match: values[match[1]], template)
    text += 'message("${PACKAGE_VERSION_COMPATIBLE}")\n'
    (tmp_path / "version.cmake").write_text(f"set(PACKAGE_FIND_VERSION {asked})\n{text}")
    command = ["cmake", "-P", tmp_path / "version.cmake"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stderr.strip() == str(accepted).upper()


def test_change_log_begins_with_this_version():
    headings = re.findall(
        r"^## \[(.+?)\] - (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    version = (ROOT / "VERSION").read_text().strip()
    assert headings[0][0] == version
    assert all(re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", date) for _, date in headings)
    numbers = [tuple(int(part) for part in name.split(".")) for name, _ in headings]
    assert numbers == sorted(numbers, reverse=True)


def test_rules_for_contributors_are_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 100


def test_bad_setting_names_the_variable(bin_dir):
    command = [bin_dir / "shoal-info", "--settings"]
    environment = {"SHOAL_TIMEOUT_MS": "soon"}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode != 0
    assert 'SHOAL_TIMEOUT_MS is "soon"; allowed: milliseconds from 1' in result.stderr


def test_log_settings_choose_level_and_file(bin_dir, tmp_path):
    environment = {**os.environ, "SHOAL_LOG": "debug", "SHOAL_LOG_FILE": str(tmp_path / "%p.log")}
    command = [bin_dir / "example_hello"]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    (log,) = tmp_path.iterdir()
    assert log.stem.isdigit(), "%p is the process id"
    assert "phase final barrier took" in log.read_text()
    environment["SHOAL_LOG_FILE"], environment["SHOAL_LOG"] = str(tmp_path / "quiet"), "error"
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "quiet").read_text() == ""


def test_links_between_pages_lead_somewhere():
    folders = "bench cmake docs emulator examples include python src tests tools".split()
    below = (page for folder in folders for page in (ROOT / folder).rglob("*.md"))
    pages = [*ROOT.glob("*.md"), *below]
    for page in pages:
        text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())  # code has brackets of its own
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in target:
                where = f"{page.relative_to(ROOT)} links to {target}"
                assert (page.parent / target).exists(), where


def anchors_of(page):
    """The anchors that a page's headings have where Markdown is rendered."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_sections_lead_to_headings():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
            other = page.parent / target if target else page
            where = f"{page.relative_to(ROOT)} links to {target}#{anchor}"
            assert anchor in anchors_of(other), where
