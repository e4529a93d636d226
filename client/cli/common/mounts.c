/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists the gpunvmefs mounts that this process sees. */
#include "client/cli/common/mounts.h"

#include <errno.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blockdev/device.h"
#include "support/array.h"

bool cli_mount_is_ours(const char *type)
{
    return strcmp(type, "fuseblk.gpunvmefs") == 0 || strcmp(type, "fuse.gpunvmefs") == 0;
}

static int mount_list_add(struct cli_mounts *m, const struct mntent *entry)
{
    if (array_grow((void **)&m->all, m->n, sizeof(*m->all)))
        return -ENOMEM;
    struct cli_mount *mount = &m->all[m->n++];
    mount->device = strdup(entry->mnt_fsname);
    mount->point = strdup(entry->mnt_dir);
    mount->options = strdup(entry->mnt_opts);
    return mount->device && mount->point && mount->options ? 0 : -ENOMEM;
}

int cli_mounts_read(const char *table, struct cli_mounts *out)
{
    struct mntent entry;
    char buf[8192]; /* getmntent_r() truncates longer lines */
    int err = 0;

    *out = (struct cli_mounts){0};
    FILE *f = setmntent(table, "re");
    if (!f)
        return -errno;
    while (!err && getmntent_r(f, &entry, buf, sizeof(buf))) {
        if (cli_mount_is_ours(entry.mnt_type))
            err = mount_list_add(out, &entry);
    }
    endmntent(f);
    if (err)
        cli_mounts_free(out);
    return err;
}

void cli_mounts_free(struct cli_mounts *m)
{
    for (size_t i = 0; i < m->n; i++) {
        free(m->all[i].device);
        free(m->all[i].point);
        free(m->all[i].options);
    }
    free(m->all);
    *m = (struct cli_mounts){0};
}

static bool is_drive(const char *device, const char *bdf, const char *node)
{
    struct bd_name name;
    struct reason why;

    if (bd_name_parse(device, &name, &why) != 0)
        return false;
    return (name.kind == BD_KIND_VFIO && bdf && strcmp(name.path, bdf) == 0) ||
           (name.kind == BD_KIND_FILE && node && strcmp(name.path, node) == 0);
}

const struct cli_mount *cli_mounts_find(const struct cli_mounts *m, const char *bdf,
                                        const char *node)
{
    for (size_t i = 0; i < m->n; i++) {
        if (is_drive(m->all[i].device, bdf, node))
            return &m->all[i];
    }
    return NULL;
}

/* The child's exit closes the pipe. Kills it after CLI_ANSWER_MS. */
static bool ends_in_time(pid_t child, int read_end)
{
    struct pollfd end = {.fd = read_end};

    if (poll(&end, 1, CLI_ANSWER_MS) == 1)
        return waitpid(child, NULL, 0) == child;
    kill(child, SIGKILL);
    return false;
}

bool cli_mount_answers(const char *path)
{
    struct statvfs space;
    int fds[2];

    if (pipe(fds) != 0)
        return false;
    pid_t child = fork();
    if (child == 0) {
        for (int fd = 0; fd <= STDERR_FILENO; fd++)
            close(fd);         /* a caller may wait for EOF on this process's output */
        statvfs(path, &space); /* the kernel does not cache the reply */
        _exit(EXIT_SUCCESS);
    }
    close(fds[1]);
    bool answered = child > 0 && ends_in_time(child, fds[0]);
    close(fds[0]);
    return answered;
}
