/* SPDX-License-Identifier: BSD-2-Clause */
// Implements the device in memory that power cuts are tried on.
#include "tests/fusefs/core/crash_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "tests/keep_heap.h"

namespace
{

// Discarded bytes have this value.
constexpr int DISCARDED = 0xdd;
constexpr uint64_t PAGE = 4096;

// Holds the memory of an image that is not in use, all zeros. Tests make thousands of images, and
// each page of a new mapping costs a page fault, even where it is only read.
struct Spare {
    uint8_t *mem, *marks;
    uint64_t bytes;
};
constexpr size_t SPARES = 4;
constexpr uint64_t SPARE_MAX_BYTES = 512ul << 20;
struct Spares : std::vector<Spare> {
    ~Spares()
    {
        for (const Spare &s : *this) {
            munmap(s.mem, s.bytes);
            free(s.marks);
        }
    }
} spares;
std::mutex spares_lock;

uint64_t pages(uint64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE;
}

bool is_zero(const uint8_t *page)
{
    static const uint8_t zeros[PAGE] = {};

    return memcmp(page, zeros, PAGE) == 0;
}

uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

} // namespace

// --- Images -------------------------------------------------------------------------------------

CrashImage::CrashImage(uint64_t size) : bytes(size)
{
    std::lock_guard<std::mutex> hold(spares_lock);
    auto spare = std::find_if(spares.begin(), spares.end(),
                              [size](const Spare &s) { return s.bytes == size; });
    if (spare != spares.end()) {
        mem = spare->mem;
        marks = spare->marks;
        spares.erase(spare);
        return;
    }
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mem = static_cast<uint8_t *>(at);
    marks = static_cast<uint8_t *>(calloc(pages(bytes), 1));
    if (at == MAP_FAILED || !marks)
        abort();
}

CrashImage::~CrashImage()
{
    if (bytes <= SPARE_MAX_BYTES)
        clear();
    std::lock_guard<std::mutex> hold(spares_lock);
    if (bytes <= SPARE_MAX_BYTES && spares.size() < SPARES) {
        spares.push_back({mem, marks, bytes});
        return;
    }
    munmap(mem, bytes);
    free(marks);
}

bool CrashImage::has_bytes(uint64_t page) const
{
    return all_marked ? !is_zero(mem + page * PAGE) : marks[page];
}

void CrashImage::clear()
{
    for (uint64_t page = 0; page < pages(bytes); page++) {
        if (has_bytes(page))
            memset(mem + page * PAGE, 0, PAGE);
    }
    memset(marks, 0, pages(bytes));
}

void CrashImage::mark(uint64_t offset, uint64_t len)
{
    if (len)
        memset(marks + offset / PAGE, 1, (offset + len - 1) / PAGE - offset / PAGE + 1);
}

void CrashImage::copy(const CrashImage &from)
{
    for (uint64_t page = 0; page < pages(from.bytes); page++) {
        if (from.has_bytes(page))
            write(page * PAGE, from.mem + page * PAGE, PAGE);
    }
}

void CrashImage::write(uint64_t offset, const void *data, uint64_t len)
{
    mark(offset, len);
    memcpy(mem + offset, data, len);
}

void CrashImage::discard(uint64_t offset, uint64_t len)
{
    mark(offset, len);
    memset(mem + offset, DISCARDED, len);
}

void CrashImage::zero(uint64_t offset, uint64_t len)
{
    uint64_t n;

    for (uint64_t at = offset; at < offset + len; at += n) {
        uint8_t *mark = &marks[at / PAGE];
        n = std::min(PAGE - at % PAGE, offset + len - at);
        if (all_marked || *mark)
            memset(mem + at, 0, n);
        if (n == PAGE)
            *mark = 0;
    }
}

// A page of zeros may have a mark or none.
uint64_t CrashImage::hash() const
{
    uint64_t sum = 0;

    for (uint64_t page = 0; page < pages(bytes); page++) {
        const uint8_t *at = mem + page * PAGE;
        if (has_bytes(page) && !is_zero(at))
            sum += XXH3_64bits_withSeed(at, PAGE, page);
    }
    return sum;
}

// --- Transfers ----------------------------------------------------------------------------------

CrashDevice::CrashDevice(uint64_t bytes, uint32_t lba_size)
    : TestDevice(bytes, lba_size), now_(bytes), reads_(bytes / PAGE + 1)
{
    dev()->info.discards = true;
    keep_heap();
}

