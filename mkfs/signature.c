#include "mkfs/signature.h"

#include <blkid/blkid.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "layout/layout.h"

/* One device can bear several signatures; more than this many is a device that cannot forget. */
#define WIPE_ROUNDS 64

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

static blkid_probe new_probe(int fd)
{
    blkid_probe probe = blkid_new_probe();
    if (!probe)
        return NULL;
    if (blkid_probe_set_device(probe, fd, 0, 0) != 0) {
        blkid_free_probe(probe);
        return NULL;
    }
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

int signature_find(int fd, char *name, size_t size)
{
    int found = find_own(fd, name, size);
    if (found != 0 || is_empty_file(fd))
        return found;
    blkid_probe probe = new_probe(fd);
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

int signature_wipe(int fd)
{
    if (is_empty_file(fd))
        return 0;
    blkid_probe probe = new_probe(fd);
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
