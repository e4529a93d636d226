/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Holds block 1 of a device while a mount or a tool writes to it: rule R3 of
 * FORMAT.md. A thread renews the block. bd_dev.permit stops every write after
 * the right to write has ended.
 *
 * Reads and writes labels (FORMAT.md 4). Each change of the labels makes a new
 * incarnation. The first write after the labels is a commit of that incarnation
 * (R2).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "fusefs/core/ffs.h"
#include "fusefs/core/state.h"
#include "layout/label.h"
#include "layout/mmp.h"
#include "support/clock.h"

#define MMP_SLICE_NS (100 * NS_PER_MS) /* between looks at a request to stop */
#define MMP_HURRY    4u                /* part of the interval after a failed write */

struct ffs_mmp {
    struct bd_permit permit;
    struct bd_dev *dev;
    struct ffs_mmp_opts opts;
    struct lay_mmp_hold hold; /* used by one thread at a time: the taker, then the renewer */
    _Atomic uint64_t until;   /* end of the right to write; 0 when it is lost */
    pthread_t thread;
    bool threaded;
    pthread_mutex_t lock; /* protects stop, and orders renewals without a thread */
    pthread_cond_t wake;  /* stop, lost or until has changed */
    bool stop;
    _Atomic bool lost;
};

/* --- The host -------------------------------------------------------------------------------- */

static struct {
    pthread_once_t once;
    uint8_t boot_id[16]; /* zero: unknown */
    char name[LAY_MMP_HOST];
} guard_host = {.once = PTHREAD_ONCE_INIT};

static void guard_read_host(void)
{
    char text[UUID_STR_LEN] = "";
    struct utsname name;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        ssize_t n = read(fd, text, sizeof(text) - 1);
        text[n > 0 ? n : 0] = '\0';
        close(fd);
    }
    if (uuid_parse(text, guard_host.boot_id) != 0)
        memset(guard_host.boot_id, 0, sizeof(guard_host.boot_id));
    if (uname(&name) == 0)
        snprintf(guard_host.name, sizeof(guard_host.name), "%.*s", (int)sizeof(guard_host.name) - 1,
                 name.nodename);
}

void ffs_mmp_prepare(void)
{
    pthread_once(&guard_host.once, guard_read_host);
}

/* --- Device and time ------------------------------------------------------------------------- */

static int guard_read_block(void *arg, struct lay_mmp *block)
{
    struct ffs_mmp *m = arg;

    return bd_read(m->dev, ffs_bytes(LAY_MMP_BLOCK), block, LAY_BLOCK_SIZE);
}

static int guard_write_block(void *arg, const struct lay_mmp *block, bool durable)
{
    struct ffs_mmp *m = arg;

    return bd_write(m->dev, ffs_bytes(LAY_MMP_BLOCK), block, LAY_BLOCK_SIZE,
                    BD_ALWAYS | (durable ? BD_FUA : 0));
}

