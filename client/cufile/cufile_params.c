/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the calls that get and set parameters and properties. */
#include <stdio.h>
#include <string.h>

#include "client/cufile/cufile_config.h"
#include "client/cufile/cufile_driver.h"

static bool is_within(int param, size_t value)
{
    return param >= 0 && param < CUFILE_SIZE_PARAMS && value >= cufile_params[param].min &&
           value <= cufile_params[param].max;
}

static CUfileError_t invalid(void)
{
    return cufile_status(CU_FILE_INVALID_VALUE);
}

/* Parameters take effect when the driver opens. */
static bool begin_set(void)
{
    if (cufile_driver_is_open())
        return false;
    cufile_config_lock();
    return true;
}

static CUfileError_t end_set(void)
{
    cufile_config_unlock();
    return cufile_status(CU_FILE_SUCCESS);
}

/* --- Get ------------------------------------------------------------------------------------- */

CUfileError_t cuFileGetParameterSizeT(int param, size_t *value)
{
    if (param < 0 || param >= CUFILE_SIZE_PARAMS || !value)
        return invalid();
    cufile_config_lock();
    *value = cufile_config()->sizes[param];
    return end_set();
}

CUfileError_t cuFileGetParameterBool(int param, bool *value)
{
    if (param < 0 || param >= CUFILE_BOOL_PARAMS || !value)
        return invalid();
    cufile_config_lock();
    *value = cufile_config()->bools[param];
    return end_set();
}

CUfileError_t cuFileGetParameterString(int param, char *value, int len)
{
    if (param < 0 || param >= CUFILE_STRING_PARAMS || !value || len <= 0)
        return invalid();
    cufile_config_lock();
    const char *text = cufile_config()->strings[param];
    bool fits = snprintf(value, (size_t)len, "%s", text) < len;
    cufile_config_unlock();
    return cufile_status(fits ? CU_FILE_SUCCESS : CU_FILE_INVALID_VALUE);
}

CUfileError_t cuFileGetParameterMinMaxValue(int param, size_t *min, size_t *max)
{
    if (param < 0 || param >= CUFILE_SIZE_PARAMS || !min || !max)
        return invalid();
    *min = cufile_params[param].min;
    *max = cufile_params[param].max;
    return cufile_status(CU_FILE_SUCCESS);
}

/* --- Set ------------------------------------------------------------------------------------- */

CUfileError_t cuFileSetParameterSizeT(int param, size_t value)
{
    if (!is_within(param, value))
        return invalid();
    if (!begin_set())
        return cufile_status(CU_FILE_DRIVER_ALREADY_OPEN);
    cufile_config()->sizes[param] = value;
    return end_set();
}

CUfileError_t cuFileSetParameterBool(int param, bool value)
{
    if (param < 0 || param >= CUFILE_BOOL_PARAMS)
        return invalid();
    if (!begin_set())
        return cufile_status(CU_FILE_DRIVER_ALREADY_OPEN);
    cufile_config()->bools[param] = value;
    return end_set();
}

CUfileError_t cuFileSetParameterString(int param, const char *value)
{
    if (param < 0 || param >= CUFILE_STRING_PARAMS || !value || strlen(value) >= CUFILE_STRING_MAX)
        return invalid();
    if (!begin_set())
        return cufile_status(CU_FILE_DRIVER_ALREADY_OPEN);
    snprintf(cufile_config()->strings[param], CUFILE_STRING_MAX, "%s", value);
    return end_set();
}

/* --- Properties ------------------------------------------------------------------------------ */

/* Setters of the driver have no effect once it is open. */
static CUfileError_t stage(int param, size_t value)
{
    if (!is_within(param, value))
        return invalid();
    if (begin_set()) {
        cufile_config()->sizes[param] = value;
        cufile_config_unlock();
    }
    return cufile_status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileDriverSetPollMode(bool poll, size_t kib)
{
    CUfileError_t status = stage(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, kib);

    if (!status.err && begin_set()) {
        cufile_config()->bools[CUFILE_PARAM_PROPERTIES_USE_POLL_MODE] = poll;
        cufile_config_unlock();
    }
    return status;
}

CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t kib)
{
    return stage(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, kib);
}

