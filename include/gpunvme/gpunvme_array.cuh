/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lets kernels read the elements of a file like an array in memory, through a
 * cache of its lines. The header is for CUDA C++ with compute capability 8.0 or
 * newer. The code is in headers only.
 *
 *     // host: f by gpunvme_file_open() with GPUNVME_FILE_DIRECT
 *     gpunvme_cache_open(f, 1 << 30, 4096, &c);
 *     kernel<<<blocks, threads, 0, stream>>>(gpunvme_cache_device(c));
 *
 *     // device
 *     gpunvme_array<float> a(cache);
 *     float x;
 *     int err = a.get(i, &x);
 *
 * All functions have these rules in common:
 *  - They return 0 or a number of bytes, or -errno as listed in
 *    gpunvme_device.h. With success every byte is the file's. Destinations may
 *    be any memory that the callers can store to, registered or not: local
 *    variables, shared memory, memory of the GPU.
 *  - The first group that misses a line reads it, and other groups wait for it.
 *    Every wait is bounded by the deadline of a command. A read makes at most
 *    three such waits for each line, or four if the cache keeps lines at the
 *    second touch (gpunvme_cache_set_insertion()).
 *  - If the drive cannot read a line, the bytes are read without it. The same
 *    holds if no line of its set is free, so a cache of few lines never blocks.
 *  - A line whose command was lost stays out of use until
 *    gpunvme_file_renew().
 *  - A warp that loads several elements of one line holds the line
 *    (gpunvme_line) and loads them in place.
 *  - Others must not change the file meanwhile (gpunvme_cache_open(3)).
 *  - Kernels must run in the primary context of the device, and threads of other
 *    blocks may use the cache at the same time.
 *  - A kernel that calls them uses 237 to 255 registers per thread on sm_90,
 *    168 in blocks of 128 threads with __launch_bounds__, and about 140 with
 *    GPUNVME_DEVICE_SMALL. Blocks of 1,024 threads spill some 3,000 bytes.
 */
#ifndef GPUNVME_ARRAY_CUH
#define GPUNVME_ARRAY_CUH

#ifndef __CUDACC__
#error "gpunvme_array.cuh is for CUDA C++"
#endif

#include "gpunvme_device.h" /* in this header's folder */

#include "client/device/gd_cache_elements.h"
#include "client/device/gd_cache_pins.h"

/*
 * Called by all threads of a warp with the same arguments, for one read to
 * memory that all of them can store to. Returns the number of bytes to all of
 * them, less than n only at the end of the file.
 */
static inline __device__ __noinline__ int64_t gpunvme_cache_read_warp(
    const struct gpunvme_device_cache *cache, void *dst, uint64_t n, uint64_t offset)
{
    return gd_cache_pread_warp(cache, (uint64_t)dst, n, offset);
}

/*
 * Called by any threads of a warp, each for a read of its own. Threads that call
 * together are served together, if n is the same. Returns 0, or -ERANGE if the
 * bytes do not end before the file does; dst is not changed then.
 */
static inline __device__ __noinline__ int
gpunvme_cache_read(const struct gpunvme_device_cache *cache, void *dst, uint32_t n, uint64_t offset)
{
    uint32_t mask = __match_any_sync(__activemask(), (unsigned long long)cache);
    struct gd_cache_elements e = {.size = n, .dst = (uint64_t)dst, .offset = offset};
    struct gd_cache_reader reader;
    int err = gd_cache_begin(&reader, gd_group(__match_any_sync(mask, n)), cache);

    if (!err && (offset > reader.end || n > reader.end - offset))
        err = -ERANGE;
    e.left = !err && n;
    gd_cache_read_elements(&reader, &e);
    return err ? err : e.err;
}

/*
 * Called by all threads of a warp with the same arguments. Brings the lines of n
 * bytes into the cache, 32 at a time, and waits for them; lines that other warps
 * are reading are left to those. Returns 0, or the error of one of the lines.
 */
static inline __device__ __noinline__ int
gpunvme_cache_prefetch_warp(const struct gpunvme_device_cache *cache, uint64_t n, uint64_t offset)
{
    struct gd_cache_reader reader;
    int err = gd_cache_begin(&reader, gq_whole_group(), cache);

    return err ? err : gd_cache_prefetch(&reader, n, offset);
}

/* Returns the size of the file in bytes, as it was leased. */
static inline __device__ uint64_t gpunvme_cache_size(const struct gpunvme_device_cache *cache)
{
    return gd_load64(&cache->file->map.end);
}

template <typename T> class gpunvme_line;

/*
 * An array has elements of type T, which can be copied byte by byte, in the
 * file of a cache. An element may lie in two lines, and need not be aligned in
 * the file.
 */