/* This clock also runs while the host is suspended. */
static uint64_t guard_now_ns(void *arg)
{
    struct ffs_mmp *m = arg;
    struct timespec ts;

    if (m->opts.clock)
        return m->opts.clock->now(m->opts.clock->arg);
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static bool guard_given_up(struct ffs_mmp *m)
{
    return m->stop || (!m->threaded && m->opts.interrupted && m->opts.interrupted());
}

static int guard_wait_ns(void *arg, uint64_t ns)
{
    struct ffs_mmp *m = arg;

    if (m->opts.clock)
        return m->opts.clock->wait(m->opts.clock->arg, ns);
    uint64_t end = now_ns() + ns;
    pthread_mutex_lock(&m->lock);
    bool stop = guard_given_up(m);
    for (uint64_t now; !stop && (now = now_ns()) < end; stop = guard_given_up(m))
        cond_wait_until(&m->wake, &m->lock, min_u64(end, now + MMP_SLICE_NS));
    pthread_mutex_unlock(&m->lock);
    return stop ? -EINTR : 0;
}

static struct lay_time guard_date(void *arg)
{
    (void)arg;
    return ffs_now();
}

/* --- The right to write ---------------------------------------------------------------------- */

static void guard_lose(struct ffs_mmp *m, int err)
{
    char holder[LAY_MMP_TEXT], what[LAY_MMP_TEXT + 64];

    lay_mmp_text(&m->hold.other, holder, sizeof(holder));
    if (err == -EBUSY)
        snprintf(what, sizeof(what), "multi-mount protection: now in use by %s", holder);
    else
        snprintf(what, sizeof(what), "multi-mount protection: block 1 not written for %u s",
                 2 * m->hold.interval / 1000);
    atomic_store(&m->lost, true);
    atomic_store(&m->until, 0);
    if (m->opts.lost)
        m->opts.lost(m->opts.arg, what, err);
}

/* Renews the block. An error ends the right at once or when its time is over. */
static void guard_renew(struct ffs_mmp *m)
{
    int err = lay_mmp_renew(&m->hold);

    if (!err)
        atomic_store(&m->until, m->hold.until);
    else if (err == -EBUSY || (err != -EINTR && guard_now_ns(m) >= m->hold.until))
        guard_lose(m, err);
}

static void *guard_run(void *arg)
{
    struct ffs_mmp *m = arg;
    uint64_t interval = m->hold.interval * NS_PER_MS, last = 0;

    while (guard_wait_ns(m, m->hold.until == last ? interval / MMP_HURRY : interval) == 0 &&
           !atomic_load(&m->lost)) {
        last = m->hold.until;
        guard_renew(m);
        pthread_mutex_lock(&m->lock);
        pthread_cond_broadcast(&m->wake);
        pthread_mutex_unlock(&m->lock);
    }
    return NULL;
}

static int guard_state(struct ffs_mmp *m)
{
    if (guard_now_ns(m) < atomic_load(&m->until))
        return 0;
    return atomic_load(&m->lost) ? -EIO : -EAGAIN;
}

/*
 * The right may have ended because the device did not answer for a while. Then
 * the renewer's transfer is under way too, and its end decides.
 */
static int guard_may_write(struct bd_permit *permit, bool wait)
{
    struct ffs_mmp *m = (struct ffs_mmp *)((char *)permit - offsetof(struct ffs_mmp, permit));

    if (guard_now_ns(m) < atomic_load(&m->until))
        return 0;
    pthread_mutex_lock(&m->lock);
    int state = guard_state(m);
    if (state == -EAGAIN && !m->threaded) {
        guard_renew(m);
        state = guard_state(m) ? -EIO : 0;
    }
    for (; state == -EAGAIN && wait; state = guard_state(m))
        cond_wait_until(&m->wake, &m->lock, now_ns() + MMP_SLICE_NS);
    pthread_mutex_unlock(&m->lock);
    return state;
}

/* --- Taking and dropping the block ----------------------------------------------------------- */

/*
 * Stores the geometry of the label. Returns false if there is no file system
 * that this program could write to. The caller determines the reason.
 */
static bool guard_find_label(struct bd_dev *dev, bool reclaim, struct lay_geometry *geo)
{
    const struct lay_io io = ffs_io(dev);
    struct lay_labels *labels = malloc(sizeof(*labels));
    bool found = labels && bd_bytes(dev) > ffs_bytes(LAY_MMP_BLOCK) &&
                 lay_labels_read(&io, bd_bytes(dev) >> LAY_BLOCK_SHIFT, reclaim, labels) == 0;

    if (found)
        lay_label_geometry(lay_labels_newest(labels), geo);
    free(labels);
    return found && !(geo->ro_compat & ~LAY_FEATURE_RO_COMPAT);
}

static int guard_init(struct ffs_mmp *m, struct bd_dev *dev, const struct ffs_mmp_opts *opts)
{
    struct lay_mmp_hold *h = &m->hold;

    ffs_mmp_prepare();
    m->permit.may_write = guard_may_write;
    m->dev = dev;
    m->opts = *opts;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    h->io = (struct lay_mmp_io){.read = guard_read_block,
                                .write = guard_write_block,
                                .now = guard_now_ns,
                                .wait = guard_wait_ns,
                                .date = guard_date,
                                .arg = m};
    memcpy(h->boot_id, guard_host.boot_id, sizeof(h->boot_id));
    memcpy(h->host, guard_host.name, sizeof(h->host));
    h->lock = dev->info.lock;
    h->state = opts->tool ? LAY_MMP_CHECKED : LAY_MMP_MOUNTED;
    return getrandom(h->holder, sizeof(h->holder), 0) == sizeof(h->holder) ? 0 : -EIO;
}

static void guard_destroy(struct ffs_mmp *m)
{
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->wake);
    free(m);
}

