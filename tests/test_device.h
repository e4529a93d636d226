/* SPDX-License-Identifier: BSD-2-Clause */
// Implements a block device of a test. The derived class decides what a transfer does.
#ifndef TESTS_TEST_DEVICE_H
#define TESTS_TEST_DEVICE_H

#include <stdint.h>
#include <stdio.h>

#include <functional>

#include "blockdev/bdev.h"
#include "tests/dma_memory.h"

class TestDevice
{
  public:
    TestDevice(uint64_t bytes, uint32_t lba_size)
    {
        static const bd_ops ops = {submit, dma_alloc, dma_free, nullptr, nullptr, nullptr};
        handle_.base.ops = &ops;
        handle_.base.info.bytes = bytes;
        handle_.base.info.lba_size = lba_size;
        handle_.base.info.volatile_cache = true;
        handle_.self = this;
        snprintf(handle_.base.info.name, sizeof(handle_.base.info.name), "memory");
    }
    virtual ~TestDevice() = default;
    TestDevice(const TestDevice &) = delete;
    TestDevice &operator=(const TestDevice &) = delete;

    bd_dev *dev() { return &handle_.base; }
    uint64_t size() const { return handle_.base.info.bytes; }
    uint32_t lba_size() const { return handle_.base.info.lba_size; }

    // submit() calls this before its transfers. If it returns an error, submit() makes no transfer
    // and returns that.
    std::function<int(bd_io *ios, size_t n)> before_submit;

  protected:
    // Makes a transfer. Returns 0 or -errno. Several threads may call it at the same time.
    virtual int transfer(bd_io *io) = 0;

  private:
    static int submit(bd_dev *dev, bd_io *ios, size_t n)
    {
        TestDevice *self = reinterpret_cast<Handle *>(dev)->self;
        int first = self->before_submit ? self->before_submit(ios, n) : 0;
        if (first)
            return first;
        for (size_t i = 0; i < n; i++) {
            ios[i].error = self->transfer(&ios[i]);
            first = first ? first : ios[i].error;
        }
        return first;
    }
    static void *dma_alloc(bd_dev *, size_t len) { return dma_memory_new(len); }
    static void dma_free(bd_dev *, void *buf, size_t) { dma_memory_free(buf); }

    // The functions above get the base, and find the object by it.
    struct Handle {
        bd_dev base;
        TestDevice *self;
    };
    Handle handle_ = {};
};

#endif
