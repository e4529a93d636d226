/* SPDX-License-Identifier: BSD-2-Clause */
/* The page cache for files that are open with O_DIRECT. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/io/io.h"

/* An open file description with O_DIRECT, which several handles may have. */
struct io_direct {
    unsigned handles;        /* protected by the lock of struct gpunvme_io */
    pthread_mutex_t lock;    /* held where `cached` becomes 1 or 0 */
    _Atomic unsigned cached; /* sections under way; O_DIRECT is on where it is 0 */
};

/* --- Open and close -------------------------------------------------------------------------- */

static bool is_same_description(const struct gpunvme_io_file *a, const struct gpunvme_io_file *b)
{
    pid_t self = getpid();

    if (a->dev != b->dev || a->ino != b->ino)
        return false;
    return a->fd == b->fd || syscall(SYS_kcmp, self, self, KCMP_FILE, a->fd, b->fd) == 0;
}

/* O_DIRECT is off in sections of another handle, so the flag is not asked for first. */
static struct io_direct *find(const struct gpunvme_io_file *f)
{
    for (const struct gpunvme_io_file *other = f->io->files; other; other = other->next) {
        if (other->direct && is_same_description(other, f))
            return other->direct;
    }
    return NULL;
}

int io_cached_open(struct gpunvme_io_file *f)
{
    f->direct = find(f);
    if (!f->direct) {
        int flags = fcntl(f->fd, F_GETFL);
        if (flags < 0 || !(flags & O_DIRECT))
            return 0;
        f->direct = calloc(1, sizeof(*f->direct));
        if (!f->direct)
            return gpunvme_fail(-ENOMEM, "out of memory");
        pthread_mutex_init(&f->direct->lock, NULL);
    }
    f->direct->handles++;
    return 0;
}

void io_cached_close(struct gpunvme_io_file *f)
{
    struct io_direct *d = f->direct;

    if (!d || --d->handles)
        return;
    pthread_mutex_destroy(&d->lock);
    free(d);
}

/* --- Sections -------------------------------------------------------------------------------- */

static void switch_direct(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags >= 0)
        (void)fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

/* Not where it would become 1 or 0. */
static bool change(struct io_direct *d, int by)
{
    unsigned n = atomic_load(&d->cached);

    while (n && n + (unsigned)by) {
        if (atomic_compare_exchange_weak(&d->cached, &n, n + (unsigned)by))
            return true;
    }
    return false;
}

void io_cached_begin(struct gpunvme_io_file *f)
{
    struct io_direct *d = f->direct;

    if (change(d, 1))
        return;
    pthread_mutex_lock(&d->lock);
    /* Before the count: those that find it above 0 go on at once. */
    if (!atomic_load(&d->cached))
        switch_direct(f->fd, false);
    atomic_fetch_add(&d->cached, 1);
    pthread_mutex_unlock(&d->lock);
}

void io_cached_end(struct gpunvme_io_file *f)
{
    struct io_direct *d = f->direct;

    if (change(d, -1))
        return;
    pthread_mutex_lock(&d->lock);
    if (atomic_fetch_sub(&d->cached, 1) == 1)
        switch_direct(f->fd, true);
    pthread_mutex_unlock(&d->lock);
}