CUfileError_t cuFileDriverSetMaxCacheSize(size_t kib)
{
    return stage(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, kib);
}

CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t kib)
{
    return stage(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, kib);
}

#define CUFILE_NVFS_MAJOR 2u /* the major version of nvidia-fs that cuFile 1.20 is used with */

static uint32_t flag(int bit, bool on)
{
    return on ? 1u << bit : 0;
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t *props)
{
    if (!props)
        return invalid();
    cufile_config_lock();
    const struct cufile_config *c = cufile_config();
    *props = (CUfileDrvProps_t){
        /* Programs take version 0.0 for a machine without GPUDirect Storage. */
        .nvfs = {.major_version = CUFILE_NVFS_MAJOR,
                 .poll_thresh_size = c->sizes[CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB],
                 .max_direct_io_size = c->sizes[CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB],
                 .dstatusflags = 1u << CU_FILE_NVME_SUPPORTED,
                 .dcontrolflags =
                     flag(CU_FILE_USE_POLL_MODE, c->bools[CUFILE_PARAM_PROPERTIES_USE_POLL_MODE]) |
                     flag(CU_FILE_ALLOW_COMPAT_MODE,
                          c->bools[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE])},
        .fflags = 1u << CU_FILE_BATCH_IO_SUPPORTED | 1u << CU_FILE_STREAMS_SUPPORTED |
                  1u << CU_FILE_PARALLEL_IO_SUPPORTED,
        .max_device_cache_size =
            (uint32_t)c->sizes[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB],
        .per_buffer_cache_size =
            (uint32_t)c->sizes[CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB],
        .max_device_pinned_mem_size =
            (uint32_t)c->sizes[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB],
        .max_batch_io_size = (uint32_t)c->sizes[CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE],
        .max_batch_io_timeout_msecs =
            (uint32_t)c->sizes[CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS],
    };
    return end_set();
}

/* The mount determines how bytes reach the GPU: there are no flags. */
CUfileError_t cuFileDriverGetP2PFlags(int status_flag, int *p2p_flags)
{
    if (status_flag < 0 || status_flag >= CU_FILE_MAX_TARGET_TYPES || !p2p_flags)
        return invalid();
    *p2p_flags = 0;
    return cufile_status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileDriverSetP2PFlags(int status_flag, int p2p_flags)
{
    if (status_flag < 0 || status_flag >= CU_FILE_MAX_TARGET_TYPES)
        return invalid();
    return cufile_status(p2p_flags ? CU_FILE_PLATFORM_NOT_SUPPORTED : CU_FILE_SUCCESS);
}

/* --- Calls that describe or configure NVIDIA's driver ---------------------------------------- */

static CUfileError_t params_unsupported(const void *argument)
{
    (void)argument;
    return cufile_status(CU_FILE_PLATFORM_NOT_SUPPORTED);
}

CUfileError_t cuFileExportPCIeTopology(const char *filename)
{
    return params_unsupported(filename);
}

CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t *kib)
{
    return gpu < 0 ? invalid() : params_unsupported(kib);
}

CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t *sizes, size_t *counts, int len)
{
    return !counts || len <= 0 ? invalid() : params_unsupported(sizes);
}

CUfileError_t cuFileGetParameterGpuBounceBufferSlabArray(size_t *sizes, size_t *counts, int len)
{
    return !counts || len <= 0 ? invalid() : params_unsupported(sizes);
}

CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t *sizes, const size_t *counts,
                                                   int len)
{
    return !counts || len <= 0 ? invalid() : params_unsupported(sizes);
}

CUfileError_t cuFileSetParameterGpuBounceBufferSlabArray(const size_t *sizes, const size_t *counts,
                                                         int len)
{
    return !counts || len <= 0 ? invalid() : params_unsupported(sizes);
}
