/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads metadata blocks and corrects them, from a copy or by flipping a single
 * bit back.
 */
#include "fusefs/core/base/checked.h"

#include <errno.h>
#include <syslog.h>

#include "fusefs/core/state.h"
#include "layout/correct.h"

/* --- Places ----------------------------------------------------------------------------------- */

static unsigned checked_places_in_chunk(const struct ffs_chunks *c, uint64_t addr,
                                        uint64_t places[FFS_PLACES])
{
    uint64_t segment = lay_addr_segment(addr);

    if (segment >= c->segments || c->starts[segment] == 0)
        return 0;
    places[0] = c->starts[segment] + lay_addr_index(addr);
    if (c->copies[segment] == 0)
        return 1;
    places[1] = c->copies[segment] + lay_addr_index(addr);
    return 2;
}

unsigned ffs_places_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES])
{
    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(&fs->geo, addr, places);
    if (!ffs_segment_mapped(&fs->chunks, lay_addr_segment(addr)))
        return 0;
    return checked_places_in_chunk(&fs->chunks, addr, places);
}

unsigned ffs_homes_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES])
{
    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(&fs->geo, addr, places);
    return checked_places_in_chunk(&fs->chunks, addr, places);
}

/* --- Reading ---------------------------------------------------------------------------------- */

/* Checks a block of which the age may be known, as it is in place. */
static int checked_check_aged(struct ffs *fs, uint64_t addr, const uint32_t *age, const void *data,
                              const struct lay_expect *want, const char **why)
{
    int err = lay_check_block(&fs->geo, addr, data, want, why);

    if (err || !age || lay_age(data) == *age)
        return err;
    *why = "not the version of the block that was last written";
    return -EUCLEAN;
}

/* Makes the block that was never written. */
static int checked_new(struct ffs *fs, uint64_t addr, void *data, const char **why)
{
    if (lay_new_block(&fs->geo, addr, data))
        return 0;
    *why = "a block that was never written";
    return -EUCLEAN;
}

/* Reads the block once, from one of its places. */
static int checked_read_once(struct ffs *fs, uint64_t addr, const uint32_t *age, uint64_t place,
                             void *data, const struct lay_expect *want, const char **why)
{
    int err = bd_read(fs->dev, ffs_bytes(place), data, LAY_BLOCK_SIZE);

    if (err) {
        ffs_log(fs, LOG_ERR, "block %llu: read error %d", (unsigned long long)place, -err);
        return -EIO;
    }
    return checked_check_aged(fs, addr, age, data, want, why);
}

/* --- Correction ------------------------------------------------------------------------------- */

/*
 * Writes the LBA that holds the corrected bit. On the device it differs from
 * what is there in that bit only. A crash or a torn write therefore leaves the
 * old block or the corrected one, and the log is not needed. The contents of a
 * sealed block do not change, so checksums and ages that name it stay valid.
 */
static int checked_write_bit(struct ffs *fs, uint64_t block, const uint8_t *data, int bit)
{
    uint32_t lba = fs->dev->info.lba_size;
    uint64_t at = (uint64_t)bit / 8 / lba * lba;

    return bd_write(fs->dev, ffs_bytes(block) + at, data + at, lba, BD_FUA);
}

static bool checked_may_write(struct ffs *fs)
{
    return fs->checked.may_write && ffs_writable(fs) == 0;
}

static bool checked_heal(struct ffs *fs, uint64_t block, const uint8_t *data, int bit)
{
    return checked_may_write(fs) && checked_write_bit(fs, block, data, bit) == 0;
}

static void checked_log_corrected(struct ffs *fs, uint64_t block, int bit, bool healed)
{
    atomic_fetch_add(&fs->checked.corrected, 1);
    ffs_log(fs, LOG_WARNING, "block %llu: bit %d of byte %d was flipped; corrected %s",
            (unsigned long long)block, bit % 8, bit / 8,
            healed ? "and written again" : "in memory only");
}

/*
 * Corrects one flipped bit of a block that was read as it is in `data`, and
 * returns its number. The corrected block passes the same check as any other
 * one, that of its age included.
 */
static int checked_correct(struct ffs *fs, uint64_t addr, const uint32_t *age, void *data,
                           const struct lay_expect *want)
{
    int bit = lay_correct(fs->geo.uuid, addr, data);
    const char *why;

    if (bit < 0)
        return -EUCLEAN;
    return checked_check_aged(fs, addr, age, data, want, &why) ? -EUCLEAN : bit;
}

enum checked_how { ONCE, AGAIN, AGAIN_AND_HEAL };

/* Reads the block from one of its places, and corrects it unless it is read ONCE. */
static int checked_read_at(struct ffs *fs, uint64_t addr, const uint32_t *age, uint64_t place,
                           void *data, const struct lay_expect *want, const char **why,
                           enum checked_how how)
{
    int err = checked_read_once(fs, addr, age, place, data, want, why);

