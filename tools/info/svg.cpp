// SPDX-License-Identifier: Apache-2.0
#include "info/svg.hpp"

#include <fmt/format.h>

#include "info/text.hpp"

namespace shoal::info {

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
  body_ += fmt::format(
      R"(<text x="{:.1f}" y="{:.1f}" font-size="{:.1f}" fill="{}" text-anchor="{}"{}>{}</text>)", x,
      y, font.size, font.colour, anchors[static_cast<std::size_t>(font.anchor)],
      font.bold ? R"( font-weight="600")" : "", escaped(text));
  body_ += "\n";
}

std::string Svg::finish(double width, double height) const {
  return fmt::format(
             R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" viewBox="0 0 {0:.0f} {1:.0f}" )"
             R"(font-family="Inter, Helvetica, Arial, sans-serif">)",
             width, height) +
         "\n" +
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
