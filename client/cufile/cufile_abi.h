/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the binary interface of cuFile 1.20. This file was written from the
 * names, numbers, sizes and offsets that programs depend on. All values are the
 * same on x86-64 and aarch64.
 */
#ifndef CLIENT_CUFILE_CUFILE_ABI_H
#define CLIENT_CUFILE_CUFILE_ABI_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>
#include <sys/types.h>
#include <time.h>

__BEGIN_DECLS

#define CUFILE_VERSION 1200 /* 1000 x major + 10 x minor */

/* Names the cuFile errors that this library returns. */
enum {
    CU_FILE_SUCCESS = 0,
    CU_FILE_DRIVER_NOT_INITIALIZED = 5001,
    CU_FILE_PLATFORM_NOT_SUPPORTED = 5007,
    CU_FILE_IO_NOT_SUPPORTED = 5008,
    CU_FILE_CUDA_DRIVER_ERROR = 5011,
    CU_FILE_CUDA_POINTER_RANGE_ERROR = 5014,
    CU_FILE_INVALID_FILE_TYPE = 5018,
    CU_FILE_INVALID_VALUE = 5022,
    CU_FILE_MEMORY_ALREADY_REGISTERED = 5023,
    CU_FILE_MEMORY_NOT_REGISTERED = 5024,
    CU_FILE_PERMISSION_DENIED = 5025,
    CU_FILE_DRIVER_ALREADY_OPEN = 5026,
    CU_FILE_HANDLE_NOT_REGISTERED = 5027,
    CU_FILE_DEVICE_NOT_FOUND = 5029,
    CU_FILE_INTERNAL_ERROR = 5030,
    CU_FILE_BATCH_SUBMIT_FAILED = 5035,
    CU_FILE_BATCH_FULL = 5037,
    CU_FILE_ASYNC_NOT_SUPPORTED = 5038,
    CU_FILE_NOMEM_ERROR = 5043,
    CU_FILE_IO_ERROR = 5044,
};

typedef struct {
    int32_t err;
    int32_t cu_err; /* CUDA error if err is CU_FILE_CUDA_DRIVER_ERROR */
} CUfileError_t;
static_assert(sizeof(CUfileError_t) == 8, "error");

typedef void *CUfileHandle_t;
typedef void *CUfileBatchHandle_t;
typedef void *CUstream_t;

/* --- Files ----------------------------------------------------------------------------------- */

enum { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1 };

typedef struct {
    int32_t type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
} CUfileDescr_t;
static_assert(sizeof(CUfileDescr_t) == 24, "descriptor");
static_assert(offsetof(CUfileDescr_t, handle) == 8, "descriptor.handle");

typedef struct {
    void *base;
    size_t len;
} CUfileIOVec_t;
static_assert(sizeof(CUfileIOVec_t) == 16, "iovec");

/* --- Driver ---------------------------------------------------------------------------------- */

enum { CU_FILE_NVME_SUPPORTED = 4, CU_FILE_MAX_TARGET_TYPES = 15 };
enum { CU_FILE_USE_POLL_MODE = 0, CU_FILE_ALLOW_COMPAT_MODE = 1 };
enum { CU_FILE_BATCH_IO_SUPPORTED = 1, CU_FILE_STREAMS_SUPPORTED, CU_FILE_PARALLEL_IO_SUPPORTED };

typedef struct {
    struct {
        uint32_t major_version, minor_version;
        size_t poll_thresh_size;
        size_t max_direct_io_size;
        uint32_t dstatusflags;
        uint32_t dcontrolflags;
    } nvfs;
    uint32_t fflags;
    uint32_t max_device_cache_size; /* KiB, as are the next two */
    uint32_t per_buffer_cache_size;
    uint32_t max_device_pinned_mem_size;
    uint32_t max_batch_io_size; /* entries */
    uint32_t max_batch_io_timeout_msecs;
} CUfileDrvProps_t;
static_assert(sizeof(CUfileDrvProps_t) == 56, "properties");
static_assert(offsetof(CUfileDrvProps_t, nvfs.dstatusflags) == 24, "properties.nvfs");
static_assert(offsetof(CUfileDrvProps_t, fflags) == 32, "properties.fflags");

/* --- Batches --------------------------------------------------------------------------------- */

enum { CUFILE_READ, CUFILE_WRITE };
enum { CUFILE_BATCH = 1 };
enum {
    CUFILE_WAITING = 0x01,
    CUFILE_PENDING = 0x02,
    CUFILE_INVALID = 0x04,
    CUFILE_CANCELED = 0x08,
    CUFILE_COMPLETE = 0x10,
    CUFILE_TIMEOUT = 0x20,
    CUFILE_FAILED = 0x40,
};

