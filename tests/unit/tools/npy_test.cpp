// SPDX-License-Identifier: Apache-2.0
// .npy files: round trips, versions, dtypes, and errors that name the file and the fault.
#include "moe/npy.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "shoal/error.hpp"

namespace shoal::tools {
namespace {

class Npy : public ::testing::Test {
 protected:
  Npy() {
    std::string pattern = (std::filesystem::temp_directory_path() / "shoal-npy-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~Npy() override { std::filesystem::remove_all(directory_); }
  std::string path(const std::string& name = "a.npy") const { return (directory_ / name).string(); }

  /// Writes a file as NumPy would, from its parts.
  std::string write_raw(const std::string& header, const std::string& data,
                        char version = 1) const {
    std::ofstream file(path(), std::ios::binary);
    file.write("\x93NUMPY", 6);
    file.put(version).put(0);
    const auto length = static_cast<std::uint32_t>(header.size());
    file.write(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
    file << header << data;
    return path();
  }

  template <typename Call>
  std::string message(Call call) const {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  std::filesystem::path directory_;
};

TEST_F(Npy, WritesWhatItReads) {
  std::vector<double> values(5 * 3 * 2);
  std::iota(values.begin(), values.end(), -7.5);
  const std::int64_t shape[] = {5, 3, 2};
  NpyWriter writer(path(), DataType::float64, shape);
  writer.append(std::span<const double>(values).first(12));
  writer.append(std::span<const double>(values).subspan(12));
  writer.close();

  NpyReader reader(path());
  EXPECT_EQ(reader.dtype(), DataType::float64);
  EXPECT_EQ(reader.shape(), std::vector<std::int64_t>({5, 3, 2}));
  EXPECT_EQ(reader.row_size(), 6);
  EXPECT_EQ(reader.read_rows<double>(0, 5), values);
  EXPECT_EQ(reader.read_rows<double>(3, 1),
            std::vector<double>(values.begin() + 18, values.begin() + 24));
  EXPECT_EQ(reader.read_rows<float>(5, 0).size(), 0u);
  EXPECT_EQ(std::filesystem::file_size(path()) % 64, (30 * 8) % 64)
      << "data is aligned to 64 bytes";
}

TEST_F(Npy, ReadsEveryDtype) {
  const std::string half("\x00\x3c\x00\xc0", 4);  // 1, -2
  EXPECT_EQ(NpyReader(write_raw("{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }", half))
                .read_rows<float>(0, 2),
            (std::vector<float>{1, -2}));
  const std::int32_t ints[] = {-5, 7};
  const std::string int_bytes(reinterpret_cast<const char*>(ints), 8);
  NpyReader reader(
      write_raw("{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2)}", int_bytes, 2));
  EXPECT_EQ(reader.read_rows<std::int64_t>(0, 1), (std::vector<std::int64_t>{-5, 7}));
  EXPECT_EQ(reader.read_rows<float>(0, 1), (std::vector<float>{-5, 7}));
  const std::int64_t wide = -(std::int64_t{1} << 40);
  NpyReader scalar(write_raw("{\"descr\": \"<i8\", \"fortran_order\": False, \"shape\": ()}",
                             std::string(reinterpret_cast<const char*>(&wide), 8)));
  EXPECT_EQ(scalar.read_rows<std::int64_t>(0, 1), std::vector<std::int64_t>{wide});
}

TEST_F(Npy, NamesTheFault) {
  const auto open = [&](const std::string& header, const std::string& data = "") {
    return message([&] { NpyReader reader(write_raw(header, data)); });
  };
  EXPECT_NE(message([&] {
              NpyReader reader(path("missing.npy"));
            }).find("missing.npy: cannot be opened: No such file"),
            std::string::npos);
  EXPECT_NE(open("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }").find("dtype '<c8'"),
            std::string::npos);
  EXPECT_NE(open("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }").find("dtype '>f4'"),
            std::string::npos);
  EXPECT_NE(
      open("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2), }").find("Fortran order"),
      std::string::npos);
  EXPECT_NE(open("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", "1234")
                .find("4 bytes of data; its shape needs 24"),
            std::string::npos);
  for (const char* damaged :
       {"", "{}", "{'shape': (2,), 'fortran_order': False, 'descr':",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }"})
    EXPECT_NE(open(damaged).find("damaged"), std::string::npos) << damaged;
  std::ofstream(path()) << "plain text";
  EXPECT_NE(message([&] { NpyReader reader(path()); }).find("not a .npy file"), std::string::npos);
  EXPECT_NE(message([&] { NpyReader reader(write_raw("{}", "", 3)); }).find("version 3"),
            std::string::npos);
}

TEST_F(Npy, ChecksShapesAndRows) {
  NpyReader reader(write_raw("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                             std::string(24, '\0')));
  const std::string_view names[] = {"tokens", "hidden"};
  reader.require_shape(std::vector<std::int64_t>{-1, 3}, names);
  EXPECT_NE(message([&] {
              reader.require_shape(std::vector<std::int64_t>{-1, 4}, names);
            }).find("float32 [2, 3]; allowed: an array [tokens, hidden 4]"),
            std::string::npos);
  EXPECT_NE(message([&] { reader.read_rows<float>(1, 2); }).find("rows 1 to 3"), std::string::npos);
  EXPECT_NE(message([&] { reader.read_rows<std::int64_t>(0, 1); }).find("allowed: integers"),
            std::string::npos);
}

TEST_F(Npy, WriterCountsElements) {
  const std::int64_t shape[] = {2, 2};
  const std::vector<float> row = {1, 2};
  NpyWriter writer(path(), DataType::float32, shape);
  writer.append(std::span<const float>(row));
  EXPECT_NE(message([&] { writer.close(); }).find("2 elements fewer"), std::string::npos);
  writer.append(std::span<const float>(row));
  EXPECT_NE(message([&] { writer.append(std::span<const float>(row)); }).find("more elements"),
            std::string::npos);
  EXPECT_NE(message([&] {
              NpyWriter other("/nonexistent/a.npy", DataType::float32, shape);
            }).find("cannot be written"),
            std::string::npos);
}

}  // namespace
}  // namespace shoal::tools
