/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads labels and UUIDs of file systems from mounts and superblocks. */
#include "client/cli/cmd/file_systems.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "blockdev/bdev.h"
#include "blockdev/device.h"
#include "client/cli/common/cli.h"
#include "gpunvme/gpunvme.h"
#include "layout/layout.h"

enum { DEVICE, LABEL, UUID, SIZE, MOUNTED_ON, COLUMNS };

#define UUID_TEXT 37u

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

/* Adds a row. An empty label is shown as none. */
static bool file_systems_add(struct cli_table *t, const char *device, const char *label,
                             const uint8_t *uuid, uint64_t bytes, const char *mounted_on)
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

static bool add_mount(struct cli_table *t, const struct cli_mount *m)
{
    struct gpunvme_ioc_info info;
    struct statvfs space = {0};
    char label[FSLABEL_MAX] = "";
    struct gpunvme *g = NULL;
    bool silent = !cli_mount_answers(m->point);
    bool answers = !silent && gpunvme_connect(m->point, &g) == 0 && gpunvme_info(g, &info) == 0;
    int fd = answers ? open(m->point, O_RDONLY | O_NONBLOCK | O_CLOEXEC) : -1;

    if (fd >= 0) {
        if (ioctl(fd, FS_IOC_GETFSLABEL, label) != 0)
            *label = '\0';
        if (fstatvfs(fd, &space) != 0)
            space.f_blocks = 0;
        close(fd);
    }
    gpunvme_disconnect(g);
    if (silent)
        cli_error(m->point, "does not answer: its daemon is stopped, or waits for its drive");
    return file_systems_add(t, m->device, label, answers ? info.fs_uuid : NULL,
                            (uint64_t)space.f_blocks * space.f_frsize, m->point);
}

bool cli_file_systems_mounted(struct cli_table *t, const struct cli_mounts *mounts)
{
    bool ok = true;

    for (size_t i = 0; i < mounts->n; i++)
        ok &= add_mount(t, &mounts->all[i]);
    return ok;
}

static int file_systems_read_super(const char *device, struct lay_geometry *geo, char *why,
                                   size_t len)
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
    if (err == -EINVAL) /* the device is smaller than a block */
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
    int err = file_systems_read_super(device, &geo, why, len);

    if (err)
        return err;
    return file_systems_add(t, device, geo.label, geo.uuid, geo.blocks * LAY_BLOCK_SIZE, NULL)
               ? 0
               : -ENOMEM;
}
