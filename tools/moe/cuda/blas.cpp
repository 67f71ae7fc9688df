// SPDX-License-Identifier: Apache-2.0
#include "moe/cuda/blas.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <library_types.h>

#include <filesystem>
#include <vector>

#include "base/check.hpp"

namespace shoal::moe {

namespace {

// The part of cublasLt.h and cublas_api.h that this file uses. Only the library creates and reads
// descriptors.
using Status = int;  // cublasStatus_t; 0: success
struct Algorithm {   // cublasLtMatmulAlgo_t: opaque, but copied by value
  std::uint64_t data[8];
};
struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  std::size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

constexpr int kComputeFloat32 = 68;    // CUBLAS_COMPUTE_32F
constexpr int kMaxWorkspaceBytes = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, a uint64_t
constexpr const char* kToolkit = "/usr/local/cuda/lib64";
constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

}  // namespace

struct CublasLtFunctions {
  std::size_t (*version)();
  const char* (*status_name)(Status);
  Status (*create)(void**);
  Status (*destroy)(void*);
  Status (*description_create)(void**, int compute_type, cudaDataType scale_type);
  Status (*description_destroy)(void*);
  Status (*layout_create)(void**, cudaDataType type, std::uint64_t rows, std::uint64_t columns,
                          std::int64_t leading_dimension);
  Status (*layout_destroy)(void*);
  Status (*preference_create)(void**);
  Status (*preference_destroy)(void*);
  Status (*preference_set)(void*, int attribute, const void* value, std::size_t bytes);
  Status (*heuristic)(void* handle, void* description, void* a, void* b, void* c, void* d,
                      void* preference, int wanted, HeuristicResult* results, int* found);
  Status (*matmul)(void* handle, void* description, const void* alpha, const void* a,
                   void* a_layout, const void* b, void* b_layout, const void* beta, const void* c,
                   void* c_layout, void* d, void* d_layout, const Algorithm* algorithm,
                   void* workspace, std::size_t workspace_bytes, cudaStream_t stream);
};

namespace {

void check(const CublasLtFunctions& library, Status status, const char* what) {
  require(status == 0, Code::system, "{}: {} ({})", what, library.status_name(status), status);
}

template <typename Function>
void resolve(void* library, const char* path, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  require(function != nullptr, Code::unsupported,
          "--backend cuda: {} has no {}; allowed: cuBLASLt of CUDA 12 or 13 (--cublaslt)", path,
          name);
}

std::shared_ptr<const CublasLtFunctions> resolve_all(void* library, const char* path) {
  auto functions = std::make_shared<CublasLtFunctions>();
  resolve(library, path, "cublasLtGetVersion", functions->version);
  resolve(library, path, "cublasLtGetStatusName", functions->status_name);
  resolve(library, path, "cublasLtCreate", functions->create);
  resolve(library, path, "cublasLtDestroy", functions->destroy);
  resolve(library, path, "cublasLtMatmulDescCreate", functions->description_create);
  resolve(library, path, "cublasLtMatmulDescDestroy", functions->description_destroy);
  resolve(library, path, "cublasLtMatrixLayoutCreate", functions->layout_create);
  resolve(library, path, "cublasLtMatrixLayoutDestroy", functions->layout_destroy);
  resolve(library, path, "cublasLtMatmulPreferenceCreate", functions->preference_create);
  resolve(library, path, "cublasLtMatmulPreferenceDestroy", functions->preference_destroy);
  resolve(library, path, "cublasLtMatmulPreferenceSetAttribute", functions->preference_set);
  resolve(library, path, "cublasLtMatmulAlgoGetHeuristic", functions->heuristic);
  resolve(library, path, "cublasLtMatmul", functions->matmul);
  return functions;
}

std::vector<std::string> candidates(const std::string& path) {
  std::vector<std::string> found;
  if (!path.empty() && !std::filesystem::is_directory(path)) return {path};
  for (const char* name : kNames)
    found.push_back(path.empty() ? name : (std::filesystem::path(path) / name).string());
  if (path.empty())
    for (const char* name : kNames) found.push_back(fmt::format("{}/{}", kToolkit, name));
  return found;
}

/// A descriptor that the library creates; freed with the object.
std::shared_ptr<void> owned(std::shared_ptr<const CublasLt> library, void* made,
                            Status (*destroy)(void*)) {
  return {made, [library = std::move(library), destroy](void* object) { destroy(object); }};
}

std::shared_ptr<void> make_layout(const std::shared_ptr<const CublasLt>& library, cudaDataType type,
                                  std::int64_t rows, std::int64_t columns) {
  const CublasLtFunctions& functions = library->functions();
  void* layout = nullptr;
  check(functions,
        functions.layout_create(&layout, type, static_cast<std::uint64_t>(rows),
                                static_cast<std::uint64_t>(columns), rows),
        "cublasLtMatrixLayoutCreate");
  return owned(library, layout, functions.layout_destroy);
}

}  // namespace

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clear the error, so that the next launch reports its own
  fail(Code::system, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

std::shared_ptr<const CublasLt> CublasLt::load(const std::string& path) {
  std::string tried;
  for (const std::string& candidate : candidates(path)) {
    void* const library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      auto loaded = std::make_shared<CublasLt>();
      loaded->functions_ = resolve_all(library, candidate.c_str());
      return loaded;
    }
    const char* const reason = dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", reason == nullptr ? candidate : reason);
  }
  fail(
      Code::unsupported,
      "--backend cuda needs the library cuBLASLt, which could not be opened ({}). --cublaslt PATH names it or its "
      "folder, as LD_LIBRARY_PATH does; it comes with the CUDA toolkit (lib64) and with Python's nvidia-cublas "
      "packages (nvidia/cublas/lib, nvidia/cu13/lib)",
      tried);
}

std::string CublasLt::version() const {
  const std::size_t number = functions_->version();  // 120905 for 12.9.5
  return fmt::format("cuBLASLt {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

struct Products::Plan {
  std::shared_ptr<void> x, d;
  Algorithm algorithm{};
  std::size_t workspace_bytes = 0;
};

// cuBLASLt's matrices are column-major: a row-major matrix [r, c] is its [c, r] with leading
// dimension c. The row-major product d = x * w is therefore D [columns, rows] = W [columns, inner]
// * X [inner, rows]: A is w, B is x, neither is transposed.
Products::Products(std::shared_ptr<const CublasLt> library, std::int64_t columns,
                   std::int64_t inner)
    : library_(std::move(library)), columns_(columns), inner_(inner) {
  const CublasLtFunctions& functions = library_->functions();
  void* made = nullptr;
  check(functions, functions.create(&made), "cublasLtCreate");
  handle_ = owned(library_, made, functions.destroy);
  check(functions, functions.description_create(&made, kComputeFloat32, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  description_ = owned(library_, made, functions.description_destroy);
  check(functions, functions.preference_create(&made), "cublasLtMatmulPreferenceCreate");
  preference_ = owned(library_, made, functions.preference_destroy);
  const std::uint64_t workspace = kWorkspaceBytes;
  check(functions, functions.preference_set(made, kMaxWorkspaceBytes, &workspace, sizeof workspace),
        "cublasLtMatmulPreferenceSetAttribute");
  weights_ = make_layout(library_, CUDA_R_16BF, columns_, inner_);
}

Products::~Products() = default;

const Products::Plan& Products::plan(std::int64_t rows) {
  if (const auto known = plans_.find(rows); known != plans_.end()) return known->second;
  const CublasLtFunctions& functions = library_->functions();
  Plan plan;
  plan.x = make_layout(library_, CUDA_R_16BF, inner_, rows);
  plan.d = make_layout(library_, CUDA_R_32F, columns_, rows);
  HeuristicResult best{};
  int found = 0;
  const Status status =
      functions.heuristic(handle_.get(), description_.get(), weights_.get(), plan.x.get(),
                          plan.d.get(), plan.d.get(), preference_.get(), 1, &best, &found);
  require(status == 0 && found > 0 && best.state == 0, Code::unsupported,
          "{} has no algorithm for bfloat16 [{}, {}] * [{}, {}] into float32 on this GPU: {}",
          library_->version(), rows, inner_, inner_, columns_,
          functions.status_name(status != 0 ? status : best.state));
  plan.algorithm = best.algorithm;
  plan.workspace_bytes = best.workspace_bytes;
  return plans_.emplace(rows, std::move(plan)).first->second;
}

void Products::run(const void* x, const void* w, float* d, std::int64_t rows, void* workspace,
                   cudaStream_t stream) {
  const CublasLtFunctions& functions = library_->functions();
  const Plan& chosen = plan(rows);
  const float one = 1, zero = 0;
  check(functions,
        functions.matmul(handle_.get(), description_.get(), &one, w, weights_.get(), x,
                         chosen.x.get(), &zero, d, chosen.d.get(), d, chosen.d.get(),
                         &chosen.algorithm, workspace, kWorkspaceBytes, stream),
        "cublasLtMatmul");
}

}  // namespace shoal::moe
