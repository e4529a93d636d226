/* SPDX-License-Identifier: BSD-2-Clause */
/* Declares the part of the CUDA driver's ABI that the library uses. */
#ifndef CLIENT_LIB_CUDA_DRIVER_INTERNAL_H
#define CLIENT_LIB_CUDA_DRIVER_INTERNAL_H

#include <pthread.h>
#include <stddef.h>

/* Types of the driver's ABI, with the names of cuda.h. */
typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx *CUcontext;
typedef struct CUstr *CUstream;
typedef struct CUmod *CUmodule;
typedef struct CUfunc *CUfunction;
typedef unsigned long long CUdeviceptr;
typedef struct {
    char bytes[16];
} CUuuid;
typedef struct {
    char reserved[64];
} CUipcMemHandle;

enum {
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
    CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
    CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_MEMHOSTREGISTER_PORTABLE = 1,
    CU_MEMHOSTREGISTER_DEVICEMAP = 2,
    CU_MEMHOSTREGISTER_IOMEMORY = 4,
    CU_MEMHOSTREGISTER_READ_ONLY = 8,
    CU_FUNC_ATTRIBUTE_NUM_REGS = 4,
    CU_STREAM_NON_BLOCKING = 1,
    CU_STREAM_WAIT_VALUE_GEQ = 0,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_READY = 600,
};

#define DRIVER_FUNCTIONS(X)                                                                        \
    X(cuInit, "cuInit", (unsigned))                                                                \
    X(cuGetErrorString, "cuGetErrorString", (CUresult, const char **))                             \
    X(cuDriverGetVersion, "cuDriverGetVersion", (int *))                                           \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                               \
    X(cuDeviceGet, "cuDeviceGet", (CUdevice *, int))                                               \
    X(cuDeviceGetUuid, "cuDeviceGetUuid_v2", (CUuuid *, CUdevice))                                 \
    X(cuDeviceGetName, "cuDeviceGetName", (char *, int, CUdevice))                                 \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", (char *, int, CUdevice))                         \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))               \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice))                       \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                        \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext *))                                        \
    X(cuCtxGetDevice, "cuCtxGetDevice", (CUdevice *))                                              \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", (void *, int, CUdeviceptr))                  \
    X(cuPointerSetAttribute, "cuPointerSetAttribute", (const void *, int, CUdeviceptr))            \
    X(cuMemGetAddressRange, "cuMemGetAddressRange_v2", (CUdeviceptr *, size_t *, CUdeviceptr))     \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", (CUipcMemHandle *, CUdeviceptr))                     \
    X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange",                              \
      (void *, CUdeviceptr, size_t, int, unsigned long long))                                      \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", (unsigned long long *, void *))  \
    X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle",                                \
      (void *, unsigned long long, int, unsigned long long))                                       \
    X(cuMemRelease, "cuMemRelease", (unsigned long long))                                          \
    X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                        \
    X(cuMemFree, "cuMemFree_v2", (CUdeviceptr))                                                    \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                              \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                        \
    X(cuMemHostRegister, "cuMemHostRegister_v2", (void *, size_t, unsigned))                       \
    X(cuMemHostUnregister, "cuMemHostUnregister", (void *))                                        \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", (CUstream *, unsigned, int))       \
    X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", (int *, int *))                  \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream))                                           \
    X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream))                                      \
    X(cuStreamQuery, "cuStreamQuery", (CUstream))                                                  \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", (CUstream, int *))                               \
    X(cuStreamWaitValue32, "cuStreamWaitValue32_v2", (CUstream, CUdeviceptr, unsigned, unsigned))  \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", (CUstream, void (*)(void *), void *))                  \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *))             \
    X(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr, CUdeviceptr, size_t, CUstream))                \
    X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2",                                   \
      (CUdeviceptr *, void *, unsigned))                                                           \
    X(cuModuleLoadData, "cuModuleLoadData", (CUmodule *, const void *))                            \
    X(cuModuleUnload, "cuModuleUnload", (CUmodule))                                                \
    X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))          \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *, int, CUfunction))                          \
    X(cuLaunchKernel, "cuLaunchKernel",                                                            \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
       void **, void **))

#define CUDA_MAX_DEVICES 64

struct cuda_driver {
    void *library;
#define DRIVER_MEMBER(name, symbol, args) CUresult(*name) args;
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
#undef DRIVER_MEMBER
    pthread_mutex_t lock;                         /* protects the retaining of contexts */
    CUcontext _Atomic contexts[CUDA_MAX_DEVICES]; /* primary contexts by ordinal, set once */
};

#endif
