# SPDX-License-Identifier: Apache-2.0
"""The API pages of the site have every public declaration of the headers, with its comment.

./run docs builds the site and checks its links."""

import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/site"))
import headers  # noqa: E402  (of the site)

INCLUDE = ROOT / "include/shoal"
PAGES = sorted(
    path
    for folder in ("", "ep", "c", "device/contract")
    for path in (INCLUDE / folder).iterdir()
    if path.suffix in (".hpp", ".h", ".cuh")
)
EXAMPLE = """\
// SPDX-License-Identifier: Apache-2.0
// shoal/box.hpp: boxes of `int`.
//
//   Box box{3};
#pragma once
namespace shoal {
class World;
/// A box_of things:
/// - of one kind, which is
///   an integer.
class Box {
 public:
  Box() = default;  ///< empty
  explicit Box(int size) : size_(size) { fill('{', 1'000); }
  Box& operator=(Box&& other) noexcept { return *this; }
  /// The size.
  int size() const noexcept { return size_; }
  int first{0}, second = 1;

 private:
  /// Not to be seen.
  int size_ = 0;
};
namespace detail {
int hidden();
}
enum class Kind : int { one, two };
template <typename T>
concept Small = requires(T t) { t.size(); };
/// Adds.
template <typename T = std::vector<int>>
int add(T left, T right = {});
}
"""


def test_declarations_comments_and_code():
    page = headers.page("shoal/box.hpp", EXAMPLE)
    names = re.findall(r"^#+ `(.*)`$", page, re.MULTILINE)
    assert names == ["Box", "Box", "operator=", "size", "first", "Kind", "Small", "add"]
    assert page.startswith("# shoal/box.hpp\n\nBoxes of `int`.\n\n\n```cpp\nBox box{3};\n```\n")
    assert "A box\\_of things:\n\n- of one kind, which is\n    an integer.\n" in page
    assert "```cpp\nint size() const noexcept;\n```\n\nThe size.\n" in page
    assert "int first{0}, second = 1;" in page and "enum class Kind : int { one, two };" in page
    assert "concept Small = requires(T t) { t.size(); };" in page
    assert "int add(T left, T right = {});\n```\n\nAdds.\n" in page
    for hidden in ("fill", "Not to be seen", "detail", "World", "return"):
        assert hidden not in page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(INCLUDE)))
def test_headers_are_read_to_their_end(path):
    """A brace or quote that is misread would swallow what follows, or leave scopes open."""
    text = path.read_text()
    reader = headers.Reader(text)
    reader.entries()
    assert reader.at == len(reader.tokens)
    page = headers.page("x", text)
    # Macros have no entries, and names in detail are not public.
    public = re.sub(
        r"^namespace detail \{.*?^\}  // namespace detail", "", text, flags=re.MULTILINE | re.DOTALL
    )
    public = re.sub(r"(^///.*\n)+(?=#)", "", public, flags=re.MULTILINE)
    for line in re.findall(r"^/// (\w.*)$", public, re.MULTILINE):
        assert headers.prose(line).strip() in page
