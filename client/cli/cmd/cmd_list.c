/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Lists the drives of the kernel, those on the PCI bus that it does not drive,
 * the file systems on them and on named devices, and the mounts.
 */
#include <errno.h>
#include <libnvme.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <uuid/uuid.h>

#include "blockdev/bdev.h"
#include "blockdev/device.h"
#include "blockdev/pci/pci.h"
#include "client/cli/common/cli.h"
#include "client/cli/common/mounts.h"
#include "client/cli/common/out.h"
#include "client/lib/connection.h"
#include "layout/layout.h"

enum { FS_DEVICE, FS_LABEL, FS_UUID, FS_SIZE, FS_MOUNTED_ON, FS_COLUMNS };

static const struct cli_column fs_columns[FS_COLUMNS] = {
    [FS_DEVICE] = {"device", "DEVICE", CLI_CELL_TEXT},
    [FS_LABEL] = {"label", "LABEL", CLI_CELL_TEXT},
    [FS_UUID] = {"uuid", "UUID", CLI_CELL_TEXT},
    [FS_SIZE] = {"bytes", "SIZE", CLI_CELL_BYTES},
    [FS_MOUNTED_ON] = {"mounted_on", "MOUNTED ON", CLI_CELL_TEXT},
};

/* Adds a row. An empty label is shown as none. */
static void file_systems_add(struct cli_table *t, const char *device, const char *label,
                             const uint8_t *uuid, uint64_t bytes, const char *mounted_on)
{
    char uuid_text[UUID_STR_LEN];

    if (uuid)
        uuid_unparse_lower(uuid, uuid_text);
    struct json_object *cells[FS_COLUMNS] = {
        [FS_DEVICE] = cli_text(device),
        [FS_LABEL] = cli_text(*label ? label : NULL),
        [FS_UUID] = cli_text(uuid ? uuid_text : NULL),
        [FS_SIZE] = bytes ? json_object_new_uint64(bytes) : NULL,
        [FS_MOUNTED_ON] = cli_text(mounted_on),
    };
    cli_table_add(t, cells);
}

/* A mount that does not answer within 5 s has neither label nor UUID. */
static void add_mount(struct cli_table *t, const struct cli_mount *m)
{
    struct gpunvme_ioc_info info;
    struct statvfs space = {0};
    char label[FSLABEL_MAX] = "";
    struct connection *g = NULL;
    bool silent = !cli_mount_answers(m->point);
    bool answers =
        !silent && connection_open(m->point, &g) == 0 && gpunvme_info(connection_fd(g), &info) == 0;

    if (answers && ioctl(connection_fd(g), FS_IOC_GETFSLABEL, label) != 0)
        *label = '\0';
    if (answers && fstatvfs(connection_fd(g), &space) != 0)
        space.f_blocks = 0;
    connection_close(g);
    if (silent)
        cli_error(m->point, "does not answer: its daemon is stopped, or waits for its drive");
    file_systems_add(t, m->device, label, answers ? info.fs_uuid : NULL,
                     (uint64_t)space.f_blocks * space.f_frsize, m->point);
}

static int file_systems_read_label(const char *device, struct lay_label *label, struct reason *why)
{
    struct bd_name name;
    struct bd_opened opened;
    const char *reason = "";

    if (bd_name_parse(device, &name, why) != 0)
        return -EINVAL;
    int err = bd_open(&name, BD_OPEN_READ_ONLY, 0, &(struct bd_open_opts){0}, &opened, why);
    if (err)
        return err;
    err = bd_read(opened.dev, 0, label, sizeof(*label));
    bd_opened_close(&opened);
    if (err == -EINVAL) /* the device is smaller than a block */
        return -ENODATA;
    if (err)
        return reason_set(why, err, "block 0 cannot be read: %s", strerror(-err));
    err = lay_check_label(label, NULL, &reason);
    if (err == -EINVAL)
        return -ENODATA;
    if (err == -EUCLEAN)
        return reason_set(why, err, "label damaged: %s", reason);
    return err ? reason_set(why, err, "%s", reason) : 0;
}

/*
 * Adds the file system of a device that is not mounted here, from its label.
 * Returns 0, or -ENODATA if the device has no label. After another
 * error `why` has a sentence.
 */
static int cli_file_systems_add(struct cli_table *t, const char *device, struct reason *why)
{
    struct lay_label label;
    int err = file_systems_read_label(device, &label, why);

    if (err)
        return err;
    uint64_t bytes = lay_get64(label.members[0].blocks) * LAY_BLOCK_SIZE;
    file_systems_add(t, device, label.label, label.uuid, bytes, NULL);
    return 0;
}

enum {
    DEVICE,
    ADDRESS,
    DRIVER,
    NUMA,
    SERIAL,
    MODEL,
    FIRMWARE,
    SIZE,
    LBA_SIZE,
    MOUNT,
    DRIVE_COLUMNS,
};