static void guard_say(const struct ffs_mmp *m, const char *what)
{
    char line[512];

    snprintf(line, sizeof(line), "%s: %s", m->dev->info.name, what);
    if (m->opts.log)
        m->opts.log(LOG_WARNING, line);
}

static void guard_say_used(struct ffs_mmp *m)
{
    char holder[LAY_MMP_TEXT], what[LAY_MMP_TEXT + 128];
    uint32_t interval = lay_get32(m->hold.other.interval);

    if (!interval)
        interval = LAY_MMP_INTERVAL_MAX;
    lay_mmp_text(&m->hold.other, holder, sizeof(holder));
    if (m->opts.read_only)
        snprintf(what, sizeof(what), "in use by %s; what is read may change meanwhile", holder);
    else
        snprintf(what, sizeof(what), "in use by %s; waiting up to %u s to see if it is alive",
                 holder, 3 * interval / 1000 + 2);
    guard_say(m, what);
}

static int guard_refuse(struct ffs_mmp *m, int err, struct reason *why)
{
    char holder[LAY_MMP_TEXT];

    lay_mmp_text(&m->hold.other, holder, sizeof(holder));
    switch (err) {
    case -EBUSY:
        return reason_set(why, err, "in use by %s: unmount it there first", holder);
    case -EINTR:
        return reason_set(why, err, "interrupted");
    case -ETIMEDOUT:
        return reason_set(why, err,
                          "too slow for multi-mount protection (FORMAT.md 4.5); mount it "
                          "with nommp if no other host reaches it");
    default:
        return reason_set(why, err, "multi-mount protection: block 1: %s", strerror(-err));
    }
}

/*
 * Returns 1 if the block is to be taken, 0 if not, or -errno. By default, a
 * device that nobody else reaches is taken only if the block says that it is in
 * use, as on a drive that came from another host.
 */
static int guard_look(struct ffs_mmp *m)
{
    int used = lay_mmp_look(&m->hold);
    bool known = lay_get32(m->hold.other.interval) != 0;
    bool wanted = m->dev->info.shared || m->opts.policy == FFS_MMP_ON;

    if (used < 0)
        return used;
    if (used && (wanted || known))
        guard_say_used(m);
    if (m->opts.read_only)
        return 0;
    return wanted || (known && lay_get32(m->hold.other.state) != LAY_MMP_FREE);
}

static int guard_start(struct ffs_mmp *m)
{
    int err = lay_mmp_take(&m->hold);

    if (err)
        return err;
    atomic_store(&m->until, m->hold.until);
    m->threaded = m->opts.clock == NULL;
    m->dev->permit = &m->permit; /* before the thread starts, which reads it */
    err = m->threaded ? -pthread_create(&m->thread, NULL, guard_run, m) : 0;
    if (err) {
        m->threaded = false;
        m->dev->permit = NULL;
    }
    return err;
}

int ffs_mmp_take(struct bd_dev *dev, const struct ffs_mmp_opts *opts, struct ffs_mmp **out,
                 struct reason *why)
{
    struct lay_geometry geo;
    struct ffs_mmp *m;