    if (!err && how != ONCE)
        atomic_fetch_add(&fs->checked.reread, 1);
    if (err != -EUCLEAN || how == ONCE)
        return err;
    int bit = checked_correct(fs, addr, age, data, want);
    if (bit < 0)
        return bit;
    if (how == AGAIN_AND_HEAL)
        checked_log_corrected(fs, place, bit, checked_heal(fs, place, data, bit));
    return 0;
}

/* --- Two places ------------------------------------------------------------------------------- */

int ffs_checked_write_copy(struct ffs *fs, uint64_t place, const void *data)
{
    if (!checked_may_write(fs))
        return -EUCLEAN;
    int err = bd_write(fs->dev, ffs_bytes(place), data, LAY_BLOCK_SIZE, BD_FUA);
    atomic_fetch_add(err ? &fs->checked.unwritten : &fs->checked.copied, 1);
    return err;
}

static void checked_heal_place(struct ffs *fs, uint64_t place, const void *data)
{
    int err = ffs_checked_write_copy(fs, place, data);
    const char *healed = err == 0 ? " and written again" : ", and cannot be written";

    ffs_log(fs, LOG_WARNING, "block %llu is damaged; read from its copy%s",
            (unsigned long long)place, err == -EUCLEAN ? "" : healed);
}

void ffs_checked_lose_place(struct ffs *fs, uint64_t place)
{
    atomic_fetch_add(&fs->checked.unwritten, 1);
    /* Every checkpoint may meet it again. */
    if (atomic_exchange(&fs->checked.lost_place, place) != place)
        ffs_log(fs, LOG_ERR, "block %llu cannot be written; only its copy is up to date",
                (unsigned long long)place);
}

/*
 * Reads a block whose first place was wrong once: the first place again, then
 * the other one, up to twice. If neither is right, corrects a flipped bit in
 * one of them. With `heal`, a wrong place is written from the right one.
 */
static int checked_read_two(struct ffs *fs, uint64_t addr, const uint32_t *age,
                            const uint64_t places[FFS_PLACES], void *data,
                            const struct lay_expect *want, const char **why, bool heal)
{
    int err = checked_read_once(fs, addr, age, places[0], data, want, why);
    unsigned right = 1;

    if (!err) {
        atomic_fetch_add(&fs->checked.reread, 1);
        return 0;
    }
    for (unsigned tries = 0; tries < 2 && err; tries++)
        err = checked_read_once(fs, addr, age, places[1], data, want, why);
    for (unsigned i = 0; i < FFS_PLACES && err; i++) {
        err = checked_read_at(fs, addr, age, places[i], data, want, why,
                              heal ? AGAIN_AND_HEAL : AGAIN);
        right = i;
    }
    atomic_store(&fs->checked.copy_used, true);
    if (!err && heal)
        checked_heal_place(fs, places[!right], data);
    return err;
}

/*
 * Reads a block that may have two places. `again` means that the first place
 * was already wrong once.
 */
static int checked_read(struct ffs *fs, uint64_t addr, const uint32_t *age, void *data,
                        const struct lay_expect *want, const char **why, bool again)
{
    uint64_t places[FFS_PLACES];
    unsigned n = ffs_places_of(fs, addr, places);
    int err = -EUCLEAN;

    if (n > 0 && !again)
        err = checked_read_at(fs, addr, age, places[0], data, want, why, ONCE);
    if (err && n > 1)
        return checked_read_two(fs, addr, age, places, data, want, why, !again);
    if (err == -EUCLEAN && n > 0)
        err = checked_read_at(fs, addr, age, places[0], data, want, why,
                              again ? AGAIN : AGAIN_AND_HEAL);
    return err;
}

int ffs_checked_there(struct ffs *fs, uint64_t addr, const uint32_t *age, void *data,
                      const struct lay_expect *want, const char **why)
{
    if (age && *age == 0)
        return checked_new(fs, addr, data, why);
    int err = checked_check_aged(fs, addr, age, data, want, why);
    return err == -EUCLEAN ? checked_read(fs, addr, age, data, want, why, true) : err;
}

int ffs_checked_read(struct ffs *fs, uint64_t addr, const uint32_t *age, void *data,
                     const struct lay_expect *want, const char **why)
{
    if (age && *age == 0)
        return checked_new(fs, addr, data, why);
    return checked_read(fs, addr, age, data, want, why, false);
}

/* --- Scrub ------------------------------------------------------------------------------------ */

/*
 * Reads a place into `data`. Returns true if the block is right there, apart
 * from a flipped bit, which is corrected unless the mount is read-only.
 */