int CrashDevice::read(const bd_io *io)
{
    for (uint64_t b = io->offset / PAGE; b <= (io->offset + io->len - 1) / PAGE; b++)
        reads_[b]++;
    if (fail_len_ && io->offset < fail_offset_ + fail_len_ && fail_offset_ < io->offset + io->len)
        return -EIO;
    memcpy(io->buf, now_.mem + io->offset, io->len);
    return 0;
}

int CrashDevice::change(const bd_io *io)
{
    if (fail_after_ == 0)
        return -EIO;
    if (fail_after_ > 0)
        fail_after_--;
    Op op = {io->op, (io->flags & BD_FUA) != 0, io->offset, io->len, {}};
    if (io->op == BD_WRITE) {
        const auto *from = static_cast<const uint8_t *>(io->buf);
        now_.write(io->offset, from, io->len);
        if (base_)
            op.data.assign(from, from + io->len);
    }
    // mkfs discards the whole device, which may be larger than memory.
    if (io->op == BD_WRITE_ZEROES || (io->op == BD_DISCARD && base_))
        apply(&now_, op, 0, io->len);
    if (base_)
        ops_.push_back(std::move(op));
    return 0;
}

int CrashDevice::transfer(bd_io *io)
{
    std::unique_lock<std::mutex> hold(lock_);
    int err = io->op == BD_READ ? read(io) : change(io);
    unsigned us = slow_us_;
    hold.unlock();
    if (us)
        usleep(us);
    return err;
}

uint8_t *CrashDevice::bytes()
{
    now_.all_marked = true;
    return now_.mem;
}

// --- Power cuts ---------------------------------------------------------------------------------

void CrashDevice::record()
{
    std::lock_guard<std::mutex> hold(lock_);
    ops_.clear();
    base_.reset();
    base_ = std::make_unique<CrashImage>(now_.bytes);
    base_->copy(now_);
}

size_t CrashDevice::ops()
{
    std::lock_guard<std::mutex> hold(lock_);
    return ops_.size();
}

void CrashDevice::apply(CrashImage *image, const Op &op, uint64_t from, uint64_t len)
{
    if (op.op == BD_WRITE)
        image->write(op.offset + from, op.data.data() + from, len);
    else if (op.op == BD_DISCARD)
        image->discard(op.offset + from, len);
    else
        image->zero(op.offset + from, len);
}

void CrashDevice::apply_torn(CrashImage *image, const Op &op, uint64_t *random) const
{
    for (uint64_t at = 0; at < op.len; at += lba_size()) {
        if (next_random(random) & 1)
            apply(image, op, at, lba_size());
    }
}

void CrashDevice::apply_fate(CrashImage *image, const Op &op, enum crash_fate fate,
                             uint64_t *random) const
{
    uint64_t choice = fate == CRASH_RANDOM ? next_random(random) % 3 : fate == CRASH_KEEP;

    if (choice == 1)
        apply(image, op, 0, op.len);
    else if (choice == 2)
        apply_torn(image, op, random);
}

// Operations before the last flush below `ops` are durable.
size_t CrashDevice::durable_until(size_t ops) const
{
    for (size_t i = ops; i > 0 && !ignore_flush_; i--) {
        if (ops_[i - 1].op == BD_FLUSH)
            return i;
    }
    return 0;
}

std::unique_ptr<CrashDevice> CrashDevice::cut(size_t ops, enum crash_fate fate, uint64_t seed)
{
    auto cut = std::make_unique<CrashDevice>(size(), lba_size());
    uint64_t random = seed * 1000003 + ops;

    std::lock_guard<std::mutex> hold(lock_);
    size_t durable = durable_until(ops);
    cut->now_.copy(*base_);
    for (size_t i = 0; i < ops; i++) {
        const Op &op = ops_[i];
        if (op.op == BD_FLUSH)
            continue;
        if (i < durable || (op.fua && !ignore_flush_))
            apply(&cut->now_, op, 0, op.len);
        else
            apply_fate(&cut->now_, op, fate, &random);
    }
    return cut;
}

// --- Faults -------------------------------------------------------------------------------------

void CrashDevice::fail_writes(long after)
{
    std::lock_guard<std::mutex> hold(lock_);
    fail_after_ = after;
}

void CrashDevice::fail_reads(uint64_t offset, uint64_t len)
{
    std::lock_guard<std::mutex> hold(lock_);
    fail_offset_ = offset;
    fail_len_ = len;
}

uint64_t CrashDevice::reads(uint64_t offset)
{
    std::lock_guard<std::mutex> hold(lock_);
    return reads_[offset / PAGE];
}

void CrashDevice::slow(unsigned us)
{
    std::lock_guard<std::mutex> hold(lock_);
    slow_us_ = us;
}
