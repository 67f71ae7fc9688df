# SPDX-License-Identifier: Apache-2.0
"""A small SVG canvas whose colours follow the reader's light or dark theme."""

from html import escape

# Class: (light, dark). `fill-*` and `line-*` classes exist for each.
COLOURS = {
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "grid": ("#d1d9e0", "#3d444d"),
    "paper": ("#ffffff", "#151b23"),
    "blue": ("#ddeaf9", "#17304d"),
    "blue-edge": ("#1f6fb4", "#5aa7ea"),
    "green": ("#dcf1e2", "#16341f"),
    "green-edge": ("#2c8c4a", "#5cc77d"),
    "orange": ("#fbe6d9", "#45260f"),
    "orange-edge": ("#c4551a", "#ef9a63"),
    "purple": ("#ebe3f8", "#2c2148"),
    "purple-edge": ("#7349bd", "#b294ee"),
    "grey": ("#eef1f4", "#22272e"),
    "grey-edge": ("#818b98", "#818b98"),
}


def _style():
    def rules(theme):
        return "".join(
            f".f-{name}{{fill:{pair[theme]}}}.l-{name}{{stroke:{pair[theme]}}}"
            for name, pair in COLOURS.items()
        )

    return (
        "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
        ".mono{font-family:ui-monospace,SFMono-Regular,Menlo,monospace}"
        f"{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}"
    )


class Canvas:
    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def box(self, x, y, width, height, colour, radius=5):
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
            f'class="f-{colour} l-{colour}-edge" stroke-width="1.2"/>'
        )

    def text(self, x, y, text, size=13, colour="ink", anchor="start", bold=False, mono=False):
        weight = ' font-weight="600"' if bold else ""
        kind = " mono" if mono else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'class="f-{colour}{kind}"{weight}>{escape(text)}</text>'
        )

    def line(self, x1, y1, x2, y2, colour="soft", width=1.2, arrow=False, dashed=False):
        mark = f' marker-end="url(#arrow-{colour})"' if arrow else ""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="l-{colour}" '
            f'stroke-width="{width:g}"{dash}{mark}/>'
        )

    def write(self, path):
        arrows = "".join(
            f'<marker id="arrow-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 1 10 5 0 9z" class="f-{name}"/></marker>'
            for name in COLOURS
        )
        body = "\n".join(self.parts)
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" aria-label="{escape(self.title)}">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_style()}</style>\n<defs>{arrows}</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" class="f-paper"/>\n{body}\n</svg>\n'
        )
