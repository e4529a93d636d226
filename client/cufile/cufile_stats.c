/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements the counters of cuFile. */
#include "client/cufile/cufile_stats.h"

#include <pthread.h>
#include <string.h>

#include "client/cufile/cufile_config.h"
#include "client/cufile/cufile_log.h"
#include "support/clock.h"
#include "support/page.h"

/*
 * Stores the counters of level 3, which includes the other levels. All GPUs
 * share one set of counters. Bytes on the mount's GPU path count as peer to
 * peer. Bytes through the pipeline or the mount's host memory count as POSIX.
 */
static struct {
    pthread_mutex_t lock; /* protects the rest */
    CUfileStatsLevel3_t sums;
    uint64_t begun_ns; /* 0: not started */
    int level;         /* -1: level of the configuration */
    bool stopped;
} stats = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP, .level = -1};

#define BASIC (stats.sums.detailed.basic)
#define GPU   (stats.sums.per_gpu_stats[0])

void cufile_stats_forked(void)
{
    pthread_mutex_init(&stats.lock, NULL);
}

/* --- Counting -------------------------------------------------------------------------------- */

static void stats_count(CUfileOpCounter_t *c, bool failed)
{
    c->ok += !failed;
    c->err += failed;
}

void cufile_stats_count(size_t stat, int err)
{
    pthread_mutex_lock(&stats.lock);
    if (!stats.stopped)
        stats_count((void *)((char *)&BASIC + stat), err != 0);
    if (!stats.stopped && stat == CUFILE_STAT(buf_deregister) && !err)
        GPU.n_mmap_free++;
    pthread_mutex_unlock(&stats.lock);
}

void cufile_stats_buffer(size_t len, int err)
{
    pthread_mutex_lock(&stats.lock);
    if (!stats.stopped) {
        stats_count(&BASIC.buf_register_ops, err != 0);
        GPU.n_mmap++;
        GPU.n_mmap_ok += !err;
        GPU.n_mmap_err += err != 0;
        GPU.reg_bytes += err ? 0 : len;
    }
    pthread_mutex_unlock(&stats.lock);
}

/*
 * Returns the class of a size, by powers of two: the first one is below 1 KiB,
 * and the last one has all longer sizes.
 */
static unsigned size_class(size_t bytes)
{
    unsigned i = 0;

    for (size_t kib = bytes >> 10; kib && i < 31; kib >>= 1)
        i++;
    return i;
}

static bool is_unaligned(const struct cufile_transfer *t)
{
    return t->file_offset % PAGE_BYTES || t->size % PAGE_BYTES;
}

static void stats_count_read(const struct cufile_transfer *t, ssize_t bytes, uint32_t path,
                             uint64_t us)
{
    stats_count(&BASIC.read_ops, bytes < 0);
    GPU.n_total_reads++;
    GPU.n_reads_err += bytes < 0;
    GPU.n_p2p_reads += path == GPUNVME_PATH_GPU;
    GPU.n_posix_reads += path > GPUNVME_PATH_GPU;
    GPU.n_unaligned_reads += is_unaligned(t);
    GPU.read_duration_us += us;
    BASIC.read_lat_sum_us += us;
    if (bytes < 0)
        return;
    GPU.read_bytes += (uint64_t)bytes;
    BASIC.read_bytes += (uint64_t)bytes;
    stats.sums.detailed.read_size_kb_hist[size_class(t->size)]++;
}

static void count_write(const struct cufile_transfer *t, ssize_t bytes, uint32_t path, uint64_t us)
{
    stats_count(&BASIC.write_ops, bytes < 0);
    GPU.n_total_writes++;
    GPU.n_writes_err += bytes < 0;
    GPU.n_p2p_writes += path == GPUNVME_PATH_GPU;
    GPU.n_posix_writes += path > GPUNVME_PATH_GPU;
    GPU.n_unaligned_writes += is_unaligned(t);
    GPU.write_duration_us += us;
    BASIC.write_lat_sum_us += us;
    if (bytes < 0)
        return;
    GPU.writes_bytes += (uint64_t)bytes;
    BASIC.write_bytes += (uint64_t)bytes;
    stats.sums.detailed.write_size_kb_hist[size_class(t->size)]++;
}

void cufile_stats_transfer(const struct cufile_transfer *t, ssize_t bytes,
                           const struct gpunvme_result *result)
{
    uint64_t us = (now_ns() - t->begun_ns) / 1000;

    pthread_mutex_lock(&stats.lock);
    if (!stats.begun_ns)
        stats.begun_ns = t->begun_ns;
    if (!stats.stopped && t->write)
        count_write(t, bytes, result->path, us);
    else if (!stats.stopped)
        stats_count_read(t, bytes, result->path, us);
    pthread_mutex_unlock(&stats.lock);
}

