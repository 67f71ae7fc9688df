// The picture of a machine: nested boxes, each as wide as what is in it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "info/svg.hpp"
#include "info/topology.hpp"

namespace shoal::info {
namespace {

using Kind = TreeNode::Kind;

constexpr double kDeviceWidth = 148, kDeviceHeight = 46, kGap = 10, kPadding = 12, kHeader = 24;
constexpr std::string_view kInk = "#1f2933", kGrey = "#616e7c";

struct Size {
  double width, height;
};

/// A node with the place of each child inside it.
struct Box {
  const TreeNode* node;
  Size size;
  double x = 0, y = 0;  ///< inside its parent
  std::vector<Box> children;
};

bool is_device(const TreeNode& node) {
  return node.kind == Kind::gpu || node.kind == Kind::nic;
}

/// Columns for the children of a node: switches and host bridges in a grid, devices two in a row, NUMA nodes side by
/// side.
std::size_t columns(const TreeNode& node) {
  const std::size_t count = node.children.size();
  if (node.kind == Kind::machine) return std::min<std::size_t>(count, 2);
  if (node.kind == Kind::numa && count > 2) return 2;
  return std::min<std::size_t>(std::max<std::size_t>(count, 1), 2);
}

/// Rows of children, each row as high as its highest box, columns as wide as their widest.
Box layout(const TreeNode& node) {
  Box box{&node, {kDeviceWidth, kDeviceHeight}, 0, 0, {}};
  if (is_device(node)) return box;
  for (const TreeNode& child : node.children) box.children.push_back(layout(child));
  const std::size_t across = columns(node);
  std::vector<double> widths(across, 0);
  for (std::size_t i = 0; i < box.children.size(); ++i)
    widths[i % across] = std::max(widths[i % across], box.children[i].size.width);
  double y = kHeader + kPadding / 2, row_height = 0, right = 0;
  for (std::size_t i = 0; i < box.children.size(); ++i) {
    if (i > 0 && i % across == 0) {
      y += row_height + kGap;
      row_height = 0;
    }
    double x = kPadding;
    for (std::size_t column = 0; column < i % across; ++column) x += widths[column] + kGap;
    box.children[i].x = x;
    box.children[i].y = y;
    row_height = std::max(row_height, box.children[i].size.height);
    right = std::max(right, x + widths[i % across]);
  }
  // Boxes of one column are equally wide, those of one row equally high.
  for (std::size_t i = 0; i < box.children.size(); ++i) {
    Box& child = box.children[i];
    if (is_device(*child.node)) continue;
    child.size.width = widths[i % across];
    const std::size_t row = i / across * across;
    for (std::size_t j = row; j < std::min(row + across, box.children.size()); ++j)
      child.size.height = std::max(child.size.height, box.children[j].size.height);
  }
  const double title = static_cast<double>(node.label.size()) * 6.6 + 2 * kPadding;
  box.size = {std::max(right + kPadding, title), y + row_height + kPadding};
  return box;
}

class Picture {
 public:
  explicit Picture(const Topology& topology) : topology_(topology) {}

  std::string draw();

 private:
  void box(const Box& box, double x, double y);
  void gpu(const TreeNode& node, double x, double y);
  void nic(const TreeNode& node, double x, double y);
  double legend(double y, double width);

