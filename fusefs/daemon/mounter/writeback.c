/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Syncs files of a mount by their handles, as the mounter does for the daemon.
 */
#include "fusefs/daemon/mounter/writeback.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <syslog.h>
#include <unistd.h>

#include "fusefs/daemon/mounter/mounter.h"
#include "support/thread.h"

/* FILEID_INO64_GEN of linux/exportfs.h: the type of FUSE's file handles. */
#define HANDLE_TYPE  0x81
#define HANDLE_WORDS 3
#define MS_PER_S     1000ull

/*
 * Opens by handle, since the file may have no name. syncfs(2) does not suffice:
 * for FUSE it starts the writes without waiting for them.
 */
static int sync_file(int mount_fd, const struct sync_target *t)
{
    const uint32_t words[HANDLE_WORDS] = {(uint32_t)(t->ino >> 32), (uint32_t)t->ino,
                                          t->generation};

    union {
        struct file_handle handle;
        char bytes[sizeof(struct file_handle) + sizeof(words)];
    } h = {.handle = {.handle_bytes = sizeof(words), .handle_type = HANDLE_TYPE}};
    memcpy(h.bytes + sizeof(struct file_handle), words, sizeof(words));
    int fd = open_by_handle_at(mount_fd, &h.handle, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int err = fsync(fd) == 0 ? 0 : -errno;
    close(fd);
    return err;
}

/* Holds the state of the writing thread, which owns it after a timeout. */
struct work {
    int fd; /* the mount's root */
    size_t count;
    struct sync_target *targets;
    int err;
};

static void free_work(struct work *w)
{
    close(w->fd);
    free(w->targets);
    free(w);
}

static void *sync_files(void *arg)
{
    struct work *w = arg;

    for (size_t i = 0; w->targets && i < w->count; i++) {
        int err = sync_file(w->fd, &w->targets[i]);
        w->err = w->err ? w->err : err;
    }
    return NULL;
}

static int open_mount(const char *mountpoint)
{
    struct statfs st;
    int fd = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || (fstatfs(fd, &st) == 0 && st.f_type == FUSE_SUPER_MAGIC))
        return fd;
    close(fd); /* the mount was lazily unmounted */
    return -1;
}

/*
 * Returns 0, the error of a file's write, or -ETIMEDOUT, after which the thread
 * continues and owns w.
 */
static int writeback_run(struct work *w, unsigned seconds)
{
    pthread_t thread;
    uint64_t until = deadline_after_ms(seconds * MS_PER_S);
    int err = -pthread_create(&thread, NULL, sync_files, w);

    if (!err)
        err = seconds ? join_until(thread, until) : -pthread_join(thread, NULL);
    if (err == -ETIMEDOUT) {
        pthread_detach(thread);
        return err;
    }
    err = err ? err : w->err;
    if (err)
        syncfs(w->fd);
    free_work(w);
    return err;
}

int writeback_files(const char *mountpoint, struct sync_target *targets, size_t count,
                    unsigned seconds)
{
    int fd = open_mount(mountpoint);
    struct work *w = fd >= 0 ? calloc(1, sizeof(*w)) : NULL;

    if (!w) {
        free(targets);
        if (fd >= 0)
            close(fd);
        return fd >= 0 ? -ENOMEM : 0;
    }
    *w = (struct work){.fd = fd, .count = count, .targets = targets};
    return writeback_run(w, seconds);
}
