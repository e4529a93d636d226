/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Compares data with its checksums after a kernel that the host launched has read the data. Many
 * warps of a second kernel compare at the speed of memory. The three kernels are:
 *
 *   read      reads the data, and compares only partial blocks, which are staged
 *   compare   compares whole blocks, and refuses blocks that differ and the pieces with such blocks
 *   conclude  reads refused data again through shared queues, and compares it while reading
 *
 * A kernel sees the stores of the kernel before it in the stream. Words of checksums are loaded
 * after the data has arrived (gq_data_sums.h). A struct gd_check belongs to one check until its
 * third kernel ends.
 *
 * Every function is called by all lanes of a group together.
 */
#ifndef CLIENT_DEVICE_GD_COMPARE_H
#define CLIENT_DEVICE_GD_COMPARE_H

#include "client/device/gd_launch.h"
#include "client/device/gd_lone.h"

/* Describes a group of the third kernel. */
struct gd_concluder {
    struct gq_group group;
    const struct gpunvme_device_file *file;
    struct gd_check *check;
};

/*
 * Notes that the block with this number in the file differs. The block belongs
 * to the read or to piece `index`.
 */
GQ_FN void gd_refuse(const struct gq_summer *w, const struct gd_compare_launch *l, uint32_t index,
                     uint64_t number)
{
    GQ_FOR_LANES(lane)
    {
        if (lane == 0) {
            uint32_t i = gq_atomic_fetch_add(&l->check->refused, 1);

            if (l->list)
                l->list[index].result = GQ_MISMATCH;
            else if (i < GD_REFUSED)
                l->check->block[i] = number;
        }
    }
}

/*
 * Compares part `rank` of `groups` parts of the whole blocks of a read that has
 * ended.
 */
GQ_FN void gd_compare_read(const struct gq_summer *w, const struct gd_compare_launch *l,
                           struct gq_read read, uint32_t index, uint32_t rank, uint32_t groups)
{
    uint32_t turn = w->group.lanes < GD_COMPARE_TURN ? w->group.lanes : GD_COMPARE_TURN;
    uint64_t block = (read.file_offset + GQ_SUM_BLOCK - 1) / GQ_SUM_BLOCK + (uint64_t)rank * turn;
    uint64_t end = (read.file_offset + read.len) / GQ_SUM_BLOCK;

    for (; block < end; block += (uint64_t)groups * turn) {
        uint32_t n = end - block < turn ? (uint32_t)(end - block) : turn;
        uint64_t at = l->addr + read.at + (block * GQ_SUM_BLOCK - read.file_offset);
        uint32_t differing = gq_differing(w, block, n, at);

        while (differing)
            gd_refuse(w, l, index, block + gq_take_one(&differing));
    }
}

/*
 * Compares part `rank` of `groups` parts of piece i. Staged bytes of the piece
 * may have been refused already.
 */
GQ_FN void gd_compare_piece_part(const struct gq_summer *w, const struct gd_compare_launch *l,
                                 uint32_t i, uint32_t rank, uint32_t groups)
{
    const struct gq_read_desc *piece = &l->list[i];
    int32_t result = (int32_t)GQ_SAME32(piece->result);

    if (result > 0)
        gd_compare_read(w, l,
                        (struct gq_read){.file_offset = piece->file_offset,
                                         .at = piece->at,
                                         .len = (uint32_t)result},
                        i, rank, groups);
    else if (result == GQ_MISMATCH && rank == 0)
        gd_refuse(w, l, i, 0);
}

/*
 * Compares the share of group `rank` of `groups` groups. One group compares a
 * piece; if there are more groups than pieces, several groups share a piece.
 */
GQ_FN void gd_compare(const struct gq_summer *w, const struct gd_compare_launch *l, uint32_t rank,
                      uint32_t groups)
{
    uint32_t sharing = l->n && l->n < groups ? groups / l->n : 1, abreast = groups / sharing;

    if (l->list) {
        for (uint32_t i = rank / sharing; rank < abreast * sharing && i < l->n; i += abreast)
            gd_compare_piece_part(w, l, i, rank % sharing, sharing);
    } else if ((uint64_t)GQ_SAME64(l->check->bytes) == l->read.len) {
        gd_compare_read(w, l, l->read, 0, rank, groups);
    }
}

