// SPDX-License-Identifier: Apache-2.0
// blas.hpp: matrix products through cuBLASLt. The library is opened at run time: neither the build
// nor the bundle needs it.
//
// blas.cpp declares the documented C interface, which is the same in CUDA 12 and 13.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace shoal::moe {

/// Throws Error{system} with CUDA's name and text of the error and the failed action `what`.
void check_cuda(cudaError_t status, const char* what);

struct CublasLtFunctions;

/// The cuBLASLt library. Stays loaded for the rest of the process.
class CublasLt {
 public:
  /// Opens `path`, the library or its folder. If it is empty, tries libcublasLt.so.13 and .12 by
  /// the dynamic linker's search (LD_LIBRARY_PATH), then in the CUDA toolkit's usual folder. Throws
  /// Error{unsupported} with the names tried, the reason and --cublaslt.
  static std::shared_ptr<const CublasLt> load(const std::string& path);

  const CublasLtFunctions& functions() const { return *functions_; }
  std::string version() const;  ///< "cuBLASLt 13.1.0"

 private:
  std::shared_ptr<const CublasLtFunctions> functions_;
};

/// Matrix products that differ only in the number of rows. In row-major terms
///   d [rows, columns] = x [rows, inner] * w [inner, columns]
/// x and w are bfloat16; d is float32, summed in float32. All start at multiples of 256 bytes. Used
/// on one stream by one thread.
class Products {
 public:
  /// The workspace that the kernels for Hopper need.
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
  static constexpr std::size_t kAlignment = 256;

  /// Prepares products on the current GPU. columns and inner are multiples of 8.
  Products(std::shared_ptr<const CublasLt> library, std::int64_t columns, std::int64_t inner);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Queues a product of at least one row. `workspace` is kWorkspaceBytes of GPU memory that no
  /// other work uses meanwhile. Throws Error{system}, or Error{unsupported} if the library has no
  /// algorithm for this shape on this GPU.
  void run(const void* x, const void* w, float* d, std::int64_t rows, void* workspace,
           cudaStream_t stream);

 private:
  struct Plan;
  const Plan& plan(std::int64_t rows);

  std::shared_ptr<const CublasLt> library_;
  std::int64_t columns_, inner_;
  std::shared_ptr<void> handle_, description_, preference_, weights_;
  /// By rows: choosing an algorithm takes longer than a small product.
  std::map<std::int64_t, Plan> plans_;
};

}  // namespace shoal::moe
