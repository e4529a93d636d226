/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the host side of transfers. Moves bytes through host memory, and
 * handles checksums.
 */
#include "fusefs/daemon/transfer/transfer_host.h"

#include <errno.h>
#include <stdlib.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "layout/format.h"
#include "support/clock.h"
#include "support/minmax.h"

/* --- Host memory ----------------------------------------------------------------------------- */

void transfer_count_bounced(struct transfer *t, uint64_t bytes)
{
    t->op.bounced += bytes;
    if (bytes && !t->write)
        file_accessed(t->inode, t->flags);
}

const char *transfer_engine_name(const struct transfer *t)
{
    return t->path == GPUNVME_PATH_GPU ? "the GPU path" : "the queues of the bounce path";
}

int transfer_bounce(struct transfer *t, uint64_t offset, uint64_t at, uint64_t len, uint64_t *moved)
{
    struct daemon *d = t->daemon;
    struct buffer *buffer = t->use.buffer;
    struct bounce *b = bounce_get(&d->bounces);

    *moved = 0;
    if (!b)
        return -ENOMEM;
    ssize_t n = t->write ? buffer_get(buffer, at, b->data, (size_t)len)
                         : file_read(t->inode, offset, b->data, (size_t)len);
    if (n == 0 && t->write)
        n = ffs_write(t->inode, offset, b->data, (size_t)len);
    else if (n > 0)
        n = buffer_put(buffer, at, b->data, (size_t)n) ? -EIO : n;
    bounce_put(&d->bounces, b);
    if (n < 0)
        return (int)n;
    *moved = (uint64_t)n;
    transfer_count_bounced(t, *moved);
    return 0;
}

/* --- Checksums ---------------------------------------------------------------------------- */

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

    log_line(
        LOG_WARNING,
        "%s: inode %llu: block %llu of the file, as %s read it, does not match its checksum: it "
        "is read again through the kernel's path",
        t->daemon->opts->device, (unsigned long long)ffs_ino(t->inode),
        (unsigned long long)(file_offset / LAY_BLOCK_SIZE), transfer_engine_name(t));
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
static void transfer_sums_add_part(struct transfer_sums *s, uint64_t owner, uint64_t begin,
                                   uint64_t at, uint64_t len, uint32_t want, const uint32_t *parts)
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
            transfer_sums_add_part(s, owner, begin, begin + shift, end - begin, want[i], parts);
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

/* Adds bytes by calls of add_some(), which takes at most LOOKUP blocks at a time. */
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

/* --- Parts ----------------------------------------------------------------------------------- */

/* Number of blocks that are processed together. */
#define TOGETHER 16384u

static uint64_t block_up(uint64_t byte)
{
    return (byte + LAY_BLOCK_SIZE - 1) / LAY_BLOCK_SIZE;
}

/*
 * Computes the checksums of n blocks of the buffer, from the given block of the
 * file on.
 */
static int sums_of_buffer(const struct transfer_parts *p, uint64_t block, size_t n, uint32_t *sums)
{
    int err = gq_buffer_range_sums(buffer_gq(p->t->use.buffer),
                                   p->at + (block * LAY_BLOCK_SIZE - p->file), n, sums);

    for (size_t i = 0; i < n && !err; i++)
        sums[i] = ffs_sum_of(sums[i]);
    return err;
}

/* --- READ ------------------------------------------------------------------------------------ */

/*
 * Looks up checksums until all are known, one is unavailable, or the transfer
 * is cancelled or has failed. Between two such checks it looks up as many as a
 * block has, so a failed transfer waits for at most two reads of the drive.
 */
static void *transfer_look_up(void *arg)
{
    struct transfer_parts *p = arg;

    for (uint64_t n = 0, part; n < p->blocks && !transfer_is_cancelled(p->t) && !p->ends;
         n += part) {
        part = min_u64(p->blocks - n, LAY_SUMS_ENTRIES);
        if (ffs_file_sums_now(p->t->inode, (p->first + n) * LAY_BLOCK_SIZE, part, p->sums + n))
            break;
        atomic_store_explicit(&p->known, n + part, memory_order_release);
    }
    return NULL;
}

/*
 * If no thread can be started, nothing is compared before the transfer has
 * ended.
 */
static void start_look_up(struct transfer_parts *p, uint64_t len)
{
    uint64_t end = (p->file + len) / LAY_BLOCK_SIZE;

    p->blocks = end > p->first ? end - p->first : 0;
    if (p->blocks <= TOGETHER)
        transfer_look_up(p);
    else
        p->has_thread = pthread_create(&p->thread, NULL, transfer_look_up, p) == 0;
}

