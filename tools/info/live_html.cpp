// SPDX-License-Identifier: Apache-2.0
// live_html.cpp: a report of --live or --flight as a page for a browser.
#include <fmt/format.h>

#include "info/live.hpp"
#include "info/text.hpp"

namespace shoal::info {
namespace {

constexpr std::string_view kStyle =
    ":root { color-scheme: light dark; }\n"
    "body { font: 14px/1.4 Inter, Helvetica, Arial, sans-serif; margin: 24px; color: #1f2933; }\n"
    "table { border-collapse: collapse; }\n"
    "th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid #d0d4da; }\n"
    "pre { background: #f4f5f7; padding: 12px; overflow-x: auto; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  body { background: #151b23; color: #e6edf3; }\n"
    "  th, td { border-color: #3d4853; }\n"
    "  pre { background: #1c242e; }\n"
    "}\n";

std::string row_of(const std::vector<std::string>& cells, std::string_view tag) {
  std::string row = "<tr>";
  for (const std::string& cell : cells) row += fmt::format("<{0}>{1}</{0}>", tag, escaped(cell));
  return row + "</tr>\n";
}

std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return {};
  std::string text = "<table>\n" + row_of(rows.front(), "th");
  for (std::size_t i = 1; i < rows.size(); ++i) text += row_of(rows[i], "td");
  return text + "</table>\n";
}

}  // namespace

std::string live_html(const LivePage& page) {
  std::string text = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  if (page.reload_seconds > 0)
    text += fmt::format("<meta http-equiv=\"refresh\" content=\"{:.0f}\">\n", page.reload_seconds);
  text += fmt::format("<title>{0}</title>\n<style>\n{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
                      escaped(page.title), kStyle);
  text += table_of(page.activity);
  if (!page.who_waits.empty()) text += fmt::format("<pre>{}</pre>\n", escaped(page.who_waits));
  return text + page.svg + "</body>\n</html>\n";
}

}  // namespace shoal::info
