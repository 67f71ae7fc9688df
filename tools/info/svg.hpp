// SPDX-License-Identifier: Apache-2.0
// svg.hpp: builds an SVG document from boxes, lines and texts.
#pragma once

#include <string>
#include <string_view>

namespace shoal::info {

class Svg {
 public:
  struct Style {
    std::string_view fill = "none", stroke = "none";
    double radius = 0, line = 1;
    std::string_view dash = "";
    double opacity = 1;
  };
  enum class Anchor : unsigned char { start, middle, end };
  struct Font {
    double size = 12;
    std::string_view colour = "#1f2933";
    Anchor anchor = Anchor::start;
    bool bold = false;
  };

  void rectangle(double x, double y, double width, double height, const Style& style,
                 std::string_view tooltip = "");
  void line(double x1, double y1, double x2, double y2, std::string_view colour, double width = 1);
  void text(double x, double y, std::string_view text, const Font& font);

  /// The document, for a page of this size, or wider if a text needs it. Colours follow the
  /// reader's light or dark scheme, except `white`.
  std::string finish(double width, double height) const;

  /// The colour for index `index`. Twelve colours repeat; neighbours differ clearly.
  static std::string_view colour(std::size_t index);

 private:
  std::string body_;
  double right_ = 0;  ///< end of the text that reaches furthest
};

}  // namespace shoal::info