static void join(struct transfer_parts *p)
{
    if (p->has_thread)
        pthread_join(p->thread, NULL);
    p->has_thread = false;
}

static bool transfer_parts_matches(struct transfer_parts *p, uint64_t block, size_t n)
{
    const uint32_t *sums = p->sums + (block - p->first);
    int err = sums_of_buffer(p, block, n, p->have);

    for (size_t i = 0; i < n && !err; i++) {
        if (sums[i] != FFS_NO_SUM && sums[i] != p->have[i])
            return false;
    }
    return !err;
}

static void has_read(struct gq_listener *l, uint64_t to)
{
    struct transfer_parts *p = (struct transfer_parts *)l;
    uint64_t known = atomic_load_explicit(&p->known, memory_order_acquire);
    uint64_t end = min_u64((p->file + to) / LAY_BLOCK_SIZE, p->first + known);

    while (!p->stopped && p->next < end) {
        size_t n = min_u64(end - p->next, TOGETHER);
        p->stopped = !transfer_parts_matches(p, p->next, n);
        if (!p->stopped)
            p->next += n;
    }
}

void transfer_parts_read(struct transfer_parts *p, uint64_t bytes)
{
    if ((p->file + bytes) / LAY_BLOCK_SIZE < p->first + p->blocks)
        p->ends = true;
    join(p);
    has_read(&p->listener, bytes);
}

/* --- WRITE ----------------------------------------------------------------------------------- */

/*
 * A block that is announced again keeps its first checksum, which was computed
 * before both transfers.
 */
static void will_write(struct gq_listener *l, uint64_t to)
{
    struct transfer_parts *p = (struct transfer_parts *)l;
    uint64_t end = block_up(to);

    if (p->stopped || end <= p->begun)
        return;
    p->stopped = sums_of_buffer(p, p->first + p->begun, end - p->begun, p->sums + p->begun) != 0;
    p->begun = end;
}

static void transfer_parts_compare(struct transfer_parts *p, uint64_t block, size_t n)
{
    uint32_t *before = p->sums + (block - p->first);

    p->stopped = sums_of_buffer(p, block, n, p->have) != 0;
    for (size_t i = 0; i < n && !p->stopped; i++) {
        if (before[i] != p->have[i])
            before[i] = FFS_NO_SUM;
    }
}

static void has_written(struct gq_listener *l, uint64_t to)
{
    struct transfer_parts *p = (struct transfer_parts *)l;
    uint64_t end = p->first + to / LAY_BLOCK_SIZE;

    while (!p->stopped && p->next < end) {
        size_t n = min_u64(end - p->next, TOGETHER);
        transfer_parts_compare(p, p->next, n);
        p->next += n;
    }
}

const uint32_t *transfer_parts_written(struct transfer_parts *p, uint64_t bytes)
{
    has_written(&p->listener, bytes);
    return p->stopped ? NULL : p->sums;
}

/* --------------------------------------------------------------------------------------------- */

static struct transfer_parts *transfer_parts_start(struct transfer_parts *p, struct transfer *t,
                                                   uint64_t len)
{
    p->t = t;
    p->file = t->rw.file_offset + t->done;
    p->at = t->rw.buffer_offset + t->done;
    p->first = p->next = block_up(p->file);
    p->listener.begins = t->write ? will_write : NULL;
    p->listener.ended = t->write ? has_written : has_read;
    if (!t->write)
        start_look_up(p, len);
    return p;
}

struct transfer_parts *transfer_parts_new(struct transfer *t, uint64_t len)
{
    uint64_t blocks = block_up(len), together = min_u64(blocks, TOGETHER);
    struct transfer_parts *p;

    if (t->write && (len % LAY_BLOCK_SIZE || (t->rw.file_offset + t->done) % LAY_BLOCK_SIZE))
        return NULL;
    p = calloc(1, sizeof(*p));
    if (!p)
        return NULL;
    p->sums = malloc(blocks * sizeof(*p->sums));
    p->have = malloc(together * sizeof(*p->have));
    if (p->sums && p->have)
        return transfer_parts_start(p, t, len);
    transfer_parts_free(p);
    return NULL;
}

void transfer_parts_end(struct transfer_parts *p)
{
    p->ends = true;
    join(p);
    free(p->sums);
    free(p->have);
    free(p);
}