/* The last of `groups` groups makes the words free for the next check. */
GQ_FN void gd_end_check(const struct gd_concluder *w, uint32_t groups)
{
    struct gd_check *c = w->check;

    GQ_FOR_LANES(lane)
    {
        if (lane == 0 && gq_atomic_fetch_add(&c->left, 1) + 1 == groups) {
            gq_atomic_store(&c->left, 0);
            gq_atomic_store(&c->refused, 0);
            gq_fence_device(); /* the words are zero before the check counts as ended */
            gq_atomic_add(&c->runs, 1);
        }
    }
}

/*
 * Reads the refused blocks of a read to `addr` again. Repeats the whole read if more blocks were
 * refused than gd_check can store. Returns 0 or -errno.
 */
GQ_FN int gd_read_refused(const struct gd_concluder *w, uint64_t addr, uint64_t offset,
                          uint64_t len, uint32_t refused)
{
    int64_t got = 0;

    if (refused > GD_REFUSED)
        got = gd_shared_pread_warp(w->file, addr, len, offset);
    for (uint32_t i = 0; refused <= GD_REFUSED && i < refused && got >= 0; i++) {
        uint64_t at = GQ_SAME64(w->check->block[i]) * GQ_SUM_BLOCK;

        got = gd_shared_pread_warp(w->file, addr + (at - offset), GQ_SUM_BLOCK, at);
    }
    return got < 0 ? (int)got : 0;
}

/* Called by one group. Concludes a read of len bytes to `addr`. Returns bytes or -errno. */
GQ_FN int64_t gd_conclude_read(const struct gd_concluder *w, uint64_t addr, uint64_t offset,
                               uint64_t len)
{
    uint32_t refused = GQ_SAME32(w->check->refused);
    int64_t bytes = (int64_t)GQ_SAME64(w->check->bytes);
    int err = refused ? gd_read_refused(w, addr, offset, len, refused) : 0;

    gd_end_check(w, 1);
    return err ? err : bytes;
}

/* Reads refused piece i again. The buffer offsets of pieces are relative to `addr`. */
GQ_FN void gd_read_piece_again(const struct gd_concluder *w, uint64_t addr,
                               struct gq_read_desc *list, uint32_t i)
{
    int64_t got =
        gd_shared_pread_warp(w->file, addr + list[i].at, list[i].len, list[i].file_offset);

    GQ_FOR_LANES(lane)
    {
        if (lane == 0)
            list[i].result = (int32_t)got;
    }
}

/* Reads the refused pieces of this group again. */
GQ_FN void gd_read_pieces_again(const struct gd_concluder *w, uint64_t addr,
                                struct gq_read_desc *list, uint32_t n, uint32_t rank,
                                uint32_t groups)
{
    GQ_LANE_VAR(uint32_t, refused);

    for (uint64_t first = (uint64_t)rank * w->group.lanes; first < n;
         first += (uint64_t)groups * w->group.lanes) {
        uint32_t mask;

        GQ_FOR_LANES(lane)
        {
            GQ_AT(refused) = first + lane < n && list[first + lane].result == GQ_MISMATCH;
        }
        mask = GQ_BALLOT(refused);
        while (mask)
            gd_read_piece_again(w, addr, list, (uint32_t)first + gq_take_one(&mask));
    }
}

/*
 * Concludes the share of group `rank` of `groups` groups, which are the pieces
 * that it compared.
 */
GQ_FN void gd_conclude_list(const struct gd_concluder *w, uint64_t addr, struct gq_read_desc *list,
                            uint32_t n, uint32_t rank, uint32_t groups)
{
    if (GQ_SAME32(w->check->refused))
        gd_read_pieces_again(w, addr, list, n, rank, groups);
    gd_end_check(w, groups);
}

#endif
