/* SPDX-License-Identifier: BSD-2-Clause */
/* Files on the rig's namespace, by a map of extents, and batches of reads of them. */
#ifndef TESTS_CUDA_GQ_FILE_H
#define TESTS_CUDA_GQ_FILE_H

#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/gq_rig.h"

struct File {
    /* As it stands: for maps that are refused. */
    File(std::vector<gq_file_extent> map, uint64_t file_end)
        : extents(std::move(map)), end(file_end)
    {
    }

    File(const Rig &rig, std::vector<gq_file_extent> map, uint64_t file_end)
        : extents(std::move(map)), end(file_end), lba_size(rig.cfg.ns[0].lba_size)
    {
        for (size_t i = 0; i < extents.size(); i++)
            add_bytes(rig, extents[i], end_of(i));
    }

    /* Of up to max_lbas each, anywhere on the namespace; its end is inside an LBA. */
    File(const Rig &rig, std::mt19937 &rng, size_t n, uint64_t max_lbas, bool holes)
        : lba_size(rig.cfg.ns[0].lba_size)
    {
        uint64_t lbas = rig.media.size() / lba_size;

        for (size_t i = 0; i < n; i++) {
            uint64_t len = 1 + rng() % max_lbas;
            uint64_t lba = holes && rng() % 4 == 0 ? GQ_LBA_ZERO : rng() % (lbas - len);

            extents.push_back({end, lba});
            end += len * lba_size;
        }
        end -= rng() % lba_size;
        for (size_t i = 0; i < n; i++)
            add_bytes(rig, extents[i], end_of(i));
    }

    /* What a read gets: less at the end. */
    Bytes part(uint64_t offset, uint64_t len) const
    {
        if (offset >= bytes.size())
            return {};
        len = std::min<uint64_t>(len, bytes.size() - offset);
        return Bytes(bytes.begin() + (ptrdiff_t)offset, bytes.begin() + (ptrdiff_t)(offset + len));
    }

    /* The same for gq_transfer(). */
    std::vector<Extent> stream() const
    {
        std::vector<Extent> out;

        for (size_t i = 0; i < extents.size(); i++) {
            uint64_t len = end_of(i) - extents[i].offset;

            out.push_back({extents[i].lba, (len + lba_size - 1) / lba_size * lba_size});
        }
        return out;
    }

    std::vector<gq_file_extent> extents;
    uint64_t end = 0;
    uint32_t lba_size = 512;
    Bytes bytes;

  private:
    uint64_t end_of(size_t i) const { return i + 1 < extents.size() ? extents[i + 1].offset : end; }

    void add_bytes(const Rig &rig, const gq_file_extent &x, uint64_t to)
    {
        if (x.lba == GQ_LBA_ZERO) {
            bytes.resize(to, 0);
            return;
        }
        auto from = rig.media.begin() + (ptrdiff_t)(x.lba * lba_size);
        bytes.insert(bytes.end(), from, from + (ptrdiff_t)(to - x.offset));
    }
};

/* Memory for a list of n pieces, registered with the rig's engine. */
class List
{
  public:
    List(const Rig &rig, size_t n) : len_(std::max<size_t>(n, 1) * sizeof(gq_read_desc))
    {
        gq_mem mem = {};

        mem.kind = GQ_MEM_FD;
        mem.fd = memfd_create("list", MFD_CLOEXEC);
        mem.len = len_;
        mem.is_list = true;
        EXPECT_EQ(ftruncate(mem.fd, (off_t)len_), 0);
        pieces = (gq_read_desc *)mmap(nullptr, len_, PROT_READ | PROT_WRITE, MAP_SHARED, mem.fd, 0);
        EXPECT_EQ(gq_buffer_register(rig.e, &mem, &buffer), 0);
        close(mem.fd);
    }
    ~List()
    {
        if (buffer)
            gq_buffer_unregister(buffer);
        munmap(pieces, len_);
    }
    List(const List &) = delete;
    List &operator=(const List &) = delete;

    gq_buffer *buffer = nullptr;
    gq_read_desc *pieces; /* as a client has them: at an address of its own */

  private:
    size_t len_;
};

constexpr int32_t kUntouched = 0x5a5a5a5a;

struct Batch {
    Batch(gq_buffer *buffer, const File &f, std::vector<gq_read> list)
        : b(buffer), file(f), reads(std::move(list))
    {
    }

    /* With the rig's deadline and cancel; the result is the rig's. */
    int run(Rig &rig)
    {
        List list(rig, reads.size());

        for (size_t i = 0; i < reads.size(); i++)
            list.pieces[i] = {reads[i].file_offset, reads[i].at, (uint32_t)reads[i].len,
                              kUntouched};
        int err = run_list(rig, list);
        results.clear();
        for (size_t i = 0; i < reads.size(); i++)
            results.push_back(list.pieces[i].result);
        return err;
    }

    int run_list(Rig &rig, const List &list) const
    {
        struct gq_readv v = {};

        v.buffer = b;
        v.extents = file.extents.data();
        v.n_extents = file.extents.size();
        v.end = file.end;
        v.goes_on = goes_on;
        v.list = list.buffer;
        v.n = reads.size();
        v.most = most;
        v.odd_most = odd_most;
        v.part_sums = part_sums;
        v.deadline_ms = rig.req.deadline_ms;
        v.cancel = rig.req.cancel;
        return gq_readv(rig.e, &v, &rig.result);
    }

    bool is_good(size_t i) const
    {
        uint64_t offset = reads[i].file_offset;
        uint64_t left = offset < file.end ? file.end - offset : 0;

        return results[i] == (int32_t)std::min(reads[i].len, left);
    }

    size_t count_good() const
    {
        size_t n = 0;

        for (size_t i = 0; i < reads.size(); i++)
            n += is_good(i);
        return n;
    }

    size_t count(int32_t value) const
    {
        return (size_t)std::count(results.begin(), results.end(), value);
    }

    gq_buffer *b;
    const File &file;
    bool goes_on = false;
    uint64_t most = UINT64_MAX, odd_most = UINT64_MAX;
    uint32_t *part_sums = nullptr;
    std::vector<gq_read> reads;
    std::vector<int32_t> results;
};

#endif