    *out = NULL;
    if (opts->policy == FFS_MMP_OFF || !guard_find_label(dev, opts->reclaim, &geo))
        return 0;
    m = calloc(1, sizeof(*m));
    if (!m)
        return reason_set(why, -ENOMEM, "out of memory");
    m->hold.geo = geo;
    int err = guard_init(m, dev, opts);
    int look = err ? err : guard_look(m);
    if (look == 1)
        err = guard_start(m);
    if (look == 1 && !err) {
        *out = m;
        return 0;
    }
    if (look < 0 || err)
        err = guard_refuse(m, look < 0 ? look : err, why);
    guard_destroy(m);
    return err;
}

static void guard_stop(struct ffs_mmp *m)
{
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->wake);
    pthread_mutex_unlock(&m->lock);
    if (m->threaded)
        pthread_join(m->thread, NULL);
    m->threaded = false;
}

void ffs_mmp_drop(struct ffs_mmp *m, bool release)
{
    if (!m)
        return;
    guard_stop(m);
    /* A block that cannot be made free makes the next mount wait. */
    if (release && !atomic_load(&m->lost))
        (void)lay_mmp_release(&m->hold);
    m->dev->permit = NULL;
    guard_destroy(m);
}

static void guard_stop_writes(void *arg, const char *what, int err)
{
    ffs_fail(arg, what, err);
}

int ffs_guard(struct ffs *fs, struct reason *why)
{
    const struct ffs_mmp_opts opts = {.policy = fs->opts.mmp,
                                      .read_only = fs->opts.read_only || fs->dev->info.read_only,
                                      .tool = fs->opts.tool,
                                      .clock = fs->opts.clock,
                                      .log = fs->opts.log,
                                      .lost = guard_stop_writes,
                                      .arg = fs};

    return ffs_mmp_take(fs->dev, &opts, &fs->mmp, why);
}

int ffs_read_label(struct bd_dev *dev, struct lay_label *out)
{
    const struct lay_io io = ffs_io(dev);
    struct lay_labels labels;
    int err = lay_labels_read(&io, dev->info.bytes >> LAY_BLOCK_SHIFT, false, &labels);

    if (err && err != -ERANGE)
        return err;
    *out = *lay_labels_newest(&labels);
    return 0;
}

int ffs_label_write(struct ffs *fs, struct lay_label *label)
{
    const struct lay_io io = ffs_io(fs->dev);

    lay_label_next(label, ffs_random());
    return lay_labels_write(&io, &fs->labels, label);
}

/* Changes bytes of the label and writes it, durably. The caller holds commit_lock. */
static int incarnation_change(struct ffs *fs, size_t at, const void *bytes, size_t len)
{
    struct lay_label label;

    /* The commit after the labels must not have to wait for space. */
    int err = ffs_log_room(fs) > 0 ? 0 : ffs_checkpoint(fs);
    if (err)
        return err;
    label = fs->label;
    memcpy((uint8_t *)&label + at, bytes, len);
    err = ffs_label_write(fs, &label);
    if (err)
        return ffs_fail(fs, "label", err);
    pthread_rwlock_wrlock(&fs->meta);
    fs->label = label;
    pthread_rwlock_unlock(&fs->meta);
    return ffs_commit_empty(fs);
}

static int incarnation_set(struct ffs *fs, size_t at, const void *bytes, size_t len)
{
    pthread_mutex_lock(&fs->journal.commit_lock);
    int err = ffs_writable(fs);
    if (!err)
        err = incarnation_change(fs, at, bytes, len);
    pthread_mutex_unlock(&fs->journal.commit_lock);
    return err;
}

int ffs_set_label(struct ffs *fs, const char *label)
{
    char text[sizeof(fs->label.label)] = "";

    if (!lay_label_ok(label, strlen(label)))
        return -EINVAL;
    memcpy(text, label, strlen(label));
    return incarnation_set(fs, offsetof(struct lay_label, label), text, sizeof(text));
}

int ffs_set_uuid(struct ffs *fs, const uint8_t uuid[16])
{
    return incarnation_set(fs, offsetof(struct lay_label, uuid), uuid, sizeof(fs->label.uuid));
}
