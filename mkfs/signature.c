/* SPDX-License-Identifier: BSD-2-Clause */
/* Signatures on a device: file systems, partition tables and the like. */
#include "mkfs/signature.h"

#include <blkid/blkid.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "layout/layout.h"

/* One device can bear several signatures; more than this many is a device that cannot forget. */
#define WIPE_ROUNDS 64
/* libblkid knows none further from an end of the device than 2 MiB. */
#define END_BYTES   (4u << 20)
#define CHUNK_BYTES (1u << 20)

static int find_own(int fd, char *name, size_t size)
{
    le32 magic;
    ssize_t n = pread(fd, &magic, sizeof(magic), 0);

    if (n < 0)
        return -errno;
    if (n != (ssize_t)sizeof(magic) || lay_get32(magic) != LAY_MAGIC_SUPER)
        return 0;
    snprintf(name, size, "a gpunvmefs file system");
    return 1;
}

static int is_empty_file(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;
}

static blkid_probe new_probe(int fd, uint32_t lba_size)
{
    blkid_probe probe = blkid_new_probe();

    if (!probe)
        return NULL;
    if (blkid_probe_set_device(probe, fd, 0, 0) != 0) {
        blkid_free_probe(probe);
        return NULL;
    }
    blkid_probe_set_sectorsize(probe, lba_size);
    blkid_probe_enable_superblocks(probe, 1);
    blkid_probe_set_superblocks_flags(probe, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_MAGIC);
    blkid_probe_enable_partitions(probe, 1);
    blkid_probe_set_partitions_flags(probe, BLKID_PARTS_MAGIC);
    return probe;
}

static void describe(blkid_probe probe, char *name, size_t size)
{
    const char *text = "unknown";

    if (blkid_probe_lookup_value(probe, "TYPE", &text, NULL) == 0)
        snprintf(name, size, "a signature of %s", text);
    else if (blkid_probe_lookup_value(probe, "PTTYPE", &text, NULL) == 0)
        snprintf(name, size, "a partition table (%s)", text);
    else
        snprintf(name, size, "an unknown signature");
}

int signature_find(int fd, uint32_t lba_size, char *name, size_t size)
{
    int found = find_own(fd, name, size);

    if (found != 0 || is_empty_file(fd))
        return found;
    blkid_probe probe = new_probe(fd, lba_size);
    if (!probe)
        return -EIO;
    switch (blkid_do_safeprobe(probe)) {
    case 0:
        describe(probe, name, size);
        found = 1;
        break;
    case 1:
        break;
    case -2: /* several that contradict each other */
        snprintf(name, size, "more than one signature");
        found = 1;
        break;
    default:
        found = -EIO;
    }
    blkid_free_probe(probe);
    return found;
}

int signature_wipe(int fd, uint32_t lba_size)
{
    if (is_empty_file(fd))
        return 0;
    blkid_probe probe = new_probe(fd, lba_size);
    if (!probe)
        return -EIO;
    int err = 0;
    int found = blkid_do_probe(probe);
    for (int round = 0; found == 0 && !err; round++) {
        if (round == WIPE_ROUNDS || blkid_do_wipe(probe, 0) != 0)
            err = -EIO;
        else
            found = blkid_do_probe(probe);
    }
    blkid_free_probe(probe);
    if (!err && found < 0)
        err = -EIO;
    if (!err && fsync(fd) != 0)
        err = -errno;
    return err;
}

typedef int (*move_fn)(struct bd_dev *dev, int fd, uint64_t offset, void *chunk, size_t len);

static int copy_in(struct bd_dev *dev, int fd, uint64_t offset, void *chunk, size_t len)
{
    int err = bd_read(dev, offset, chunk, len);

    if (err)
        return err;
    return pwrite(fd, chunk, len, (off_t)offset) == (ssize_t)len ? 0 : -ENOMEM;
}

static int write_back(struct bd_dev *dev, int fd, uint64_t offset, void *chunk, size_t len)
{
    if (pread(fd, chunk, len, (off_t)offset) != (ssize_t)len)
        return -EIO;
    return bd_write(dev, offset, chunk, len, 0);
}

static int move_range(struct bd_dev *dev, int fd, uint64_t from, uint64_t to, move_fn move)
{
    void *chunk = malloc(CHUNK_BYTES);
    int err = chunk ? 0 : -ENOMEM;

    while (from < to && !err) {
        size_t len = to - from < CHUNK_BYTES ? (size_t)(to - from) : CHUNK_BYTES;
        err = move(dev, fd, from, chunk, len);
        from += len;
    }
    free(chunk);
    return err;
}

static int move_ends(struct bd_dev *dev, int fd, move_fn move)
{
    uint64_t bytes = dev->info.bytes;
    uint64_t head = bytes < END_BYTES ? bytes : END_BYTES;
    uint64_t tail = bytes - head > END_BYTES ? bytes - END_BYTES : head;
    int err = move_range(dev, fd, 0, head, move);

    return err ? err : move_range(dev, fd, tail, bytes, move);
}

int signature_copy_ends(struct bd_dev *dev, int *fd)
{
    *fd = memfd_create("ends", MFD_CLOEXEC);
    if (*fd < 0)
        return -errno;
    int err = ftruncate(*fd, (off_t)dev->info.bytes) == 0 ? 0 : -errno;
    if (!err)
        err = move_ends(dev, *fd, copy_in);
    if (err) {
        close(*fd);
        *fd = -1;
    }
    return err;
}

int signature_write_ends(struct bd_dev *dev, int fd)
{
    int err = move_ends(dev, fd, write_back);

    return err ? err : bd_flush(dev);
}