static bool checked_scrub_place(struct ffs *fs, uint64_t addr, uint32_t age, void *data,
                                struct ffs_scrubbed *s)
{
    const struct lay_expect any = {.magic = 0};
    const char *why;
    int err = checked_read_at(fs, addr, &age, s->place, data, &any, &why, ONCE);

    s->wrong = err != 0;
    s->unreadable = err == -EIO;
    if (err == -EUCLEAN)
        err = checked_read_at(fs, addr, &age, s->place, data, &any, &why, AGAIN_AND_HEAL);
    s->corrected = s->wrong && !err && checked_may_write(fs);
    return err == 0;
}

/*
 * Writes what the other place has, which is in `data`. A place of the label may
 * have got another use since.
 */
static void checked_scrub_copy(struct ffs *fs, uint64_t addr, const void *data,
                               struct ffs_scrubbed *s)
{
    int err = lay_addr_kind(addr) == LAY_KIND_LABEL ? -EUCLEAN
                                                    : ffs_checked_write_copy(fs, s->place, data);

    s->copied = err == 0;
    if (err != -EUCLEAN)
        ffs_log(fs, LOG_WARNING, "block %llu was damaged%s", (unsigned long long)s->place,
                err ? ", and cannot be written" : "; written again from its copy");
}

unsigned ffs_checked_scrub(struct ffs *fs, uint64_t addr, uint32_t age, void *data,
                           struct ffs_scrubbed found[FFS_PLACES])
{
    uint64_t places[FFS_PLACES];
    unsigned n = ffs_places_of(fs, addr, places), right = 0, bad = FFS_PLACES;

    for (unsigned i = 0; i < n; i++) {
        found[i] = (struct ffs_scrubbed){.place = places[i]};
        if (checked_scrub_place(fs, addr, age, data, &found[i]))
            right++;
        else
            bad = i;
    }
    /* The bad place may have been read last. */
    if (right == 1 && n == FFS_PLACES) {
        struct ffs_scrubbed again = {.place = places[!bad]};
        if (!bad || checked_scrub_place(fs, addr, age, data, &again))
            checked_scrub_copy(fs, addr, data, &found[bad]);
        else
            right = 0;
    }
    bool lost = right < n && (right == 0 || lay_addr_kind(addr) == LAY_KIND_LABEL);
    if (lost && !found[bad].unreadable)
        ffs_checked_damaged(fs, addr, 0, "found by a scrub");
    return n;
}

int ffs_checked_correct_data(struct ffs *fs, uint64_t block, uint32_t sum, void *data)
{
    int bit = lay_correct_data(sum, data);

    return bit < 0 ? bit : checked_write_bit(fs, block, data, bit);
}

/* --- Blocks that stay bad --------------------------------------------------------------------- */

/* Returns true if the block is not among the last damaged ones. */
static bool checked_note(struct ffs_checked *c, uint64_t addr)
{
    bool known = false;

    pthread_mutex_lock(&c->lock);
    for (uint64_t i = 0; i < c->damaged && i < FFS_DAMAGED_MAX && !known; i++)
        known = c->damaged_at[i] == addr;
    if (!known)
        c->damaged_at[c->damaged++ % FFS_DAMAGED_MAX] = addr;
    pthread_mutex_unlock(&c->lock);
    return !known;
}

int ffs_checked_damaged(struct ffs *fs, uint64_t addr, uint64_t ino, const char *why)
{
    uint64_t places[FFS_PLACES] = {LAY_NONE};

    ffs_places_of(fs, addr, places);
    if (checked_note(&fs->checked, addr))
        ffs_log(fs, LOG_ERR, "damaged: block %llu, inode %llu: %s; run fsck.gpunvme",
                (unsigned long long)places[0], (unsigned long long)ino, why);
    if (!atomic_exchange(&fs->checked.any_damaged, true))
        ffs_background_hurry(fs);
    return -EUCLEAN;
}

bool ffs_checked_nth_damaged(struct ffs *fs, uint64_t n, uint64_t *addr)
{
    struct ffs_checked *c = &fs->checked;

    pthread_mutex_lock(&c->lock);
    bool found = n < c->damaged;
    *addr = c->damaged_at[n % FFS_DAMAGED_MAX];
    pthread_mutex_unlock(&c->lock);
    return found;
}

void ffs_metadata_counts(struct ffs *fs, struct ffs_metadata_counts *out)
{
    struct ffs_checked *c = &fs->checked;

    out->reread = atomic_load(&c->reread);
    out->corrected = atomic_load(&c->corrected);
    out->copied = atomic_load(&c->copied);
    out->unwritten = atomic_load(&c->unwritten);
    pthread_mutex_lock(&c->lock);
    out->damaged = c->damaged;
    pthread_mutex_unlock(&c->lock);
}
