// SPDX-License-Identifier: Apache-2.0
// The picture of a machine as nested boxes, each as wide as its content.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

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

/// A node with the position of each child inside it.
struct Box {
  const TreeNode* node;
  Size size;
  double x = 0, y = 0;  ///< inside its parent
  std::vector<Box> children;
};

bool is_device(const TreeNode& node) {
  return node.kind == Kind::gpu || node.kind == Kind::nic;
}

/// Arranges boxes [first, last) of a node in a grid of two columns that starts at height `y`. Boxes
/// of a column have equal widths, those of a row equal heights. Returns the right and lower ends of
/// the grid.
Size grid(std::vector<Box>& boxes, std::size_t first, std::size_t last, double y) {
  constexpr std::size_t kColumns = 2;
  double widths[kColumns] = {};
  for (std::size_t i = first; i < last; ++i)
    widths[(i - first) % kColumns] = std::max(widths[(i - first) % kColumns], boxes[i].size.width);
  double right = 0;
  for (std::size_t row = first; row < last; row += kColumns) {
    const std::size_t end = std::min(row + kColumns, last);
    double height = 0, x = kPadding;
    for (std::size_t i = row; i < end; ++i) height = std::max(height, boxes[i].size.height);
    for (std::size_t i = row; i < end; ++i) {
      boxes[i].x = x;
      boxes[i].y = y;
      boxes[i].size = {widths[i - row], height};
      x += widths[i - row] + kGap;
    }
    right = std::max(right, x - kGap);
    y += height + kGap;
  }
  return {right, y};
}

/// Devices first, then switches and bridges, below each other.
Box layout(const TreeNode& node) {
  Box box{&node, {kDeviceWidth, kDeviceHeight}, 0, 0, {}};
  if (is_device(node)) return box;
  for (const TreeNode& child : node.children) box.children.push_back(layout(child));
  const auto bridges =
      std::stable_partition(box.children.begin(), box.children.end(),
                            [](const Box& child) { return is_device(*child.node); });
  const auto devices = static_cast<std::size_t>(bridges - box.children.begin());
  const Size upper = grid(box.children, 0, devices, kHeader + kPadding / 2);
  const Size lower = grid(box.children, devices, box.children.size(), upper.height);
  const double title = static_cast<double>(node.label.size()) * 6.6 + 2 * kPadding;
  box.size = {std::max(std::max(upper.width, lower.width) + kPadding, title),
              lower.height - kGap + kPadding};
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
  svg_.text(x + 10, y + 20, node.label, {13, "white", Svg::Anchor::start, true});
  svg_.text(x + 10, y + 36, topology_.machine.gpus[seat].at.pci(), {10.5, "white"});
}

/// A white box with one stripe per seat that uses the NIC; grey and dashed if none does.
void Picture::nic(const TreeNode& node, double x, double y) {
  const topology::Nic& nic = topology_.machine.nics[static_cast<std::size_t>(node.index)];
  const std::vector<std::int32_t> users = users_of(topology_, static_cast<std::size_t>(node.index));
  const bool used = !users.empty();
  svg_.rectangle(
      x, y, kDeviceWidth, kDeviceHeight,
      {"#ffffff", used ? Svg::colour(static_cast<std::size_t>(users.front())) : "#b8c2cc", 6,
       used ? 2.0 : 1.0, used ? "" : "4 3"},
      used ? "" : topology_.plan.unused[static_cast<std::size_t>(node.index)]);
  const double stripe =
      std::min(8.0, 56.0 / static_cast<double>(std::max<std::size_t>(users.size(), 1)));
  for (std::size_t i = 0; i < users.size(); ++i)
    svg_.rectangle(x + kDeviceWidth - 6 - stripe * static_cast<double>(users.size() - i), y + 6,
                   stripe - 1, kDeviceHeight - 12,
                   {Svg::colour(static_cast<std::size_t>(users[i])), "none", 1.5},
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

/// The legend: one line per seat with its NICs, in as many columns as fit. Returns the lower end.
double Picture::legend(double y, double width) {
  constexpr double kRow = 20;
  std::vector<std::string> lines;
  std::size_t longest = 0;
  for (std::size_t seat = 0; seat < topology_.seats.size(); ++seat) {
    std::vector<std::string> nics;
    for (const topology::NicUse& use : topology_.plan.of_seat[seat])
      nics.push_back(fmt::format("{} ({})",
                                 topology_.machine.nics[static_cast<std::size_t>(use.nic)].label(),
                                 topology::name_of(use.distance)));
    lines.push_back(
        fmt::format("{} {}", topology_.machine.gpus.empty() ? "PE" : "PEs on GPU", seat) +
        (nics.empty() ? ": no NIC" : fmt::format(": {}", fmt::join(nics, ", "))));
    longest = std::max(longest, lines.back().size());
  }
  const double column = static_cast<double>(longest) * 6.4 + 40;
  const auto across =
      std::max<std::size_t>(1, static_cast<std::size_t>((width - 2 * kPadding) / column));
  const std::size_t rows = (lines.size() + across - 1) / across;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t place = i / rows;
    const double x = kPadding + static_cast<double>(place) * column;
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
  svg_.text(
      kPadding, 44,
      fmt::format("NIC plan {}; {}", topology_.plan.rule,
                  topology_.machine.gpus.empty() ? "every PE has a colour, which is on its NICs"
                                                 : "the colour of a GPU is on the NICs of its PEs"),
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