static const struct cli_column drive_columns[DRIVE_COLUMNS] = {
    [DEVICE] = {"device", "DEVICE", CLI_CELL_TEXT},
    [ADDRESS] = {"address", "ADDRESS", CLI_CELL_TEXT},
    [DRIVER] = {"driver", "DRIVER", CLI_CELL_TEXT},
    [NUMA] = {"numa_node", "NUMA", CLI_CELL_NUMBER},
    [SERIAL] = {"serial", "SERIAL", CLI_CELL_TEXT},
    [MODEL] = {"model", "MODEL", CLI_CELL_TEXT},
    [FIRMWARE] = {"firmware", "FIRMWARE", CLI_CELL_TEXT},
    [SIZE] = {"bytes", "SIZE", CLI_CELL_BYTES},
    [LBA_SIZE] = {"lba_size", "LBA", CLI_CELL_NUMBER},
    [MOUNT] = {"mounted_on", "MOUNTED ON", CLI_CELL_TEXT},
};

static const struct cli_column mount_columns[] = {
    {"device", "DEVICE", CLI_CELL_TEXT},
    {"mounted_on", "MOUNTED ON", CLI_CELL_TEXT},
    {"options", "OPTIONS", CLI_CELL_TEXT},
};

struct listing {
    struct cli_table drives, mounts, file_systems;
    struct cli_mounts ours;
    struct pci_device *pci;
    size_t n_pci;
    bool *shown; /* per PCI controller: it has a row */
};

/* Returns a controller's PCI device; NULL for one over a network. */
static const struct pci_device *pci_of(struct listing *l, nvme_ctrl_t c)
{
    const char *name = nvme_ctrl_get_name(c);

    for (size_t i = 0; name && i < l->n_pci; i++) {
        if (strcmp(l->pci[i].kernel_name, name) == 0) {
            l->shown[i] = true;
            return &l->pci[i];
        }
    }
    return NULL;
}

/* Returns a string attribute of namespace n, or of controller c if n is NULL. */
#define OF_KERNEL(c, n, what) ((n) ? nvme_ns_get_##what(n) : (c) ? nvme_ctrl_get_##what(c) : NULL)

/* Adds a drive. Each of pci, c and n is NULL if unknown. */
static void add_drive(struct listing *l, const char *device, const struct pci_device *pci,
                      nvme_ctrl_t c, nvme_ns_t n)
{
    uint64_t lba_size = n ? (uint64_t)nvme_ns_get_lba_size(n) : 0;
    const char *address = c ? nvme_ctrl_get_address(c) : NULL;
    const char *driver = c ? nvme_ctrl_get_transport(c) : NULL;
    const struct cli_mount *m = cli_mounts_find(&l->ours, pci ? pci->bdf : NULL, device);

    if (pci) {
        address = pci->bdf;
        driver = pci->driver[0] ? pci->driver : NULL;
    }
    struct json_object *cells[DRIVE_COLUMNS] = {
        [DEVICE] = cli_text(device),
        [ADDRESS] = cli_text(address),
        [DRIVER] = cli_text(driver),
        [NUMA] = pci && pci->numa_node >= 0 ? json_object_new_int(pci->numa_node) : NULL,
        [SERIAL] = cli_text(OF_KERNEL(c, n, serial)),
        [MODEL] = cli_text(OF_KERNEL(c, n, model)),
        [FIRMWARE] = cli_text(OF_KERNEL(c, n, firmware)),
        [SIZE] = n ? json_object_new_uint64(nvme_ns_get_lba_count(n) * lba_size) : NULL,
        [LBA_SIZE] = n ? json_object_new_uint64(lba_size) : NULL,
        [MOUNT] = cli_text(m ? m->point : NULL),
    };
    cli_table_add(&l->drives, cells);
}

/* Adds the drive of a namespace. n is NULL if the controller shows this user no namespace. */
static void add_kernel_drive(struct listing *l, nvme_ctrl_t c, nvme_ns_t n)
{
    char node[64];

    snprintf(node, sizeof(node), "/dev/%s", n ? nvme_ns_get_name(n) : nvme_ctrl_get_name(c));
    add_drive(l, node, c ? pci_of(l, c) : NULL, c, n);
}

/* With multipath namespaces belong to the subsystem. */
static void add_subsystem(struct listing *l, nvme_subsystem_t s)
{
    nvme_ctrl_t c;
    nvme_ns_t n;
    bool shared = nvme_subsystem_first_ns(s) != NULL;

    for (n = nvme_subsystem_first_ns(s); n; n = nvme_subsystem_next_ns(s, n))
        add_kernel_drive(l, nvme_subsystem_first_ctrl(s), n);
    for (c = nvme_subsystem_first_ctrl(s); c; c = nvme_subsystem_next_ctrl(s, c)) {
        for (n = nvme_ctrl_first_ns(c); n; n = nvme_ctrl_next_ns(c, n))
            add_kernel_drive(l, c, n);
        if (!shared && !nvme_ctrl_first_ns(c))
            add_kernel_drive(l, c, NULL);
    }
}