  const Topology& topology_;
  Svg svg_;
};

void Picture::gpu(const TreeNode& node, double x, double y) {
  const auto seat = static_cast<std::size_t>(node.index);
  svg_.rectangle(x, y, kDeviceWidth, kDeviceHeight, {Svg::colour(seat), "none", 6});
  svg_.text(x + 10, y + 20, node.label, {13, "#ffffff", Svg::Anchor::start, true});
  svg_.text(x + 10, y + 36, topology_.machine.gpus[seat].at.pci(), {10.5, "#ffffff"});
}

/// A white box with a stripe of every seat that uses it; grey and dashed where none does.
void Picture::nic(const TreeNode& node, double x, double y) {
  const topology::Nic& nic = topology_.machine.nics[static_cast<std::size_t>(node.index)];
  const std::vector<std::int32_t> users = users_of(topology_, static_cast<std::size_t>(node.index));
  const bool used = !users.empty();
  svg_.rectangle(x, y, kDeviceWidth, kDeviceHeight,
                 {"#ffffff", used ? Svg::colour(static_cast<std::size_t>(users.front())) : "#b8c2cc", 6,
                  used ? 2.0 : 1.0, used ? "" : "4 3"},
                 used ? "" : topology_.plan.unused[static_cast<std::size_t>(node.index)]);
  const double stripe = std::min(8.0, 56.0 / static_cast<double>(std::max<std::size_t>(users.size(), 1)));
  for (std::size_t i = 0; i < users.size(); ++i)
    svg_.rectangle(x + kDeviceWidth - 6 - stripe * static_cast<double>(users.size() - i), y + 6, stripe - 1,
                   kDeviceHeight - 12, {Svg::colour(static_cast<std::size_t>(users[i])), "none", 1.5},
                   seat_name(topology_, static_cast<std::size_t>(users[i])));
  svg_.text(x + 10, y + 20, node.label, {13, used ? kInk : kGrey, Svg::Anchor::start, true});
  const std::string rate = nic.rate > 0 ? fmt::format("{} Gb/s", nic.rate) : "rate not known";
  svg_.text(x + 10, y + 36, nic.up ? (used ? rate : rate + ", not used") : "down", {10.5, kGrey});
}

void Picture::box(const Box& box, double x, double y) {
  if (box.node->kind == Kind::gpu) return gpu(*box.node, x, y);
  if (box.node->kind == Kind::nic) return nic(*box.node, x, y);
  const bool numa = box.node->kind == Kind::numa;
  if (box.node->kind != Kind::machine) {
    svg_.rectangle(x, y, box.size.width, box.size.height,
                   {numa ? "#f5f7fa" : "#e8edf2", numa ? "#9aa5b1" : "#cbd2d9", numa ? 10.0 : 8.0});
    svg_.text(x + kPadding, y + 18, box.node->label,
              {numa ? 13.0 : 11.0, numa ? kInk : kGrey, Svg::Anchor::start, numa});
  }
  for (const Box& child : box.children) this->box(child, x + child.x, y + child.y);
}

/// What the colours mean: a line for every seat with its NICs, in as many columns as fit. Returns where it ends.
double Picture::legend(double y, double width) {
  constexpr double kRow = 20;
  std::vector<std::string> lines;
  std::size_t longest = 0;
  for (std::size_t seat = 0; seat < topology_.seats.size(); ++seat) {
    std::vector<std::string> nics;
    for (const topology::NicUse& use : topology_.plan.of_seat[seat])
      nics.push_back(fmt::format("{} ({})", topology_.machine.nics[static_cast<std::size_t>(use.nic)].label(),
                                 topology::name_of(use.distance)));
    lines.push_back(fmt::format("{} {}", topology_.machine.gpus.empty() ? "PE" : "PEs on GPU", seat) +
                    (nics.empty() ? ": no NIC" : fmt::format(": {}", fmt::join(nics, ", "))));
    longest = std::max(longest, lines.back().size());
  }
  const double column = static_cast<double>(longest) * 6.4 + 40;
  const auto across = std::max<std::size_t>(1, static_cast<std::size_t>((width - 2 * kPadding) / column));
  const std::size_t rows = (lines.size() + across - 1) / across;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double x = kPadding + static_cast<double>(i / rows) * column;
    const double at = y + static_cast<double>(i % rows) * kRow;
    svg_.rectangle(x, at, 12, 12, {Svg::colour(i), "none", 3});
    svg_.text(x + 20, at + 10.5, lines[i], {12, kInk});
  }
  return y + static_cast<double>(rows) * kRow;
}

std::string Picture::draw() {
  const TreeNode tree = tree_of(topology_.machine);
  const Box machine = layout(tree);
  const double width = std::max(machine.size.width, 420.0);
  const std::string title = topology_.name == "this one" ? "This machine" : topology_.name;
  svg_.text(kPadding, 26, title.substr(title.rfind('/') + 1), {16, kInk, Svg::Anchor::start, true});
  svg_.text(kPadding, 44,
            fmt::format("NIC plan {}; the colour of a GPU is on the NICs of its PEs", topology_.plan.rule),
            {11.5, kGrey});
  box(machine, 0, 34);
  const double end = legend(34 + machine.size.height + 12, width);
  return svg_.finish(width, end + kPadding);
}

}  // namespace

std::string to_svg(const Topology& topology) {
  return Picture(topology).draw();
}

}  // namespace shoal::info