void cufile_stats_vector(bool write, ssize_t bytes)
{
    pthread_mutex_lock(&stats.lock);
    if (!stats.stopped) {
        stats_count(write ? &BASIC.writev_ops : &BASIC.readv_ops, bytes < 0);
        *(write ? &BASIC.writev_bytes : &BASIC.readv_bytes) += bytes > 0 ? (uint64_t)bytes : 0;
    }
    pthread_mutex_unlock(&stats.lock);
}

void cufile_stats_log(void)
{
    pthread_mutex_lock(&stats.lock);
    cufile_log(CUFILE_LOG_INFO,
               "totals: %llu reads of %llu bytes (GPU path %llu, bounce path %llu), %llu writes of "
               "%llu bytes (GPU path %llu, bounce path %llu), %llu errors",
               (unsigned long long)GPU.n_total_reads, (unsigned long long)GPU.read_bytes,
               (unsigned long long)GPU.n_p2p_reads, (unsigned long long)GPU.n_posix_reads,
               (unsigned long long)GPU.n_total_writes, (unsigned long long)GPU.writes_bytes,
               (unsigned long long)GPU.n_p2p_writes, (unsigned long long)GPU.n_posix_writes,
               (unsigned long long)(GPU.n_reads_err + GPU.n_writes_err));
    pthread_mutex_unlock(&stats.lock);
}

/* --- cuFile's -------------------------------------------------------------------------------- */

/* The caller holds the lock. */
static int level(void)
{
    if (stats.level < 0)
        stats.level = (int)cufile_config()->sizes[CUFILE_PARAM_PROFILE_STATS];
    return stats.level;
}

CUfileError_t cuFileSetStatsLevel(int wanted)
{
    if (wanted < 0 || wanted > 3)
        return cufile_status(CU_FILE_INVALID_VALUE);
    pthread_mutex_lock(&stats.lock);
    stats.level = wanted;
    pthread_mutex_unlock(&stats.lock);
    return cufile_status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileGetStatsLevel(int *out)
{
    if (!out)
        return cufile_status(CU_FILE_INVALID_VALUE);
    pthread_mutex_lock(&stats.lock);
    *out = level();
    pthread_mutex_unlock(&stats.lock);
    return cufile_status(CU_FILE_SUCCESS);
}

static CUfileError_t set_stopped(bool stopped)
{
    pthread_mutex_lock(&stats.lock);
    stats.stopped = stopped;
    pthread_mutex_unlock(&stats.lock);
    return cufile_status(CU_FILE_SUCCESS);
}

CUfileError_t cuFileStatsStart(void)
{
    return set_stopped(false);
}

CUfileError_t cuFileStatsStop(void)
{
    return set_stopped(true);
}

CUfileError_t cuFileStatsReset(void)
{
    pthread_mutex_lock(&stats.lock);
    memset(&stats.sums, 0, sizeof(stats.sums));
    stats.begun_ns = 0;
    pthread_mutex_unlock(&stats.lock);
    return cufile_status(CU_FILE_SUCCESS);
}

static uint64_t per_second(uint64_t n, uint64_t ns)
{
    return ns ? (uint64_t)((double)n * 1e9 / (double)ns) : 0;
}

static uint64_t mean(uint64_t sum, const CUfileOpCounter_t *ops)
{
    return ops->ok + ops->err ? sum / (ops->ok + ops->err) : 0;
}

/* The caller holds the lock. Computes rates and means from the sums. */
static void derive(void)
{
    uint64_t ns = stats.begun_ns ? now_ns() - stats.begun_ns : 0;

    BASIC.read_bw_bytes_per_sec = GPU.read_bw_bytes_per_sec = per_second(BASIC.read_bytes, ns);
    BASIC.write_bw_bytes_per_sec = GPU.write_bw_bytes_per_sec = per_second(BASIC.write_bytes, ns);
    BASIC.read_ops_per_sec = per_second(BASIC.read_ops.ok, ns);
    BASIC.write_ops_per_sec = per_second(BASIC.write_ops.ok, ns);
    BASIC.read_lat_avg_us = mean(BASIC.read_lat_sum_us, &BASIC.read_ops);
    BASIC.write_lat_avg_us = mean(BASIC.write_lat_sum_us, &BASIC.write_ops);
    stats.sums.num_gpus = 1;
}

static CUfileError_t stats_get(void *out, const void *from, size_t len, int least)
{
    pthread_mutex_lock(&stats.lock);
    bool ok = out && level() >= least;
    if (ok) {
        derive();
        memcpy(out, from, len);
    }
    pthread_mutex_unlock(&stats.lock);
    return cufile_status(ok ? CU_FILE_SUCCESS : CU_FILE_INVALID_VALUE);
}

CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t *out)
{
    return stats_get(out, &BASIC, sizeof(*out), 1);
}

CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t *out)
{
    return stats_get(out, &stats.sums.detailed, sizeof(*out), 2);
}

CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *out)
{
    return stats_get(out, &stats.sums, sizeof(*out), 3);
}
