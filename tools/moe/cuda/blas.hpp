// SPDX-License-Identifier: Apache-2.0
// blas.hpp: matrix products through cuBLASLt, opened at run time, so that neither build nor bundle
// needs the library.
//
// The declarations in the .cpp file are those of the documented C interface, which is the same in
// CUDA 12 and 13.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace shoal::moe {

/// Throws Error{system} with CUDA's name and text of the error and what was being done.
void check_cuda(cudaError_t status, const char* what);

struct CublasLtFunctions;

/// The library. Stays loaded for the rest of the process.
class CublasLt {
 public:
  /// `path`: the library or its folder; empty: libcublasLt.so.13 or .12 where the dynamic linker
  /// finds libraries (LD_LIBRARY_PATH), then the CUDA toolkit's usual folder. Throws
  /// Error{unsupported} naming what was tried, the reason and --cublaslt.
  static std::shared_ptr<const CublasLt> load(const std::string& path);

  const CublasLtFunctions& functions() const { return *functions_; }
  std::string version() const;  ///< "cuBLASLt 13.1.0"

 private:
  std::shared_ptr<const CublasLtFunctions> functions_;
};

/// Products of one shape but for the number of rows, in row-major terms
///   d [rows, columns] = x [rows, inner] * w [inner, columns]
/// x, w: bfloat16; d: float32, summed in float32. All start at multiples of 256 bytes. For one
/// stream and one thread.
class Products {
 public:
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32}
                                                 << 20;  // what the kernels for Hopper ask for
  static constexpr std::size_t kAlignment = 256;

  /// Made for the current GPU. columns, inner: multiples of 8.
  Products(std::shared_ptr<const CublasLt> library, std::int64_t columns, std::int64_t inner);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// rows >= 1. workspace: kWorkspaceBytes of GPU memory that nothing else on the GPU uses
  /// meanwhile. Throws Error{system} or, where the library knows no way for this shape on this GPU,
  /// Error{unsupported}.
  void run(const void* x, const void* w, float* d, std::int64_t rows, void* workspace,
           cudaStream_t stream);

 private:
  struct Plan;
  const Plan& plan(std::int64_t rows);

  std::shared_ptr<const CublasLt> library_;
  std::int64_t columns_, inner_;
  std::shared_ptr<void> handle_, description_, preference_, weights_;
  std::map<std::int64_t, Plan>
      plans_;  ///< by rows: choosing an algorithm takes longer than a small product
};

}  // namespace shoal::moe