static int add_kernel_drives(struct listing *l)
{
    nvme_root_t root = nvme_create_root(NULL, -1);
    nvme_host_t h;
    nvme_subsystem_t s;

    if (!root)
        return -ENOMEM;
    /* Without the kernel's driver the scan finds nothing: no error. */
    nvme_scan_topology(root, NULL, NULL);
    for (h = nvme_first_host(root); h; h = nvme_next_host(root, h)) {
        for (s = nvme_first_subsystem(h); s; s = nvme_next_subsystem(h, s))
            add_subsystem(l, s);
    }
    nvme_free_tree(root);
    return 0;
}

/* Adds a drive of VFIO, or one without a driver. */
static void add_pci_drive(struct listing *l, const struct pci_device *pci)
{
    char device[64] = "";

    if (pci->kernel_name[0])
        snprintf(device, sizeof(device), "/dev/%s", pci->kernel_name);
    else if (strcmp(pci->driver, "vfio-pci") == 0)
        snprintf(device, sizeof(device), "vfio:%s", pci->bdf);
    add_drive(l, device[0] ? device : NULL, pci, NULL, NULL);
}

static int list_collect(struct listing *l)
{
    int err = pci_list("", pci_is_nvme, &l->pci, &l->n_pci);

    if (!err)
        err = cli_mounts_read(CLI_MOUNTS, &l->ours);
    l->shown = calloc(l->n_pci + 1, sizeof(*l->shown));
    if (!err)
        err = l->shown ? add_kernel_drives(l) : -ENOMEM;
    for (size_t i = 0; !err && i < l->n_pci; i++) {
        if (!l->shown[i])
            add_pci_drive(l, &l->pci[i]);
    }
    for (size_t i = 0; !err && i < l->ours.n; i++) {
        const struct cli_mount *m = &l->ours.all[i];
        struct json_object *cells[] = {cli_text(m->device), cli_text(m->point),
                                       cli_text(m->options)};
        cli_table_add(&l->mounts, cells);
    }
    cli_table_sort(&l->drives);
    return err;
}

/* Device nodes that are unreadable or hold something else get no row. */
static void add_on_nodes(struct listing *l)
{
    struct reason why;

    for (size_t i = 0; i + DRIVE_COLUMNS <= l->drives.n_cells; i += DRIVE_COLUMNS) {
        const char *device = json_object_get_string(l->drives.cells[i + DEVICE]);
        if (!l->drives.cells[i + SIZE] || l->drives.cells[i + MOUNT])
            continue;
        (void)cli_file_systems_add(&l->file_systems, device, &why);
    }
}

static bool list_is_mounted(const struct listing *l, const char *device)
{
    for (size_t i = 0; i < l->ours.n; i++) {
        if (strcmp(l->ours.all[i].device, device) == 0)
            return true;
    }
    return false;
}

/* Returns 1 after a message if a device has no gpunvme file system. */
static int add_named(struct listing *l, char **devices, int n)
{
    struct reason why = {0};
    int failed = 0;

    for (int i = 0; i < n; i++) {
        if (list_is_mounted(l, devices[i]))
            continue;
        int err = cli_file_systems_add(&l->file_systems, devices[i], &why);
        if (err == -ENODATA)
            failed = cli_error(devices[i], "no file system of gpunvmefs, see mkfs.gpunvme(8)");
        else if (err)
            failed = cli_error(devices[i], "%s", why.text);
    }
    return failed;
}

static int collect_file_systems(struct listing *l, char **devices, int n)
{
    for (size_t i = 0; i < l->ours.n; i++)
        add_mount(&l->file_systems, &l->ours.all[i]);
    add_on_nodes(l);
    return add_named(l, devices, n);
}

static void print(const struct listing *l, bool json)
{
    struct cli_out out;

    cli_out_begin(&out, json, stdout);
    if (json || l->drives.n_cells)
        cli_table_print(&l->drives, &out, "drives");
    else
        puts("no NVMe drive on this machine");
    if (!json && l->mounts.n_cells)
        putchar('\n');
    if (json || l->mounts.n_cells)
        cli_table_print(&l->mounts, &out, "mounts");
    if (!json && l->file_systems.n_cells)
        putchar('\n');
    if (json || l->file_systems.n_cells)
        cli_table_print(&l->file_systems, &out, "file_systems");
    cli_out_end(&out);
}

int cli_list(const struct cli_options *options, char **operands, int n)
{
    struct listing l = {.drives = {.columns = drive_columns, .n_columns = DRIVE_COLUMNS},
                        .mounts = {.columns = mount_columns, .n_columns = 3},
                        .file_systems = {.columns = fs_columns, .n_columns = FS_COLUMNS}};
    int err = list_collect(&l);
    int failed = err ? 0 : collect_file_systems(&l, operands, n);

    if (l.drives.incomplete || l.mounts.incomplete || l.file_systems.incomplete)
        err = -ENOMEM;
    if (err)
        failed = cli_error("list", "%s", strerror(-err));
    else
        print(&l, options->json);
    cli_table_free(&l.drives);
    cli_table_free(&l.mounts);
    cli_table_free(&l.file_systems);
    cli_mounts_free(&l.ours);
    free(l.pci);
    free(l.shown);
    return failed;
}
