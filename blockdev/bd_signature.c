/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds and removes signatures that libblkid knows. */
#include "blockdev/bd_signature.h"

#include <blkid/blkid.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/minmax.h"

/* A device that still has signatures after this many were removed does not store the zeros. */
#define SIGNATURE_ROUNDS 64
#define SIGNATURE_CHUNK  (64u << 10)
#define SIGNATURE_BLOCK  4096u
/* libblkid knows no signature further from the end of a device (that of Promise RAID). */
#define SIGNATURE_TAIL (2u << 20)

struct range {
    uint64_t from, len;
};

/*
 * Signatures begin in these ranges. The ranges after the first one are for the
 * first partition and VMFS (1 and 2 MiB) and for the last copy of a LUKS header
 * (4 MiB).
 */
static const struct range heads[] = {
    {0, 9u << 16}, {1u << 20, 1u << 18}, {2u << 20, 1u << 16}, {4u << 20, 1u << 16}};

static bool is_empty_file(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size == 0;
}

static blkid_probe signature_new_probe(int fd, uint64_t start, uint32_t lba_size)
{
    blkid_probe probe = blkid_new_probe();

    if (!probe)
        return NULL;
    if (blkid_probe_set_device(probe, fd, (blkid_loff_t)start, 0) != 0) {
        blkid_free_probe(probe);
        return NULL;
    }
    blkid_probe_set_sectorsize(probe, lba_size);
    blkid_probe_enable_superblocks(probe, 1);
    blkid_probe_set_superblocks_flags(probe, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_MAGIC);
    blkid_probe_enable_partitions(probe, 1);
    blkid_probe_set_partitions_flags(probe, BLKID_PARTS_MAGIC | BLKID_PARTS_FORCE_GPT);
    return probe;
}

static void signature_describe(blkid_probe probe, uint64_t start, struct bd_signature *out)
{
    const char *text, *place;

    if (blkid_probe_lookup_value(probe, "TYPE", &text, NULL) == 0)
        snprintf(out->name, sizeof(out->name), "a signature of %s", text);
    else if (blkid_probe_lookup_value(probe, "PTTYPE", &text, NULL) == 0)
        snprintf(out->name, sizeof(out->name), "a partition table (%s)", text);
    else
        snprintf(out->name, sizeof(out->name), "an unknown signature");
    bool found = blkid_probe_lookup_value(probe, "SBMAGIC_OFFSET", &place, NULL) == 0 ||
                 blkid_probe_lookup_value(probe, "PTMAGIC_OFFSET", &place, NULL) == 0;
    out->offset = found ? start + strtoull(place, NULL, 10) : BD_SIGNATURE_NOWHERE;
}

int bd_signature_find(int fd, uint64_t start, uint32_t lba_size, bd_signature_counts counts,
                      void *context, struct bd_signature *out)
{
    if (is_empty_file(fd))
        return 0;
    blkid_probe probe = signature_new_probe(fd, start, lba_size);
    if (!probe)
        return -EIO;
    bool found = false;
    int rc = 0;
    while (!found && (rc = blkid_do_probe(probe)) == 0) {
        signature_describe(probe, start, out);
        found = !counts || counts(out, context);
    }
    blkid_free_probe(probe);
    return found ? 1 : rc < 0 ? -EIO : 0;
}

int bd_signature_wipe(int fd, uint32_t lba_size)
{
    if (is_empty_file(fd))
        return 0;
    blkid_probe probe = signature_new_probe(fd, 0, lba_size);
    if (!probe)
        return -EIO;
    int err = 0;
    int found = blkid_do_probe(probe);
    for (int round = 0; found == 0 && !err; round++) {
        if (round == SIGNATURE_ROUNDS || blkid_do_wipe(probe, 0) != 0)
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

/* Blocks that cannot be read stay zeros. */
static int signature_read_blocks(struct bd_dev *dev, uint64_t offset, uint8_t *chunk, size_t len)
{
    int err = 0;

    for (size_t at = 0; at < len && !err; at += SIGNATURE_BLOCK) {
        size_t n = len - at < SIGNATURE_BLOCK ? len - at : SIGNATURE_BLOCK;
        err = bd_read(dev, offset + at, chunk + at, n);
        if (err == -EIO) {
            memset(chunk + at, 0, n);
            err = 0;
        }
    }
    return err;
}

static int signature_copy_in(struct bd_dev *dev, int fd, uint64_t offset, void *chunk, size_t len)
{
    int err = bd_read(dev, offset, chunk, len);

    if (err == -EIO)
        err = signature_read_blocks(dev, offset, chunk, len);
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

static int signature_move_range(struct bd_dev *dev, int fd, struct range r, void *chunk,
                                move_fn move)
{
    uint64_t end = min_u64(r.from + r.len, dev->info.bytes);
    int err = 0;

    for (uint64_t at = r.from; at < end && !err; at += SIGNATURE_CHUNK)
        err = move(dev, fd, at, chunk, (size_t)min_u64(end - at, SIGNATURE_CHUNK));
    return err;
}

static int move_ends(struct bd_dev *dev, int fd, move_fn move)
{
    uint64_t bytes = dev->info.bytes;
    struct range tail = {bytes < SIGNATURE_TAIL ? 0 : bytes - SIGNATURE_TAIL, SIGNATURE_TAIL};
    void *chunk = malloc(SIGNATURE_CHUNK);
    int err = chunk ? 0 : -ENOMEM;

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]) && !err; i++)
        err = signature_move_range(dev, fd, heads[i], chunk, move);
    if (!err)
        err = signature_move_range(dev, fd, tail, chunk, move);
    free(chunk);
    return err;
}

int bd_signature_copy_ends(struct bd_dev *dev, int *fd)
{
    *fd = memfd_create("ends", MFD_CLOEXEC);
    if (*fd < 0)
        return -errno;
    int err = ftruncate(*fd, (off_t)dev->info.bytes) == 0 ? 0 : -errno;
    if (!err)
        err = move_ends(dev, *fd, signature_copy_in);
    if (err) {
        close(*fd);
        *fd = -1;
    }
    return err;
}

int bd_signature_write_ends(struct bd_dev *dev, int fd)
{
    int err = move_ends(dev, fd, write_back);

    return err ? err : bd_flush(dev);
}
