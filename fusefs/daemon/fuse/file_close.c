/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The end of open file descriptions and open directories: at RELEASE, and at unmount.
 */
#include "fusefs/daemon/fuse/file_close.h"

#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/state/open_file.h"

void file_free(struct daemon *d, struct open_file *file)
{
    pthread_mutex_lock(&d->files_lock);
    activity_end(&d->activity, file);
    if (file->shared_calls)
        shared_calls_end(&d->shared_calls, file);
    *file->link = file->next;
    if (file->next)
        file->next->link = file->link;
    pthread_mutex_unlock(&d->files_lock);
    if (!leases_release(d->leases, file))
        file_end(d, file);
}

void files_free_all(struct daemon *d)
{
    while (d->files)
        file_free(d, d->files);
}
