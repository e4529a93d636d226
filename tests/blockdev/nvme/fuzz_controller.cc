/* SPDX-License-Identifier: BSD-2-Clause */
// Fuzz entry of the NVMe driver: the input changes registers, Identify data and
// completions of a controller. For every input the driver opens the controller
// or explains why not, reports properties that its users can rely on, moves no
// data outside a transfer, ends each transfer in time, and leaves no memory
// mapped.
#include <nvme/types.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/bdev.h"
#include "tests/blockdev/nvme/nvme_fake.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{

constexpr unsigned ADMIN_MS = 20, IO_MS = 5;
constexpr size_t LEN = 8192, GUARD = 4096;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "fuzz_controller: %s\n", what);
    abort();
}

class Input
{
  public:
    Input(const uint8_t *data, size_t size) : data_(data), size_(size) {}
    uint64_t take(size_t n)
    {
        uint64_t value = 0;
        for (size_t i = 0; i < n && at_ < size_; i++)
            value |= static_cast<uint64_t>(data_[at_++]) << (8 * i);
        return value;
    }
    bool empty() const { return at_ >= size_; }

  private:
    const uint8_t *data_;
    size_t size_, at_ = 0;
};

// Changes up to four bytes of a page, most of them where Identify has fields
// that the driver reads.
void change_page(Input *in, std::vector<uint8_t> *page)
{
    static const uint16_t fields[] = {0,  8,   16,  24,  25,  26,  27,  30,  76,  77,  80,  88, 92,
                                      98, 128, 130, 132, 256, 258, 512, 513, 516, 520, 525, 536};
    size_t at = in->take(1), n = 1 + in->take(1) % 4;
    at = at < 128 ? fields[at % (sizeof(fields) / sizeof(*fields))] + at / 64 : in->take(2);
    for (; n > 0; n--)
        (*page)[at++ % page->size()] = static_cast<uint8_t>(in->take(1));
}

// Changes the controller before it is opened.
void change(Input *in, Fake *fake)
{
    switch (in->take(1) % 10) {
    case 0: {
        uint64_t at = 8 * (in->take(1) % 8);
        fake->cap = (fake->cap & ~(0xffull << at)) | in->take(1) << at;
        fake->cap &= ~(0xfull << 32); // CAP.DSTRD is 0, since Fake has only one doorbell layout
        return;
    }
    case 1:
        fake->version = static_cast<uint32_t>(in->take(4));
        return;
    case 2:
        fake->queues_result = static_cast<uint32_t>(in->take(4));
        return;
    case 3:
        fake->ns_list.assign(in->take(1) % 4, static_cast<uint32_t>(in->take(4)));
        return;
    case 4:
        fake->status_of_cns[static_cast<int>(in->take(1) % 8)] = in->take(2) & 0x7fff;
        return;
    case 5:
        fake->status_of_opcode[static_cast<int>(in->take(1) % 16)] = in->take(2) & 0x7fff;
        return;
    case 6:
        return change_page(in, &fake->id_nvm);
    case 7:
        return change_page(in, &fake->id_ctrl);
    default:
        return change_page(in, &fake->id_ns[1]);
    }
}

// Changes statuses of I/O commands, loses commands, and adds completions of
// commands that do not exist.
void change_completions(Input *in, Fake *fake)
{
    fake->io_status = [in](const nvme_sqe &) {
        uint16_t status = in->take(1) % 4 == 1 ? in->take(2) & 0x7fff : 0;
        return status & 0x7ff ? status : uint16_t{0}; // SC and SCT of 0 mean success
    };
    fake->loses = [in, fake, left = 2](const nvme_sqe &sqe) mutable {
        uint64_t how = in->take(1) % 16;
        if (how == 1)
            return left-- > 0;
        if (how == 2 || how == 3) {
            nvme_sqe other = sqe;
            other.cid ^= static_cast<uint16_t>(how == 2 ? in->take(2) : 0);
            fake->complete_io(fake->queues.begin()->first, other, how == 2);
        }
        return false;
    };
}

void expect_sound(const struct nvme_ctrlr_info *info)
{
    if (info->max_transfer < 4096 || info->max_transfer % 4096 || info->max_queue_depth < 2)
        fail("limits that cannot be used");
    if (strnlen(info->serial, sizeof(info->serial)) == sizeof(info->serial) ||
        strnlen(info->model, sizeof(info->model)) == sizeof(info->model) ||
        strnlen(info->firmware, sizeof(info->firmware)) == sizeof(info->firmware))
        fail("a string without an end");
}

void expect_sound(const struct bd_info *info)
{
    if (info->lba_size < 512 || info->lba_size > 4096 || info->lba_size & (info->lba_size - 1))
        fail("an LBA size that cannot be used");
    if (info->bytes == 0 || info->bytes % info->lba_size || info->bytes > INT64_MAX)
        fail("a size that cannot be used");
}

// The bytes next to a transfer do not change, and a read that succeeds has the
// drive's bytes.
void use(Fake *fake, bd_dev *dev)
{
    std::vector<uint8_t> buffer(GUARD + LEN + GUARD, 0x77);
    const std::vector<uint8_t> guard(GUARD, 0x77);
    expect_sound(&dev->info);
    if (dev->info.lba_size != 4096 || dev->info.bytes < 3 * LEN)
        return;
    for (int i = 0; i < 6; i++) {
        int err = bd_read(dev, LEN, &buffer[GUARD], LEN);
        if (err == 0 && memcmp(&buffer[GUARD], &fake->media[LEN], LEN) != 0)
            fail("a read with other bytes");
        if (memcmp(buffer.data(), guard.data(), GUARD) != 0 ||
            memcmp(&buffer[GUARD + LEN], guard.data(), GUARD) != 0)
            fail("a read outside of its buffer");
        bd_write(dev, 0, &buffer[GUARD], LEN, i % 2 ? BD_FUA : 0);
        bd_flush(dev);
    }
}

void run(Fake *fake, Input *in)
{
    struct reason why = {};
    nvme_opts opts = {};
    nvme_ctrlr *c = nullptr;
    bd_dev *dev = nullptr;
    opts.admin_timeout_ms = ADMIN_MS;
    opts.io_timeout_ms = IO_MS;
    opts.why = &why;
    if (nvme_ctrlr_open(&fake->t, &opts, &c) != 0) {
        if (!*why.text || fake->closed)
            fail("refused without a reason");
        return;
    }
    expect_sound(nvme_ctrlr_info(c));
    change_completions(in, fake);
    if (bd_nvme_open(c, 1, 1, 4, &dev) == 0) {
        use(fake, dev);
        bd_close(dev);
    }
    fake->loses = [](const nvme_sqe &) { return false; };
    nvme_ctrlr_close(c);
    if (!fake->closed)
        fail("not closed");
}

} // namespace

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Fake fake;
    Input in(data, size);
    fake.abort_works = true;
    for (unsigned n = in.take(1) % 6; n > 0 && !in.empty(); n--)
        change(&in, &fake);
    for (size_t i = 0; i < 2 * LEN; i++)
        fake.media[i] = static_cast<uint8_t>(i * 31 + i / 256);
    run(&fake, &in);
    if (!fake.maps.empty())
        fail("memory is left mapped");
    return 0;
}
