/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fuzz entry of the daemon's requests while transfers are in flight. A thread
 * reads into its own buffer while the input becomes requests with valid and
 * stale handles of buffers and leases, resets and faults. For every input a
 * read that succeeds has the file's bytes, memory that has been unregistered
 * does not change, and no buffer or block stays allocated.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/nvme/nvme_spec.h"
#include "tests/fusefs/daemon/daemon_rig.h"

#define FILE_BYTES   (1u << 20)
#define BUFFER_BYTES (128u << 10)
#define BUFFERS      4u
#define LEASES       4u
#define BACKGROUND   64u /* maximum number of requests of an input */
#define WRONG        0x5a

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct lease {
    uint64_t id, key;
    uint32_t uid;
};

static struct fuzz {
    struct rig *rig;
    struct rig_buffer buffers[BUFFERS]; /* data is NULL in an unused element */
    uint32_t owners[BUFFERS];
    struct lease leases[LEASES];
    atomic_bool stop;
    pthread_t reader;
} f;

static void fail(const char *what)
{
    fprintf(stderr, "fuzz_transfers: %s\n", what);
    abort();
}

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)(offset * 7 + offset / 251);
}

static void expect_file(const uint8_t *data, uint64_t offset, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++) {
        if (data[i] != byte_at(offset + i))
            fail("a read has other bytes");
    }
}

static void start(void)
{
    static uint8_t content[FILE_BYTES];
    const struct rig_config config = {
        .image_bytes = 32u << 20, .leases = true, .data_csum = true, .deadline_ms = 2000};

    for (size_t i = 0; i < FILE_BYTES; i++)
        content[i] = byte_at(i);
    if (rig_open(&config, &f.rig) != 0 || rig_write_file(f.rig, 0, content, FILE_BYTES) != 0)
        fail("rig");
}

/* This thread reads until it is stopped. An injected fault may end a read with EIO. */
static void *read_always(void *arg)
{
    struct rig_buffer b;

    (void)arg;
    if (rig_register(f.rig, BUFFER_BYTES, 1, &b) != 0)
        fail("register");
    for (unsigned i = 0; !atomic_load(&f.stop); i++) {
        struct gpunvme_ioc_rw rw = {.id = b.id,
                                    .key = b.key,
                                    .file_offset = i * 4099ull % (FILE_BYTES - BUFFER_BYTES),
                                    .len = BUFFER_BYTES};
        memset(b.data, WRONG, BUFFER_BYTES);
        if (rig_transfer(f.rig, false, 1, &rw) == 0)
            expect_file(b.data, rw.file_offset, rw.bytes);
    }
    if (rig_unregister(f.rig, &b, 1) != 0)
        fail("the reader's buffer cannot be unregistered");
    rig_forget(&b);
    return NULL;
}

static void add_buffer(unsigned i, uint32_t uid)
{
    if (f.buffers[i].data)
        return;
    if (rig_register(f.rig, BUFFER_BYTES, uid, &f.buffers[i]) != 0)
        fail("register");
    f.owners[i] = uid;
    memset(f.buffers[i].data, WRONG, BUFFER_BYTES);
}

/*
 * Only the user of a buffer can remove it. Nothing writes to its memory
 * afterwards.
 */
static void remove_buffer(unsigned i, uint32_t uid)
{
    struct rig_buffer *b = &f.buffers[i];
    int err = rig_unregister(f.rig, b, uid);

    if (!b->data && err == 0)
        fail("a buffer is removed twice");
    if (!b->data)
        return;
    if ((err == 0) != (uid == f.owners[i]))
        fail("a buffer of another user");
    if (err != 0)
        return;
    memset(b->data, WRONG, BUFFER_BYTES);
    struct gpunvme_ioc_rw rw = {.id = b->id, .key = b->key, .len = 4096};
    if (rig_transfer(f.rig, false, uid, &rw) == 0)
        fail("a read into a buffer that is no more");
    for (unsigned at = 0; at < BUFFER_BYTES; at++) {
        if (b->data[at] != WRONG)
            fail("memory that is not registered has changed");
    }
    rig_forget(b);
    b->data = NULL;
}