typedef struct {
    int32_t mode;
    struct {
        void *devPtr_base;
        off_t file_offset;
        off_t devPtr_offset;
        size_t size;
    } batch;
    CUfileHandle_t fh;
    int32_t opcode;
    void *cookie;
} CUfileIOParams_t;
static_assert(sizeof(CUfileIOParams_t) == 64, "batch entry");
static_assert(offsetof(CUfileIOParams_t, batch) == 8, "batch entry's range");
static_assert(offsetof(CUfileIOParams_t, fh) == 40, "batch entry's file");
static_assert(offsetof(CUfileIOParams_t, cookie) == 56, "batch entry's cookie");

typedef struct {
    void *cookie;
    int32_t status;
    size_t ret; /* bytes, or a negative error */
} CUfileIOEvents_t;
static_assert(sizeof(CUfileIOEvents_t) == 24, "batch event");
static_assert(offsetof(CUfileIOEvents_t, ret) == 16, "batch event's result");

/* --- Parameters ------------------------------------------------------------------------------ */

enum {
    CUFILE_PARAM_PROFILE_STATS,
    CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH,
    CUFILE_PARAM_EXECUTION_MAX_IO_THREADS,
    CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB,
    CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM,
    CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE,
    CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB,
    CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS,
    CUFILE_SIZE_PARAMS
};
enum {
    CUFILE_PARAM_PROPERTIES_USE_POLL_MODE,
    CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE,
    CUFILE_PARAM_FORCE_COMPAT_MODE,
    CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE,
    CUFILE_PARAM_EXECUTION_PARALLEL_IO,
    CUFILE_PARAM_PROFILE_NVTX,
    CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY,
    CUFILE_PARAM_USE_PCIP2PDMA,
    CUFILE_PARAM_PREFER_IO_URING,
    CUFILE_PARAM_FORCE_ODIRECT_MODE,
    CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION,
    CUFILE_PARAM_STREAM_MEMOPS_BYPASS,
    CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE,
    CUFILE_PARAM_GDS_FALLBACK_IO,
    CUFILE_BOOL_PARAMS
};
enum {
    CUFILE_PARAM_LOGGING_LEVEL,
    CUFILE_PARAM_ENV_LOGFILE_PATH,
    CUFILE_PARAM_LOG_DIR,
    CUFILE_PARAM_RDMA_TRANSPORT,
    CUFILE_STRING_PARAMS
};

/* --- Statistics ------------------------------------------------------------------------------ */

typedef struct {
    uint64_t ok, err;
} CUfileOpCounter_t;

typedef struct {
    CUfileOpCounter_t read_ops, write_ops, hdl_register_ops, hdl_deregister_ops, buf_register_ops,
        buf_deregister_ops;
    uint64_t read_bytes, write_bytes, read_bw_bytes_per_sec, write_bw_bytes_per_sec;
    uint64_t read_lat_avg_us, write_lat_avg_us, read_ops_per_sec, write_ops_per_sec;
    uint64_t read_lat_sum_us, write_lat_sum_us;
    CUfileOpCounter_t batch_submit_ops, batch_complete_ops, batch_setup_ops, batch_cancel_ops,
        batch_destroy_ops, batch_enqueued_ops, batch_posix_enqueued_ops, batch_processed_ops,
        batch_posix_processed_ops, batch_nvfs_submit_ops, batch_p2p_submit_ops,
        batch_aio_submit_ops, batch_iouring_submit_ops, batch_mixed_io_submit_ops,
        batch_total_submit_ops;
    uint64_t batch_read_bytes, batch_write_bytes, batch_read_bw_bytes, batch_write_bw_bytes;
    uint64_t batch_submit_lat_avg_us, batch_completion_lat_avg_us, batch_submit_ops_per_sec,
        batch_complete_ops_per_sec, batch_submit_lat_sum_us, batch_completion_lat_sum_us,
        last_batch_read_bytes, last_batch_write_bytes;
    CUfileOpCounter_t readv_ops, writev_ops;
    uint64_t readv_bytes, writev_bytes, readv_bw_bytes_per_sec, writev_bw_bytes_per_sec;
    uint64_t readv_lat_avg_us, writev_lat_avg_us, readv_ops_per_sec, writev_ops_per_sec,
        readv_lat_sum_us, writev_lat_sum_us;
} CUfileStatsLevel1_t;
static_assert(sizeof(CUfileStatsLevel1_t) == 624, "statistics, level 1");
static_assert(offsetof(CUfileStatsLevel1_t, batch_submit_ops) == 176, "of batches");
static_assert(offsetof(CUfileStatsLevel1_t, readv_ops) == 512, "of vectors");

typedef struct {
    CUfileStatsLevel1_t basic;
    uint64_t read_size_kb_hist[32];
    uint64_t write_size_kb_hist[32];
} CUfileStatsLevel2_t;
static_assert(sizeof(CUfileStatsLevel2_t) == 1136, "statistics, level 2");

