/* Files on the rig's namespace, by a map of extents, and batches of reads of them. */
#ifndef TESTS_CUDA_GQ_FILE_H
#define TESTS_CUDA_GQ_FILE_H

#include <algorithm>

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
    std::vector<gq_extent> stream() const
    {
        std::vector<gq_extent> out;

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
    uint64_t end_of(size_t i) const
    {
        return i + 1 < extents.size() ? extents[i + 1].offset : end;
    }

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

struct Batch {
    Batch(gq_buffer *buffer, const File &f, std::vector<gq_read> list)
        : b(buffer), file(f), reads(std::move(list))
    {
    }

    /* With the rig's deadline and cancel; the result is the rig's. */
    int run(Rig &rig)
    {
        struct gq_readv v = {};

        results.assign(reads.size(), 0x5a5a5a5a);
        v.buffer = b;
        v.extents = file.extents.data();
        v.n_extents = file.extents.size();
        v.end = file.end;
        if (by_functions) {
            v.fill = fill;
            v.take = take;
            v.context = this;
        } else {
            v.reads = reads.data();
            v.results = results.data();
        }
        v.n = reads.size();
        v.deadline_ms = rig.req.deadline_ms;
        v.cancel = rig.req.cancel;
        return gq_readv(rig.e, &v, &rig.result);
    }

    size_t count(uint32_t value) const
    {
        return (size_t)std::count(results.begin(), results.end(), value);
    }

    static void fill(void *context, size_t first, size_t n, gq_read *to)
    {
        const auto *batch = static_cast<const Batch *>(context);
        std::copy_n(batch->reads.begin() + (ptrdiff_t)first, n, to);
    }
    static void take(void *context, size_t first, size_t n, const gq_read *reads,
                     const uint32_t *results)
    {
        auto *batch = static_cast<Batch *>(context);
        for (size_t i = 0; i < n; i++) {
            EXPECT_EQ(reads[i].at, batch->reads[first + i].at);
            batch->results[first + i] = results[i];
        }
    }

    gq_buffer *b;
    const File &file;
    bool by_functions = false; /* instead of lists */
    std::vector<gq_read> reads;
    std::vector<uint32_t> results;
};

#endif
