# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs: the site has the Markdown files of the tree under their own paths, so that
relative links between them lead to the same places as on a code host.

A link to a header of include/shoal leads to its API page, a link to another source file to a
listing of it. Pages of the Python API are made from docstrings.
"""

import pathlib
import re
import subprocess
import sys

from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import headers  # noqa: E402  (a neighbour)

PICTURES = {".svg", ".png"}
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
PYTHON = [
    "shoal",
    "shoal.ep",
    "shoal.torch",
    "shoal.integrations.transformers",
    "shoal.jax",
    "shoal.observe",
    "deep_ep",
]
API = {
    "C++": ["include/shoal", "include/shoal/ep"],
    "C": ["include/shoal/c"],
    "CUDA kernels": ["include/shoal/device", "include/shoal/device/contract"],
}
LISTED = {".hpp": "cpp", ".cpp": "cpp", ".cuh": "cuda", ".cu": "cuda", ".h": "c"}
LISTED |= {".c": "c", ".py": "python", ".json": "json", ".yaml": "yaml"}


def tracked():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in names.splitlines() if (ROOT / name).is_file()]


def api_headers(names):
    """Headers with a contract, in the order of the navigation."""
    found = [name for name in names if name.endswith((".hpp", ".cuh", ".h"))]
    folders = [folder for group in API.values() for folder in group]
    return [name for folder in folders for name in found if parent(name) == folder]


def parent(name):
    return pathlib.PurePath(name).parent.as_posix()


def target_of(page, link):
    """The path in the tree that a relative link of a page leads to, or None."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    path = (ROOT / page).parent / link
    try:
        return path.resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return None


def links(page):
    for text in FENCE.split((ROOT / page).read_text())[::2]:
        for _, link, _ in LINK.findall(text):
            if target := target_of(page, link):
                yield target


def listing(name):
    """A page for a source file or folder, outside the search index."""
    path = ROOT / name
    if path.is_dir():
        body = "\n".join(f"- `{child.name}`" for child in sorted(path.iterdir()) if child.is_file())
    else:
        body = f"````{LISTED.get(path.suffix, 'text')}\n{path.read_text()}\n````"
    return f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{body}\n"


def on_files(files, config):
    names = tracked()
    pages = [name for name in names if name.endswith(".md") and not name.startswith(".")]
    made = {}
    for name in api_headers(names):
        made[f"{name}.md"] = headers.page(name.removeprefix("include/"), (ROOT / name).read_text())
    for module in PYTHON:
        made[f"api/{module}.md"] = f"# {module}\n\n::: {module}\n"
    found = [File.generated(config, page, abs_src_path=str(ROOT / page)) for page in pages]
    for target in sorted({target for page in pages for target in links(page)}):
        path = ROOT / target
        if path.suffix in PICTURES and path.is_file():
            found.append(File.generated(config, target, abs_src_path=str(path)))
        elif path.exists() and path.suffix != ".md" and not (path / "README.md").is_file():
            made.setdefault(f"{target}.md", listing(target))
    found += [File.generated(config, name, content=text) for name, text in made.items()]
    config.nav = navigation(pages, [name for name in made if name.startswith("include/")])
    return Files([*files, *found])


def listed(page):
    """The pages that an overview lists, in its order, with the overview first."""
    seen = dict.fromkeys([page, *(target for target in links(page) if target.endswith(".md"))])
    return [name for name in seen if name.startswith(parent(page))]


def navigation(pages, api):
    def section(folder):
        overview = f"docs/{folder}/README.md"
        rest = [page for page in pages if page.startswith(f"docs/{folder}/")]
        return list(dict.fromkeys([*listed(overview), *rest]))

    def reference(folders):
        wanted = [name for name in api if parent(name) in folders]
        return [{name.removeprefix("include/shoal/").removesuffix(".md"): name} for name in wanted]

    project = ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/README.md"]
    return [
        {
            "Shoal": [
                "README.md",
                {"中文": "README.zh.md"},
                *(name for name in project if name in pages),
            ]
        },
        {"Guide": section("guide")},
        {"Performance": ["docs/performance.md", "docs/data/README.md"]},
        {"Reference": section("reference")},
        {
            "API": [
                "include/shoal/README.md",
                {"Python": [{module: f"api/{module}.md"} for module in PYTHON]},
                *({name: reference(folders)} for name, folders in API.items()),
            ]
        },
        {"Internals": section("internals")},
        {"Decisions": section("decisions")},
    ]


def on_page_markdown(markdown, page, config, files):
    """Links follow to what stands for their targets; lists begin where GitHub sees them begin."""

    def follow(match):
        target = target_of(page.file.src_uri, match[2])
        if target is None:
            return match[0]
        link = match[2]
        if files.get_file_from_path(f"{target}.md"):
            link = f"{link.rstrip('/')}.md"
        elif (ROOT / target / "README.md").is_file():
            link = f"{link.rstrip('/')}/README.md"
        return match[1] + link + match[3]

    parts = FENCE.split(markdown)
    for index in range(0, len(parts), 2):
        text = LINK.sub(follow, parts[index])
        text = re.sub(r"^( {2,3})(?=[-*\d] ?)", "    ", text, flags=re.MULTILINE)
        parts[index] = re.sub(
            r"^(?![-*|#\s]|\d+\. )(.+)\n(?=[-*] |1\. )", r"\1\n\n", text, flags=re.MULTILINE
        )
    return "".join(parts)


def on_post_build(config):
    """Fails the build for a page that makes a reader's browser fetch from another host."""
    remote = re.compile(
        r"""<(?:script|img|iframe)[^>]*\ssrc="?https?://|<link[^>]*rel="?stylesheet[^>]*https?://"""
    )
    for page in pathlib.Path(config.site_dir).rglob("*.html"):
        if found := remote.search(page.read_text()):
            raise SystemExit(f"docs: {page} fetches from another host: {found[0]}")