typedef struct {
    char uuid[16];
    uint64_t read_bytes, read_bw_bytes_per_sec, read_utilization, read_duration_us, n_total_reads,
        n_p2p_reads, n_nvfs_reads, n_posix_reads, n_unaligned_reads, n_dr_reads, n_sparse_regions,
        n_inline_regions, n_reads_err;
    uint64_t writes_bytes, write_bw_bytes_per_sec, write_utilization, write_duration_us,
        n_total_writes, n_p2p_writes, n_nvfs_writes, n_posix_writes, n_unaligned_writes,
        n_dr_writes, n_writes_err;
    uint64_t n_mmap, n_mmap_ok, n_mmap_err, n_mmap_free, reg_bytes;
} CUfilePerGpuStats_t;
static_assert(sizeof(CUfilePerGpuStats_t) == 248, "statistics of a GPU");

typedef struct {
    CUfileStatsLevel2_t detailed;
    uint32_t num_gpus;
    CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;
static_assert(sizeof(CUfileStatsLevel3_t) == 5112, "statistics, level 3");
static_assert(offsetof(CUfileStatsLevel3_t, per_gpu_stats) == 1144, "of GPUs");

/* --- Functions ------------------------------------------------------------------------------- */

#pragma GCC visibility push(default)

CUfileError_t cuFileDriverOpen(void);
CUfileError_t cuFileDriverClose(void);
CUfileError_t cuFileDriverClose_v2(void);
long cuFileUseCount(void);
CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *props);
CUfileError_t cuFileDriverSetPollMode(bool poll, size_t kib);
CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t kib);
CUfileError_t cuFileDriverSetMaxCacheSize(size_t kib);
CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t kib);
CUfileError_t cuFileDriverGetP2PFlags(int status_flag, int *p2p_flags);
CUfileError_t cuFileDriverSetP2PFlags(int status_flag, int p2p_flags);
CUfileError_t cuFileGetVersion(int *version);
CUfileError_t cuFileExportPCIeTopology(const char *filename);
CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t *kib);

CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr);
void cuFileHandleDeregister(CUfileHandle_t fh);
CUfileError_t cuFileBufRegister(const void *base, size_t length, int flags);
CUfileError_t cuFileBufDeregister(const void *base);

ssize_t cuFileRead(CUfileHandle_t fh, void *base, size_t size, off_t file_offset, off_t offset);
ssize_t cuFileWrite(CUfileHandle_t fh, const void *base, size_t size, off_t file_offset,
                    off_t offset);
ssize_t cuFileReadv(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t n, off_t file_offset,
                    unsigned flags);
ssize_t cuFileWritev(CUfileHandle_t fh, const CUfileIOVec_t *iov, size_t n, off_t file_offset,
                     unsigned flags);
CUfileError_t cuFileReadAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *file_offset,
                              off_t *offset, ssize_t *bytes, CUstream_t stream);
CUfileError_t cuFileWriteAsync(CUfileHandle_t fh, void *base, size_t *size, off_t *file_offset,
                               off_t *offset, ssize_t *bytes, CUstream_t stream);
CUfileError_t cuFileStreamRegister(CUstream_t stream, unsigned flags);
CUfileError_t cuFileStreamDeregister(CUstream_t stream);

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t *out, unsigned nr);
CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned nr, CUfileIOParams_t *params,
                                  unsigned flags);
CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned min_nr, unsigned *nr,
                                     CUfileIOEvents_t *events, struct timespec *timeout);
CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch);
void cuFileBatchIODestroy(CUfileBatchHandle_t batch);

CUfileError_t cuFileGetParameterSizeT(int param, size_t *value);
CUfileError_t cuFileGetParameterBool(int param, bool *value);
CUfileError_t cuFileGetParameterString(int param, char *value, int len);
CUfileError_t cuFileGetParameterMinMaxValue(int param, size_t *min, size_t *max);
CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t *sizes, size_t *counts, int len);
CUfileError_t cuFileGetParameterGpuBounceBufferSlabArray(size_t *sizes, size_t *counts, int len);
CUfileError_t cuFileSetParameterSizeT(int param, size_t value);
CUfileError_t cuFileSetParameterBool(int param, bool value);
CUfileError_t cuFileSetParameterString(int param, const char *value);
CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t *sizes, const size_t *counts,
                                                   int len);
CUfileError_t cuFileSetParameterGpuBounceBufferSlabArray(const size_t *sizes, const size_t *counts,
                                                         int len);

CUfileError_t cuFileSetStatsLevel(int wanted);
CUfileError_t cuFileGetStatsLevel(int *out);
CUfileError_t cuFileStatsStart(void);
CUfileError_t cuFileStatsStop(void);
CUfileError_t cuFileStatsReset(void);
CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t *out);
CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t *out);
CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *out);

#pragma GCC visibility pop

__END_DECLS

#endif
