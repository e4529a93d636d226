/* SPDX-License-Identifier: BSD-2-Clause */
/* Counts the bytes that each open file description has moved. */
#include "fusefs/daemon/state/activity.h"

#include <errno.h>

#include "fusefs/daemon/state/daemon.h"

static_assert(ACTIVITY_CLOSED < GPUNVME_OPEN_FILES_MAX, "the first answer has room for open ones");

static uint64_t activity_load(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

static void activity_describe(const struct open_file *file, struct gpunvme_open_file *out)
{
    const struct activity *a = &file->activity;
    uint64_t caller = activity_load(&a->caller);

    *out = (struct gpunvme_open_file){
        .id = a->id,
        .ino = ffs_ino(file->inode),
        .uid = (uint32_t)(caller >> 32),
        .pid = (uint32_t)caller,
        .calls = activity_load(&a->calls),
        .gpu_read_bytes = activity_load(&a->bytes[ACTIVITY_GPU][0]),
        .gpu_written_bytes = activity_load(&a->bytes[ACTIVITY_GPU][1]),
        .bounce_read_bytes = activity_load(&a->bytes[ACTIVITY_BOUNCE][0]),
        .bounce_written_bytes = activity_load(&a->bytes[ACTIVITY_BOUNCE][1]),
        .kernel_read_bytes = activity_load(&a->bytes[ACTIVITY_KERNEL][0]),
        .kernel_written_bytes = activity_load(&a->bytes[ACTIVITY_KERNEL][1]),
    };
    if (file->shared_calls)
        shared_calls_describe(file->shared_calls, out);
}

void activity_begin(struct activity_log *log, struct activity *a)
{
    a->id = ++log->last_id;
}

void activity_end(struct activity_log *log, const struct open_file *file)
{
    struct gpunvme_open_file last;

    activity_describe(file, &last);
    if (!last.calls)
        return;
    last.closed = 1;
    log->closed[log->next++ % ACTIVITY_CLOSED] = last;
}

void activity_caller(struct activity *a, uid_t uid, pid_t pid)
{
    uint64_t caller = (uint64_t)uid << 32 | (uint32_t)pid;

    /*
     * Avoids repeated writes to the cache line by threads that share the file.
     */
    if (pid && activity_load(&a->caller) != caller)
        atomic_store_explicit(&a->caller, caller, memory_order_relaxed);
}

void activity_add(struct activity *a, enum activity_path path, bool written, uint64_t bytes)
{
    if (!bytes)
        return;
    atomic_fetch_add_explicit(&a->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&a->bytes[path][written], bytes, memory_order_relaxed);
}

/* --- Answers --------------------------------------------------------------------------------- */

bool activity_visible(uid_t uid, uint32_t owner)
{
    return uid == 0 || uid == owner;
}

static void activity_add_file(struct gpunvme_ioc_open_files *arg, uid_t uid,
                              const struct gpunvme_open_file *file)
{
    if (file->calls && activity_visible(uid, file->uid))
        arg->files[arg->count++] = *file;
}

int activity_files(struct daemon *d, uid_t uid, struct gpunvme_ioc_open_files *arg)
{
    const uint64_t below = arg->below ? arg->below : UINT64_MAX;
    struct gpunvme_open_file found;

    if (arg->reserved)
        return -EINVAL;
    *arg = (struct gpunvme_ioc_open_files){.abi = arg->abi};
    pthread_mutex_lock(&d->files_lock);
    for (unsigned i = 0; below == UINT64_MAX && i < ACTIVITY_CLOSED; i++)
        activity_add_file(arg, uid, &d->activity.closed[i]);
    for (const struct open_file *f = d->files; f; f = f->next) {
        if (f->activity.id >= below)
            continue;
        if (arg->count == GPUNVME_OPEN_FILES_MAX)
            break;
        activity_describe(f, &found);
        activity_add_file(arg, uid, &found);
        arg->below = f->activity.id;
    }
    pthread_mutex_unlock(&d->files_lock);
    /* Only a full reply is followed by another one. */
    if (arg->count < GPUNVME_OPEN_FILES_MAX)
        arg->below = 0;
    return 0;
}
