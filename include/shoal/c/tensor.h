// SPDX-License-Identifier: Apache-2.0
// shoal/c/tensor.h: arrays as arguments and results (shoal/tensor.hpp).
#ifndef SHOAL_C_TENSOR_H
#define SHOAL_C_TENSOR_H

#include <shoal/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  SHOAL_NONE = 0,  ///< undefined: an absent tensor of a result
  SHOAL_FLOAT32 = 1,
  SHOAL_FLOAT16 = 2,
  SHOAL_BFLOAT16 = 3,
  SHOAL_FLOAT8_E4M3 = 4,
  SHOAL_INT8 = 5,
  SHOAL_UINT8 = 6,
  SHOAL_INT32 = 7,
  SHOAL_INT64 = 8,
  SHOAL_FLOAT64 = 9
};
enum { SHOAL_HOST = 0, SHOAL_CUDA = 1 };

/// An array of one to four dimensions, not owned. The struct never changes, so it has no size.
typedef struct shoal_tensor {
  void* data;
  int64_t shape[4];
  int64_t strides[4];    ///< in elements
  int32_t dtype;         ///< SHOAL_FLOAT32 and so on
  int32_t rank;          ///< dimensions: the elements of shape and strides in use
  int32_t device;        ///< SHOAL_HOST or SHOAL_CUDA
  int32_t device_index;  ///< GPU, as CUDA numbers them; 0 on the host
} shoal_tensor;

/// Makes a contiguous, row-major tensor on the host. rank: 1 to 4. shape: `rank` numbers, each 0 or
/// more. For GPU memory set device and device_index afterwards.
SHOAL_API shoal_status shoal_tensor_init(shoal_tensor* tensor, void* data, int32_t dtype,
                                         int32_t rank, const int64_t* shape);

/// The initial value of a tensor: undefined.
#define SHOAL_TENSOR_NONE {NULL, {0, 0, 0, 0}, {0, 0, 0, 0}, SHOAL_NONE, 0, SHOAL_HOST, 0}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_TENSOR_H
