/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The paths of the self-test: the block device, and the executor with a
 * registered buffer.
 */
#include "fusefs/daemon/start/selftest.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "blockdev/data_check.h"
#include "layout/layout.h"

#define LIST_BYTES (DATA_CHECK_PIECES * sizeof(struct gq_read_desc))
#define PATH_BYTES (DATA_CHECK_BUFFER + LIST_BYTES)

/*
 * A buffer followed by a list in one file, registered as an application does.
 */
struct test_path {
    struct stack *s;
    struct gq_buffer *buffer, *list;
    int fd;
    unsigned char *data;
};

static int engine_read(void *context, uint64_t offset, size_t at, size_t len)
{
    const struct test_path *r = context;
    const struct gq_file_extent extent = {.lba = offset / r->s->engine_info.lba_size};
    const struct gq_request req = {.op = GQ_READ,
                                   .buffer = r->buffer,
                                   .buffer_offset = at,
                                   .len = len,
                                   .extents = &extent,
                                   .n_extents = 1,
                                   .end = len};
    struct gq_result result;
    int err = gq_transfer(r->s->engine, &req, &result);

    return data_check_error(err, result.nvme_status);
}

static int engine_read_list(void *context, const struct data_check_piece *pieces, size_t n)
{
    const struct test_path *r = context;
    const struct gq_file_extent extent = {.lba = 0};
    const struct gq_readv req = {.buffer = r->buffer,
                                 .extents = &extent,
                                 .n_extents = 1,
                                 .end = r->s->bdev->info.bytes,
                                 .list = r->list,
                                 .n = n,
                                 .most = DATA_CHECK_BUFFER,
                                 .odd_most = DATA_CHECK_BUFFER};
    struct gq_read_desc *desc = gq_buffer_list(r->list);
    struct gq_result result;

    for (size_t i = 0; i < n; i++)
        desc[i] = (struct gq_read_desc){
            .file_offset = pieces[i].offset, .at = pieces[i].at, .len = (uint32_t)pieces[i].len};
    int err = gq_readv(r->s->engine, &req, &result);
    return data_check_error(!err && result.partial ? -EIO : err, result.nvme_status);
}

static int register_both(struct test_path *r)
{
    struct gq_mem mem = {.kind = GQ_MEM_FD, .fd = r->fd, .len = DATA_CHECK_BUFFER};
    struct gq_mem list = {.kind = GQ_MEM_FD,
                          .fd = r->fd,
                          .offset = DATA_CHECK_BUFFER,
                          .len = LIST_BYTES,
                          .is_list = true};
    int err = gq_buffer_register(r->s->engine, &mem, &r->buffer);

    if (err)
        return err;
    err = gq_buffer_register(r->s->engine, &list, &r->list);
    if (err)
        gq_buffer_unregister(r->buffer);
    return err;
}

static int test_path_open(struct stack *s, struct test_path *r)
{
    int err;

    *r = (struct test_path){.s = s, .fd = memfd_create("gpunvme-selftest", MFD_CLOEXEC)};
    if (r->fd < 0)
        return -errno;
    if (ftruncate(r->fd, PATH_BYTES))
        goto close_fd;
    r->data = mmap(NULL, PATH_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (r->data == MAP_FAILED)
        goto close_fd;
    err = register_both(r);
    if (!err)
        return 0;
    munmap(r->data, PATH_BYTES);
    close(r->fd);
    return err;

close_fd:
    err = -errno;
    close(r->fd);
    return err;
}

static void test_path_close(struct test_path *r)
{
    gq_buffer_unregister(r->list);
    gq_buffer_unregister(r->buffer);
    munmap(r->data, PATH_BYTES);
    close(r->fd);
}

static int check_engine(struct stack *s, uint64_t start, char *why, size_t len)
{
    struct test_path r;
    int err = test_path_open(s, &r);

    if (err) /* as for applications, which then take the bounce path */
        return 0;
    struct data_check check = {.path = "commands of the executor",
                               .read = engine_read,
                               .read_list = engine_read_list,
                               .context = &r,
                               .buffer = r.data,
                               .max_command = s->engine_info.max_command,
                               .start = start};
    err = data_check_run(s->bdev, &check, why, len);
    test_path_close(&r);
    gq_engine_stats(s->engine, &s->selftest_stats);
    return err;
}

static bool is_verdict(int err)
{
    return err == -EILSEQ || err == -EPROTO || err == -ENOMEM;
}

/*
 * Returns the byte offset of the journal, whose pages differ from each other,
 * since mkfs and transactions never write two equal ones. Returns 0 without a
 * valid superblock, which the mount reports later.
 */
static uint64_t journal_at(const struct stack *s)
{
    struct lay_geometry geo;
    struct lay_super sb;

    if (s->bdev->info.bytes < sizeof(sb) || bd_read(s->bdev, 0, &sb, sizeof(sb)) != 0 ||
        lay_check_super(&sb, 0, 0, &geo, NULL, NULL) != 0)
        return 0;
    return geo.journal_start << LAY_BLOCK_SHIFT;
}

int selftest_run(struct stack *s, char *why, size_t len)
{
    uint64_t start = journal_at(s);
    size_t most = nvme_ctrlr_info(s->ctrlr)->max_transfer;
    int err = data_check_device(s->bdev, start, most, false, why, len);

    if (!is_verdict(err) && s->engine) {
        why[0] = '\0';
        err = check_engine(s, start, why, len);
    }
    return is_verdict(err) ? err : 0;
}
