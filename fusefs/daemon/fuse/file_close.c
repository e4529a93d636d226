/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Ends open file descriptions and open directories, at RELEASE and at unmount.
 */
#include "fusefs/daemon/fuse/file_close.h"

#include "fusefs/daemon/lease/lease.h"
#include "fusefs/daemon/state/open_file.h"

void file_free(struct daemon *d, struct open_file *file)
{
    file_unlist(d, file);
    if (!leases_release(d->leases, file))
        file_end(d, file);
}

void files_free_all(struct daemon *d)
{
    while (d->files)
        file_free(d, d->files);
}