static void transfer(unsigned i, uint32_t uid, const uint8_t *data)
{
    const struct rig_buffer *b = &f.buffers[i];
    struct gpunvme_ioc_rw rw = {.id = b->id,
                                .key = b->key + (data[0] == 3),
                                .file_offset = data[1] * 4097ull + (data[0] & 64 ? UINT32_MAX : 0),
                                .buffer_offset = data[2] * 513ull,
                                .len = data[3] * 519ull};
    bool valid = b->data && uid == f.owners[i] && data[0] != 3;
    int err = rig_transfer(f.rig, false, uid, &rw);

    if (err == 0 && !valid)
        fail("a read with a handle that is not valid");
    if (err == 0 && rw.bytes > 0 &&
        (rw.buffer_offset + rw.bytes > BUFFER_BYTES || rw.bytes > rw.len))
        fail("more bytes than there are");
    if (err == 0)
        expect_file(b->data + rw.buffer_offset, rw.file_offset, rw.bytes);
}

static void lease(struct lease *l, uint32_t uid, bool queue)
{
    struct gpunvme_ioc_extent_lease extents;
    struct gpunvme_ioc_queue_lease queues;

    if (l->id)
        return;
    if (queue && rig_lease_queue(f.rig, uid, &queues) == 0)
        *l = (struct lease){queues.id, queues.key, uid};
    if (!queue && rig_lease_extents(f.rig, uid, &extents) == 0)
        *l = (struct lease){extents.id, extents.key, uid};
}

static void lease_end(struct lease *l, uint32_t uid)
{
    int err = rig_lease_end(f.rig, uid, l->id, l->key);

    if (err == 0 && (!l->id || uid != l->uid))
        fail("a lease of another user, or of nobody");
    if (err == 0)
        l->id = 0;
}

/* Writes the bytes that the file already has. */
static void write_same(uint64_t offset)
{
    uint8_t same[5000];

    for (size_t i = 0; i < sizeof(same); i++)
        same[i] = byte_at(offset + i);
    if (rig_write_file(f.rig, offset, same, sizeof(same)) != 0)
        fail("a write fails");
}

static void request(const uint8_t *data)
{
    unsigned i = data[1] % BUFFERS;
    uint32_t uid = data[2] % 8 ? f.owners[i] : data[2] / 8u;

    switch (data[0] % 8) {
    case 0:
        add_buffer(i, data[2] % 3);
        return;
    case 1:
        remove_buffer(i, uid);
        return;
    case 2:
        lease(&f.leases[i], data[2] % 3, data[3] & 1);
        return;
    case 3:
        lease_end(&f.leases[i], data[2] % 8 ? f.leases[i].uid : data[2] / 8u);
        return;
    case 4:
        write_same(data[3] * 4000ull);
        return;
    case 5:
        rig_fail(f.rig, SIM_FAULT_STATUS, NVME_IO_READ, NVME_ERR_DATA_TRANSFER, data[3] % 4, 1);
        return;
    default:
        transfer(i, uid, data + 3);
    }
}

static void end(void)
{
    atomic_store(&f.stop, true);
    pthread_join(f.reader, NULL);
    for (unsigned i = 0; i < BUFFERS; i++) {
        if (f.buffers[i].data)
            remove_buffer(i, f.owners[i]);
        if (f.leases[i].id)
            lease_end(&f.leases[i], f.leases[i].uid);
    }
    if (rig_buffers(f.rig) != 0)
        fail("a buffer is left");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!f.rig)
        start();
    uint64_t blocks = rig_free_bytes(f.rig);
    atomic_store(&f.stop, false);
    if (pthread_create(&f.reader, NULL, read_always, NULL) != 0)
        fail("thread");
    for (size_t i = 0; (i + 1) * 7 <= size && i < BACKGROUND; i++)
        request(data + i * 7);
    end();
    if (rig_free_bytes(f.rig) > blocks)
        fail("blocks of the file are free");
    return 0;
}
