/* SPDX-License-Identifier: BSD-2-Clause */
/* Labels and UUIDs of file systems, from mounts and from superblocks. */
#include "client/cli/cmd/file_systems.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "blockdev/bdev.h"
#include "blockdev/device.h"
#include "client/cli/common/cli.h"
#include "gpunvme/gpunvme.h"
#include "layout/layout.h"
#include "support/clock.h"

enum { DEVICE, LABEL, UUID, SIZE, MOUNTED_ON, COLUMNS };

#define UUID_TEXT 37u
/* Mounts that do not answer for so long are reported. */
#define ANSWER_MS 5000

void cli_file_systems_begin(struct cli_table *t)
{
    static const struct cli_column columns[COLUMNS] = {
        [DEVICE] = {"device", "DEVICE", CLI_CELL_TEXT},
        [LABEL] = {"label", "LABEL", CLI_CELL_TEXT},
        [UUID] = {"uuid", "UUID", CLI_CELL_TEXT},
        [SIZE] = {"bytes", "SIZE", CLI_CELL_BYTES},
        [MOUNTED_ON] = {"mounted_on", "MOUNTED ON", CLI_CELL_TEXT},
    };

    *t = (struct cli_table){.columns = columns, .n_columns = COLUMNS};
}

static void print_uuid(const uint8_t uuid[16], char out[UUID_TEXT])
{
    size_t at = 0;

    for (unsigned i = 0; i < 16; i++)
        at += (size_t)snprintf(out + at, UUID_TEXT - at,
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

/* An empty label is none. */
static bool add(struct cli_table *t, const char *device, const char *label, const uint8_t *uuid,
                uint64_t bytes, const char *mounted_on)
{
    char uuid_text[UUID_TEXT], size[24];
    const char *cells[COLUMNS] = {[DEVICE] = device, [MOUNTED_ON] = mounted_on};

    if (*label)
        cells[LABEL] = label;
    if (uuid) {
        print_uuid(uuid, uuid_text);
        cells[UUID] = uuid_text;
    }
    if (bytes) {
        snprintf(size, sizeof(size), "%" PRIu64, bytes);
        cells[SIZE] = size;
    }
    return cli_table_add(t, cells);
}

/* What a mount says of itself. */
struct answer {
    char label[FSLABEL_MAX];
    uint8_t uuid[16];
    uint64_t bytes;
};

static bool ask(const char *point, struct answer *a)
{
    struct gpunvme_ioc_info info;
    struct statvfs space;
    struct gpunvme *g = NULL;
    bool known = gpunvme_connect(point, &g) == 0 && gpunvme_info(g, &info) == 0;
    int fd = known ? open(point, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;

    gpunvme_disconnect(g);
    if (fd < 0)
        return false;
    memcpy(a->uuid, info.fs_uuid, sizeof(a->uuid));
    if (ioctl(fd, FS_IOC_GETFSLABEL, a->label) != 0)
        *a->label = '\0';
    a->bytes = fstatvfs(fd, &space) == 0 ? (uint64_t)space.f_blocks * space.f_frsize : 0;
    close(fd);
    return true;
}

/* In a process of its own, which keeps nothing of this one open: a caller may wait for its end. */
_Noreturn static void answer_to(int pipe, const char *point)
{
    struct answer a = {.bytes = 0};
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        dup2(null, fd);
    bool done = ask(point, &a) && write(pipe, &a, sizeof(a)) == (ssize_t)sizeof(a);
    _exit(done ? 0 : 1);
}

/*
 * Of a mount whose daemon is stopped, or was killed at an unfortunate moment, the kernel lets no
 * request be given up, not even by SIGKILL: other processes wait for the answers.
 */
struct question {
    pid_t pid;
    int from; /* the read end of a pipe; -1: not asked */
};

static struct question begin_to_ask(const char *point)
{
    struct question q = {.from = -1};
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return q;
    q.pid = fork();
    if (q.pid == 0)
        answer_to(ends[1], point);
    close(ends[1]);
    if (q.pid > 0)
        q.from = ends[0];
    else
        close(ends[0]);
    return q;
}

/* False: no answer. */
static bool take_answer(const struct question *q, const char *point, int64_t until_ms,
                        struct answer *a)
{
    struct pollfd p = {.fd = q->from, .events = POLLIN};
    int64_t left = until_ms - now_ms();

    if (q->from < 0)
        return false;
    bool ended = poll(&p, 1, left > 0 ? (int)left : 0) == 1;
    bool known = ended && read(q->from, a, sizeof(*a)) == (ssize_t)sizeof(*a);
    close(q->from);
    if (ended) {
        waitpid(q->pid, NULL, 0);
    } else {
        kill(q->pid, SIGKILL);
        cli_error(point, "does not answer: its daemon is stopped, or waits for its drive");
    }
    return known;
}

static bool add_mount(struct cli_table *t, const struct cli_mount *m, const struct question *q,
                      int64_t until_ms)
{
    struct answer a;
    bool known = take_answer(q, m->point, until_ms, &a);

    return add(t, m->device, known ? a.label : "", known ? a.uuid : NULL, known ? a.bytes : 0,
               m->point);
}

bool cli_file_systems_mounted(struct cli_table *t, const struct cli_mounts *mounts)
{
    struct question *asked = calloc(mounts->n + 1, sizeof(*asked));
    int64_t until_ms = now_ms() + ANSWER_MS;
    bool ok = asked;

    for (size_t i = 0; asked && i < mounts->n; i++)
        asked[i] = begin_to_ask(mounts->all[i].point);
    for (size_t i = 0; asked && i < mounts->n; i++)
        ok &= add_mount(t, &mounts->all[i], &asked[i], until_ms);
    free(asked);
    return ok;
}

static int read_super(const char *device, struct lay_geometry *geo, char *why, size_t len)
{
    struct lay_super sb;
    struct bd_name name;
    struct bd_opened opened;
    uint64_t features;
    const char *reason = "";

    if (bd_name_parse(device, &name, why, len) != 0)
        return -EINVAL;
    int err = bd_open(&name, BD_OPEN_READ_ONLY, 0, NULL, &opened, why, len);
    if (err)
        return err;
    err = bd_read(opened.dev, 0, &sb, sizeof(sb));
    bd_opened_close(&opened);
    if (err == -EINVAL) /* smaller than a block */
        return -ENODATA;
    if (err) {
        snprintf(why, len, "block 0 cannot be read: %s", strerror(-err));
        return err;
    }
    err = lay_check_super(&sb, 0, 0, geo, &features, &reason);
    if (err == -EINVAL)
        return -ENODATA;
    if (err)
        snprintf(why, len, "superblock: %s", reason);
    return err;
}

int cli_file_systems_add(struct cli_table *t, const char *device, char *why, size_t len)
{
    struct lay_geometry geo;
    int err = read_super(device, &geo, why, len);

    if (err)
        return err;
    return add(t, device, geo.label, geo.uuid, geo.blocks * LAY_BLOCK_SIZE, NULL) ? 0 : -ENOMEM;
}
