/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Passes the files with pages that programs dirtied through mappings to the
 * mounter.
 */
#include "fusefs/daemon/mounter/dirty_files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/mounter/mounter.h"
#include "fusefs/daemon/mounter/writeback.h"
#include "fusefs/daemon/state/daemon.h"
#include "fusefs/daemon/state/open_file.h"

/*
 * A page becomes dirty through a writable mapping, which keeps its file open,
 * or, with writeback_cache, through a descriptor that is open for writing.
 */
static bool may_be_dirty(const struct daemon *d, const struct open_file *file)
{
    return file_writes(file) && (d->writeback_cache || (file->flags & O_ACCMODE) == O_RDWR);
}

static struct sync_target *list_targets(struct daemon *d, size_t *count)
{
    size_t n = 0;
    size_t room = 0;

    pthread_mutex_lock(&d->files_lock);
    for (struct open_file *f = d->files; f; f = f->next)
        room += may_be_dirty(d, f);
    struct sync_target *targets = malloc((room + 1) * sizeof(*targets));
    for (struct open_file *f = d->files; targets && f; f = f->next) {
        if (may_be_dirty(d, f))
            targets[n++] = (struct sync_target){.ino = ffs_ino(f->inode),
                                                .generation = ffs_generation(f->inode)};
    }
    pthread_mutex_unlock(&d->files_lock);
    *count = n;
    return targets;
}

void dirty_files_write_back(struct daemon *d, unsigned seconds)
{
    size_t count = 0;
    struct sync_target *targets = list_targets(d, &count);
    int err = mounter_write_back(d->mounter, targets, targets ? count : 0, seconds);

    free(targets);
    if (err)
        log_line(LOG_WARNING, "%s: pages changed through mappings may be lost: %s",
                 d->opts->mountpoint, strerror(-err));
}
