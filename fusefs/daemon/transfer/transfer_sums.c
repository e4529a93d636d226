/* SPDX-License-Identifier: BSD-2-Clause */
/* Verifies the checksums of data that the executor has read. */
#include "fusefs/daemon/transfer/transfer_sums.h"

#include <errno.h>
#include <stdlib.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "layout/format.h"
#include "support/minmax.h"

/* Number of checksums that are looked up together. */
#define LOOKUP 512u
/* Minimum of whole blocks in a range that is compared as a run. */
#define RUN_LEAST 64u

struct transfer_sums *transfer_sums_new(struct transfer *t)
{
    struct transfer_sums *s = malloc(sizeof(*s));

    if (s) {
        s->t = t;
        s->n = 0;
        s->span = NULL;
    }
    return s;
}

void transfer_sums_free(struct transfer_sums *s)
{
    free(s->span);
    free(s);
}

void transfer_sums_look_up(struct transfer_sums *s, uint64_t from, uint64_t to)
{
    uint64_t first = from / LAY_BLOCK_SIZE;
    uint64_t n = to > from ? (to + LAY_BLOCK_SIZE - 1) / LAY_BLOCK_SIZE - first : 0;

    if (!n || n > TRANSFER_SPAN)
        return;
    s->span = malloc(n * sizeof(*s->span));
    s->span_first = first;
    s->span_end = first + n;
    if (s->span && ffs_file_sums(s->t->inode, first * LAY_BLOCK_SIZE, n, s->span)) {
        free(s->span);
        s->span = NULL;
    }
}

/*
 * Finds the checksums of n blocks from file_offset on. `room` has space for n
 * words.
 */
static int find_sums(const struct transfer_sums *s, uint64_t file_offset, size_t n, uint32_t *room,
                     const uint32_t **sums)
{
    uint64_t first = file_offset / LAY_BLOCK_SIZE;

    if (s->span && first >= s->span_first && first + n <= s->span_end) {
        *sums = s->span + (first - s->span_first);
        return 0;
    }
    *sums = room;
    return ffs_file_sums(s->t->inode, file_offset, n, room);
}

/* Reads bytes of one block by the ordinary path. */
static void transfer_sums_read_again(struct transfer_sums *s, uint64_t owner, uint64_t file_offset,
                                     uint64_t at, uint64_t len)
{
    uint64_t moved;
    unsigned left;
    int err = transfer_is_cancelled(s->t) ? -ECANCELED : transfer_time_left(s->t, &left);

    if (!err)
        err = transfer_bounce(s->t, file_offset, at, len, &moved);
    s->t->rw.path |= GPUNVME_PATH_BOUNCE;
    if (err)
        s->lost(s, owner, file_offset, err);
}

static void log_mismatch(const struct transfer_sums *s, uint64_t file_offset)
{
    const struct transfer *t = s->t;

    log_line(LOG_WARNING,
             "%s: inode %llu: block %llu of the file, as the GPU path has read it, does not match "
             "its checksum: it is read again through the kernel's path",
             t->daemon->opts->device, (unsigned long long)ffs_ino(t->inode),
             (unsigned long long)(file_offset / LAY_BLOCK_SIZE));
}

void transfer_sums_end(struct transfer_sums *s)
{
    int err = s->n ? gq_buffer_sums(buffer_gq(s->t->use.buffer), s->at, s->n, s->have) : 0;

    for (size_t i = 0; i < s->n; i++) {
        if (err) {
            s->lost(s, s->owner[i], s->file[i], err);
        } else if (ffs_sum_of(s->have[i]) != s->want[i]) {
            log_mismatch(s, s->file[i]);
            transfer_sums_read_again(s, s->owner[i], s->file[i], s->at[i], LAY_BLOCK_SIZE);
        }
    }
    s->n = 0;
}

static void transfer_sums_add_block(struct transfer_sums *s, uint64_t owner, uint64_t file_offset,
                                    uint64_t at, uint32_t want)
{
    if (s->n == TRANSFER_SUMS)
        transfer_sums_end(s);
    s->owner[s->n] = owner;
    s->file[s->n] = file_offset;
    s->at[s->n] = at;
    s->want[s->n++] = want;
}

/*
 * Adds bytes of a block that was read in part: they start at `begin` in the
 * file and at `at` in the buffer.
 */