template <typename T> class gpunvme_array
{
    friend class gpunvme_line<T>;

    static_assert(__is_trivially_copyable(T), "elements are copied byte by byte");

  public:
    /* Makes an array of all elements of the file from byte `first` on. */
    __device__ explicit gpunvme_array(const struct gpunvme_device_cache *cache, uint64_t first = 0)
        : cache_(cache), first_(first)
    {
        uint64_t end = gpunvme_cache_size(cache);

        count_ = first < end ? (end - first) / sizeof(T) : 0;
    }

    /*
     * Makes an array of the first `count` of these elements, or of all if there
     * are fewer.
     */
    __device__ gpunvme_array(const struct gpunvme_device_cache *cache, uint64_t first,
                             uint64_t count)
        : gpunvme_array(cache, first)
    {
        count_ = count < count_ ? count : count_;
    }

    __device__ uint64_t size() const { return count_; }

    /*
     * Copies element i. Called by any threads, each for an element of its own.
     * Returns 0, -ERANGE if there is no such element, or another -errno.
     */
    __device__ int get(uint64_t i, T *out) const
    {
        uint64_t at = i < count_ ? first_ + i * sizeof(T) : UINT64_MAX;

        return gpunvme_cache_read(cache_, out, sizeof(T), at);
    }

    /*
     * Copies the n elements from i on to memory that all threads of the warp
     * can store to. Called by all of them with the same arguments. Returns 0,
     * -ERANGE if one of the elements does not exist, or another -errno.
     */
    __device__ int get_warp(uint64_t i, T *out, uint64_t n = 1) const
    {
        if (i > count_ || n > count_ - i)
            return -ERANGE;
        int64_t got = gpunvme_cache_read_warp(cache_, out, n * sizeof(T), first_ + i * sizeof(T));
        return got < 0 ? (int)got : 0;
    }

    /*
     * Brings the lines of the n elements from i on into the cache, as far as
     * there are such elements. Called by all threads of a warp with the same
     * arguments. Returns 0, or the error of one of the lines.
     */
    __device__ int prefetch(uint64_t i, uint64_t n) const
    {
        if (i >= count_)
            return 0;
        n = n < count_ - i ? n : count_ - i;
        return gpunvme_cache_prefetch_warp(cache_, n * sizeof(T), first_ + i * sizeof(T));
    }

  private:
    const struct gpunvme_device_cache *cache_;
    uint64_t first_, count_;
};

/*
 * A line of an array is a reference to a line of the cache, which a warp holds
 * to load its elements in place. A line that is held is not replaced, and its
 * bytes do not change. They are those of the file when hold() returned, also
 * after the leases have ended.
 *
 * All threads of a warp make the object, hold a line, release it and destroy the
 * object together. An object holds one line at a time. A kernel must not end
 * while it holds a line, since the line would then stay in use. If no way of the
 * set is free, because other warps hold or read all of its lines, hold() returns
 * at once without a line, and get() reads the bytes as the array does. So a warp
 * never waits for another one to release a line.
 */
template <typename T> class gpunvme_line
{
  public:
    __device__ explicit gpunvme_line(const gpunvme_array<T> &array) : array_(array) {}
    __device__ ~gpunvme_line() { release(); }
    gpunvme_line(const gpunvme_line &) = delete;
    gpunvme_line &operator=(const gpunvme_line &) = delete;

    /*
     * Holds the line with the first byte of element i instead of the one that
     * the warp held before. Called by all threads of the warp with the same
     * argument. Returns 0, also if no line could be held, -ERANGE if there is no
     * such element, or another -errno.
     */
    __device__ int hold(uint64_t i)
    {
        release();
        if (i >= array_.count_)
            return -ERANGE;
        return hold_at(array_.cache_, array_.first_ + i * sizeof(T), &held_);
    }

    /* Called by all threads of the warp. */
    __device__ void release() { gd_cache_release(&held_); }

    /*
     * Returns the address of element i until release(). Returns NULL if the
     * element is not aligned or does not lie completely in a line that is held.
     * Called by any threads of the warp.
     */
    __device__ const T *at(uint64_t i) const
    {
        uint64_t place = array_.first_ + i * sizeof(T) - held_.offset;
        uint64_t address = held_.address + place;

        if (!held_.word || i >= array_.count_ || place > held_.bytes ||
            held_.bytes - place < sizeof(T) || address % alignof(T))
            return NULL;
        return (const T *)address;
    }

    /*
     * Copies element i, from the line if it lies there. Called by any threads of
     * the warp, each for an element of its own. Returns the results of
     * gpunvme_array::get().
     */
    __device__ int get(uint64_t i, T *out) const
    {
        const T *from = at(i);

        if (!from)
            return array_.get(i, out);
        *out = *from;
        return 0;
    }

  private:
    /* Holds the line with the byte at the offset, if its set has a free way. */
    static __device__ __noinline__ int hold_at(const struct gpunvme_device_cache *cache,
                                               uint64_t offset, struct gd_cache_held *held)
    {
        struct gd_cache_reader reader;
        int err = gd_cache_begin(&reader, gq_whole_group(), cache);

        if (!err && offset >= reader.end)
            err = -ERANGE;
        return err ? err : gd_cache_hold(&reader, offset, held);
    }

    gpunvme_array<T> array_;
    struct gd_cache_held held_ = {};
};

#endif
