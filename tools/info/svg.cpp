// SPDX-License-Identifier: Apache-2.0
#include "info/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "info/text.hpp"

namespace shoal::info {
namespace {

/// Colours of a light page that a dark page replaces.
struct Pair {
  std::string_view light, dark;
};
constexpr Pair kDark[] = {
    {"#ffffff", "#151b23"},                                                  // paper
    {"#1f2933", "#e6edf3"},                                                  // ink
    {"#616e7c", "#9aa7b4"},                                                  // secondary ink
    {"#f5f7fa", "#1c242e"},                                                  // outer boxes
    {"#e8edf2", "#26303b"},                                                  // inner boxes
    {"#9aa5b1", "#5b6875"}, {"#cbd2d9", "#46525e"}, {"#b8c2cc", "#5b6875"},  // edges
    {"#e4e7eb", "#2f3944"}, {"#d0d4da", "#3d4853"},                          // grids
    {"#b3261e", "#ff6b61"}, {"#2e7d32", "#5fc466"}, {"#1c5d99", "#5aa7ea"},  // values
    {"#882255", "#c2548f"}, {"#332288", "#8577d9"},  // the darkest of colour()
};

/// No usual sans-serif font has a wider mean character, in shares of the font size.
constexpr double kCharacter = 0.6, kBoldCharacter = 0.65;

/// Characters of UTF-8 text.
double length_of(std::string_view text) {
  return static_cast<double>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

/// Rules of CSS that replace the colours of attributes in a dark scheme.
std::string dark_rules() {
  std::string rules = "@media (prefers-color-scheme: dark) {\n";
  for (const auto& [light, dark] : kDark)
    rules +=
        fmt::format("svg [fill=\"{0}\"] {{ fill: {1}; }} svg [stroke=\"{0}\"] {{ stroke: {1}; }}\n",
                    light, dark);
  return rules + "}\n";
}

}  // namespace

void Svg::rectangle(double x, double y, double width, double height, const Style& style,
                    std::string_view tooltip) {
  body_ += fmt::format(
      R"(<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="{:.1f}" fill="{}" stroke="{}")",
      x, y, width, height, style.radius, style.fill, style.stroke);
  if (style.stroke != "none") body_ += fmt::format(R"( stroke-width="{:.1f}")", style.line);
  if (!style.dash.empty()) body_ += fmt::format(R"( stroke-dasharray="{}")", style.dash);
  if (style.opacity < 1) body_ += fmt::format(R"( fill-opacity="{:.2f}")", style.opacity);
  body_ += tooltip.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(tooltip));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view colour, double width) {
  body_ += fmt::format(
      R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{:.1f}"/>)",
      x1, y1, x2, y2, colour, width);
  body_ += "\n";
}

void Svg::text(double x, double y, std::string_view text, const Font& font) {
  constexpr std::string_view anchors[] = {"start", "middle", "end"};
  constexpr double shares[] = {1, 0.5, 0};  // right of x
  right_ =
      std::max(right_, x + length_of(text) * font.size * (font.bold ? kBoldCharacter : kCharacter) *
                               shares[static_cast<std::size_t>(font.anchor)]);
  body_ += fmt::format(
      R"(<text x="{:.1f}" y="{:.1f}" font-size="{:.1f}" fill="{}" text-anchor="{}"{}>{}</text>)", x,
      y, font.size, font.colour, anchors[static_cast<std::size_t>(font.anchor)],
      font.bold ? R"( font-weight="600")" : "", escaped(text));
  body_ += "\n";
}

std::string Svg::finish(double width, double height) const {
  constexpr double kMargin = 12;
  width = std::ceil(std::max(width, right_ + kMargin));
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
             R"(font-family="Inter, Helvetica, Arial, sans-serif">)",
             width, height) +
         "\n<style>\n" + dark_rules() + "</style>\n" +
         fmt::format(R"(<rect width="{:.0f}" height="{:.0f}" fill="#ffffff"/>)", width, height) +
         "\n" + body_ + "</svg>\n";
}

std::string_view Svg::colour(std::size_t index) {
  constexpr std::string_view colours[] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                          "#66ccee", "#aa3377", "#e08214", "#7f8fa6",
                                          "#44aa99", "#882255", "#999933", "#332288"};
  return colours[index % std::size(colours)];
}

}  // namespace shoal::info
