/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements a block device in memory that records every write and flush, so that a test can
 * compute the media that a power cut after any of them could have left.
 *
 * The device has a volatile cache. A write with BD_FUA is durable when it returns. Any other write
 * is durable when a later flush returns. Until then a power cut may keep, lose or tear it: each of
 * its LBAs may have reached the media or not, in any order.
 */
#ifndef TESTS_FUSEFS_CRASH_DEVICE_H
#define TESTS_FUSEFS_CRASH_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <mutex>
#include <vector>

#include "tests/test_device.h"

enum crash_fate {
    CRASH_DROP,   // writes that are not durable are lost
    CRASH_KEEP,   // everything is there
    CRASH_RANDOM, // each write kept, dropped or torn, from the seed
};

// Holds the bytes of a device. Pages without a mark are zeros, unless all_marked is set.
struct CrashImage {
    explicit CrashImage(uint64_t bytes);
    ~CrashImage();
    CrashImage(const CrashImage &) = delete;
    CrashImage &operator=(const CrashImage &) = delete;

    bool has_bytes(uint64_t page) const;
    void copy(const CrashImage &from);
    void write(uint64_t offset, const void *data, uint64_t len);
    // Fills the range with bytes that are neither the old ones nor zero.
    void discard(uint64_t offset, uint64_t len);
    void zero(uint64_t offset, uint64_t len);
    uint64_t hash() const;
    // Marks bytes that a test changes through the pointer.
    void mark(uint64_t offset, uint64_t len);

    uint8_t *mem = nullptr;
    const uint64_t bytes;
    uint8_t *marks = nullptr; // one byte for each page
    bool all_marked = false;

  private:
    void clear();
};

class CrashDevice : public TestDevice
{
  public:
    explicit CrashDevice(uint64_t bytes, uint32_t lba_size = 512);

    // Returns the bytes for changes. The destructor then compares all of them with zeros.
    uint8_t *bytes();
    // Returns the bytes for reading.
    const uint8_t *peek() const { return now_.mem; }
    // Returns the byte at an offset, from which len bytes may be changed.
    uint8_t *range(uint64_t offset, uint64_t len)
    {
        now_.mark(offset, len);
        return now_.mem + offset;
    }

    // Returns a hash of all bytes, by which a test skips a cut that left the same media as another.
    uint64_t hash() { return now_.hash(); }

    // Begins a new record, in which every write and flush has a number.
    void record();
    size_t ops();
    // Sets whether flushes and FUA make nothing durable from now on.
    void ignore_flush(bool ignore) { ignore_flush_ = ignore; }
    // Returns a device with the media after a cut when `ops` operations had been done.
    std::unique_ptr<CrashDevice> cut(size_t ops, enum crash_fate fate, uint64_t seed);

    // Lets writes and flushes fail after `after` further ones. -1 means that none fails.
    void fail_writes(long after);
    // Lets reads of this byte range fail. If len is 0, no read fails.
    void fail_reads(uint64_t offset, uint64_t len);
    // Returns how many reads have touched the byte.
    uint64_t reads(uint64_t offset);
    // Sets the minimum time of a transfer in microseconds.
    void slow(unsigned us);

  private:
    struct Op {
        bd_op op;
        bool fua;
        uint64_t offset, len;
        std::vector<uint8_t> data; // BD_WRITE
    };
    int transfer(bd_io *io) override;
    int read(const bd_io *io);
    int change(const bd_io *io);
    static void apply(CrashImage *image, const Op &op, uint64_t from, uint64_t len);
    void apply_torn(CrashImage *image, const Op &op, uint64_t *random) const;
    void apply_fate(CrashImage *image, const Op &op, enum crash_fate fate, uint64_t *random) const;
    size_t durable_until(size_t ops) const;

    std::mutex lock_;
    CrashImage now_;                   // as a reader sees it
    std::unique_ptr<CrashImage> base_; // as it was when recording began; null: not recording
    std::vector<Op> ops_;
    bool ignore_flush_ = false;
    long fail_after_ = -1;
    uint64_t fail_offset_ = 0, fail_len_ = 0;
    std::vector<uint32_t> reads_; // for each page
    unsigned slow_us_ = 0;
};

#endif