static void add_part(struct transfer_sums *s, uint64_t owner, uint64_t begin, uint64_t at,
                     uint64_t len, uint32_t want, const uint32_t *parts)
{
    uint32_t have = parts ? parts[begin % LAY_BLOCK_SIZE ? 0 : 1] : FFS_NO_SUM;

    if (have == want)
        return;
    if (have != FFS_NO_SUM)
        log_mismatch(s, begin);
    transfer_sums_read_again(s, owner, begin, at, len);
}

/*
 * Adds [from, to), which covers at most LOOKUP blocks. `shift` converts a file
 * offset to a buffer offset.
 */
static void add_some(struct transfer_sums *s, uint64_t owner, uint64_t from, uint64_t to,
                     uint64_t shift, const uint32_t *parts)
{
    uint32_t room[LOOKUP];
    const uint32_t *want;
    uint64_t first = from / LAY_BLOCK_SIZE * LAY_BLOCK_SIZE;
    size_t n = (to - first + LAY_BLOCK_SIZE - 1) / LAY_BLOCK_SIZE;
    int err = find_sums(s, first, n, room, &want);

    if (err) {
        s->lost(s, owner, from, err);
        return;
    }
    for (size_t i = 0; i < n; i++, first += LAY_BLOCK_SIZE) {
        uint64_t begin = first < from ? from : first, end = min_u64(to, first + LAY_BLOCK_SIZE);
        if (want[i] == FFS_NO_SUM)
            continue;
        if (end - begin == LAY_BLOCK_SIZE)
            transfer_sums_add_block(s, owner, begin, begin + shift, want[i]);
        else
            add_part(s, owner, begin, begin + shift, end - begin, want[i], parts);
    }
}

static void compare_run(struct transfer_sums *s, uint64_t owner, uint64_t file, uint64_t at,
                        size_t n)
{
    const uint32_t *want;
    int err = find_sums(s, file, n, s->run_want, &want);

    if (!err)
        err = gq_buffer_range_sums(buffer_gq(s->t->use.buffer), at, n, s->run_have);
    if (err) {
        s->lost(s, owner, file, err);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t skip = i * LAY_BLOCK_SIZE;
        if (want[i] == FFS_NO_SUM || ffs_sum_of(s->run_have[i]) == want[i])
            continue;
        log_mismatch(s, file + skip);
        transfer_sums_read_again(s, owner, file + skip, at + skip, LAY_BLOCK_SIZE);
    }
}

/* Adds whole blocks, which are compared at once. */
static void add_run(struct transfer_sums *s, uint64_t owner, uint64_t from, uint64_t to,
                    uint64_t shift)
{
    const uint64_t most = (uint64_t)TRANSFER_RUN * LAY_BLOCK_SIZE;

    for (uint64_t end; from < to; from = end) {
        end = min_u64(to, from + most);
        compare_run(s, owner, from, from + shift, (end - from) / LAY_BLOCK_SIZE);
    }
}

/* Does the same as add_some() for any length. */
static void add_all(struct transfer_sums *s, uint64_t owner, uint64_t from, uint64_t to,
                    uint64_t shift, const uint32_t *parts)
{
    const uint64_t most = (uint64_t)LOOKUP * LAY_BLOCK_SIZE;

    for (uint64_t end; from < to; from = end) {
        end = min_u64(to, from - from % LAY_BLOCK_SIZE + most);
        add_some(s, owner, from, end, shift, parts);
    }
}

void transfer_sums_add(struct transfer_sums *s, uint64_t owner, uint64_t file_offset, uint64_t at,
                       uint64_t len, const uint32_t *parts)
{
    uint64_t end = file_offset + len, shift = at - file_offset;
    uint64_t first = (file_offset + LAY_BLOCK_SIZE - 1) / LAY_BLOCK_SIZE * LAY_BLOCK_SIZE;
    uint64_t last = end - end % LAY_BLOCK_SIZE;

    if (last < first || (last - first) / LAY_BLOCK_SIZE < RUN_LEAST) {
        add_all(s, owner, file_offset, end, shift, parts);
        return;
    }
    add_all(s, owner, file_offset, first, shift, parts);
    add_run(s, owner, first, last, shift);
    add_all(s, owner, last, end, shift, parts);
}
