/* SPDX-License-Identifier: BSD-2-Clause */
/* Decides whether a device still belongs to gpunvmefs (FORMAT.md 4.1). */
#include "fusefs/core/ffs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blockdev/bd_signature.h"
#include "fusefs/core/mount/mount.h"

/* The offset at which partitioning tools start the first partition. */
#define OURS_FIRST_PARTITION (1u << 20)

/* Findings about block 0. */
struct ours {
    struct bd_dev *dev;
    struct lay_geometry geo; /* valid if the superblock is */
    bool sound;
    bool newer;     /* a superblock of an unknown version */
    bool plausible; /* it has the magic, or cannot be read */
};

/*
 * Returns whether a signature counts as foreign. Within a file system with a
 * valid superblock, users may have written anything to data and to the payload
 * of metadata. Signatures after its end count, and so do those in its own areas
 * at a block that does not begin like metadata.
 */
static bool ours_counts(const struct bd_signature *s, void *context)
{
    const struct ours *o = context;
    uint64_t block = s->offset >> LAY_BLOCK_SHIFT;
    union lay_block b;

    if (!o->sound || s->offset == BD_SIGNATURE_NOWHERE || block >= o->geo.blocks)
        return true;
    if (lay_range_ok(&o->geo, block, 1))
        return false;
    return bd_read(o->dev, block << LAY_BLOCK_SHIFT, &b, sizeof(b)) == 0 &&
           memcmp(&b.head.magic, "GN", 2) != 0;
}

/* Returns 1 if there is a foreign signature, 0 if not, or -errno. */
static int look_for_foreign(struct ours *o, struct bd_signature *s)
{
    uint32_t lba_size = o->dev->info.lba_size;
    int fd;
    int found = bd_signature_copy_ends(o->dev, &fd);

    if (found)
        return found;
    found = bd_signature_find(fd, 0, lba_size, ours_counts, o, s);
    /*
     * A partition may outlive its table if only the table's block was
     * overwritten.
     */
    if (!found && !o->plausible && o->dev->info.bytes > OURS_FIRST_PARTITION)
        found = bd_signature_find(fd, OURS_FIRST_PARTITION, lba_size, ours_counts, o, s);
    close(fd);
    return found;
}

static int read_block_0(struct ours *o)
{
    struct lay_super *sb = malloc(sizeof(*sb));
    int err = sb ? bd_read(o->dev, 0, sb, sizeof(*sb)) : -ENOMEM;

    if (!err) {
        int check = lay_check_super(sb, 0, 0, &o->geo, NULL, NULL);
        o->sound = check == 0;
        o->newer = check == -ENOTSUP;
        o->plausible = lay_super_magic(sb);
    }
    free(sb);
    if (err != -EIO)
        return err;
    o->plausible = true;
    return 0;
}

int ffs_ours(struct bd_dev *dev, bool reclaim, char *why, size_t len)
{
    const struct ffs_reason r = {why, len};
    struct ours o = {.dev = dev};
    struct bd_signature s;

    if (dev->info.bytes < LAY_BLOCK_SIZE)
        return 0;
    int err = read_block_0(&o);
    if (!err && o.newer)
        return 0;
    if (!err)
        err = look_for_foreign(&o, &s);
    if (err < 0)
        return ffs_refuse(&r, err, "cannot be searched for signatures: %s", strerror(-err));
    if (err)
        return ffs_refuse(
            &r, -EINVAL,
            "holds %s: no longer a gpunvmefs file system, nothing is written; only to "
            "discard that, run 'wipefs -a' and then 'fsck.gpunvme --reclaim'",
            s.name);
    if (!o.plausible && !reclaim)
        return ffs_refuse(&r, -EINVAL,
                          "holds no gpunvmefs file system, check the name of the device; "
                          "'fsck.gpunvme --reclaim' seeks one whose block 0 was overwritten");
    return 0;
}
