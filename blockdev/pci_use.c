/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds users of a drive: mounts, swap, volume managers, exclusive openers and
 * foreign signatures.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blockdev/bd_signature.h"
#include "blockdev/pci/pci.h"
#include "blockdev/pci/pci_sysfs.h"
#include "support/mount_line.h"

/*
 * An LVM volume on md on a partition is three levels deep; anything deeper than
 * this is a loop.
 */
#define MAX_DEPTH     8
#define SUBJECT       256    /* "nvme0n1p3, part of LVM volume vg-root" */
#define OWN_MAGIC     "GNsb" /* first bytes of a gpunvmefs label (tests compare them) */
#define OWN_MAGIC_LEN 4

/* Reasons not to take the drive, in ascending severity. */
enum use_rank {
    USE_NONE,
    USE_SIGNATURE,
    USE_UNKNOWN, /* cannot be inspected */
    USE_EXCLUSIVE,
    USE_HELD,
    USE_MOUNTED,
    USE_SYSTEM, /* this system runs from it */
};

struct use {
    const char *root;
    enum use_rank rank; /* severity of the sentence in why */
    int rc;
    struct reason *why;
};

/* Keeps the sentence of the most severe reason. */
SYSFS_PRINTF(4, 5)
static void object(struct use *u, enum use_rank rank, int rc, const char *sentence, ...)
{
    va_list args;

    if (rank <= u->rank)
        return;
    u->rank = rank;
    u->rc = rc;
    va_start(args, sentence);
    vsnprintf(u->why->text, sizeof(u->why->text), sentence, args);
    va_end(args);
}

/* --- Mounts and swap ------------------------------------------------------------------------- */

static bool runs_the_system(const char *mount_point)
{
    static const char *const points[] = {"/", "/boot", "/boot/efi", "/efi", "/usr"};

    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++)
        if (strcmp(mount_point, points[i]) == 0)
            return true;
    return false;
}

static bool is_device_path(const char *path, const char *name)
{
    return strncmp(path, "/dev/", 5) == 0 && strcmp(path + 5, name) == 0;
}

static void use_find_mount(struct use *u, const char *subject, const char *name)
{
    char path[PATH_MAX], device[SYSFS_NAME], *line = NULL;
    struct mount_line m;
    size_t size = 0;
    FILE *f;

    pci_sysfs_text(device, sizeof(device), "%s/sys/class/block/%s/dev", u->root, name);
    snprintf(path, sizeof(path), "%s/proc/self/mountinfo", u->root);
    f = fopen(path, "re");
    if (!f) {
        object(u, USE_UNKNOWN, -errno, "/proc/self/mountinfo: %s", strerror(errno));
        return;
    }
    while (getline(&line, &size, f) > 0) {
        bool system;

        if (!mount_line_parse(line, &m) ||
            (strcmp(m.device, device) != 0 && !is_device_path(m.source, name)))
            continue;
        pci_sysfs_printable(m.point);
        system = runs_the_system(m.point);
        object(u, system ? USE_SYSTEM : USE_MOUNTED, -EBUSY, "%s is mounted on %s%s", subject,
               m.point, system ? ": this system runs from it" : "");
    }
    free(line);
    fclose(f);
}

static void find_swap(struct use *u, const char *subject, const char *name)
{
    char path[PATH_MAX], *line = NULL;
    size_t size = 0;
    FILE *f;

    snprintf(path, sizeof(path), "%s/proc/swaps", u->root);
    f = fopen(path, "re");
    if (!f)
        return; /* a kernel without swap */
    while (getline(&line, &size, f) > 0) {
        line[strcspn(line, " \t\n")] = 0;
        if (is_device_path(line, name))
            object(u, USE_MOUNTED, -EBUSY, "%s is swap space in use", subject);
    }
    free(line);
    fclose(f);
}

/* --- Holders: device mapper, md, bcache ------------------------------------------------------ */

static void describe_mapped(const struct use *u, const char *holder, char *text, size_t len)
{
    static const struct {
        const char *prefix, *kind;
    } kinds[] = {{"LVM-", "LVM volume"},
                 {"CRYPT-", "encrypted volume"},
                 {"mpath-", "multipath device"},
                 {"", "device mapper volume"}};
    char name[SYSFS_NAME], uuid[SYSFS_NAME];
    size_t i = 0;

    pci_sysfs_text(uuid, sizeof(uuid), "%s/sys/class/block/%s/dm/uuid", u->root, holder);
    pci_sysfs_text(name, sizeof(name), "%s/sys/class/block/%s/dm/name", u->root, holder);
    while (strncmp(uuid, kinds[i].prefix, strlen(kinds[i].prefix)) != 0)
        i++;
    snprintf(text, len, "%s %.63s", kinds[i].kind, name[0] ? name : holder);
}

static void describe_holder(const struct use *u, const char *holder, char *text, size_t len)
{
    if (strncmp(holder, "dm-", 3) == 0)
        describe_mapped(u, holder, text, len);
    else if (strncmp(holder, "md", 2) == 0)
        snprintf(text, len, "md array %.63s", holder);
    else
        snprintf(text, len, "%.63s", holder);
    pci_sysfs_printable(text);
}

/*
 * Finds the users of a block device and of the devices built on it. subject is
 * its name in sentences.
 */
static void use_check_device(struct use *u, const char *subject, const char *name, int depth);

static void check_holders(struct use *u, const char *subject, const char *name, int depth)
{
    char text[SYSFS_NAME * 2], whole[SUBJECT];
    struct sysfs_names holders;
    int bare = (int)strlen(subject) - (depth > 0); /* without the comma that ends an insertion */

    if (pci_sysfs_names(&holders, "%s/sys/class/block/%s/holders", u->root, name))
        return;
    for (int i = 0; i < holders.n; i++) {
        const char *holder = holders.entries[i]->d_name;

        describe_holder(u, holder, text, sizeof(text));
        object(u, USE_HELD, -EBUSY, "%.*s belongs to %s", bare, subject, text);
        snprintf(whole, sizeof(whole), "%.*s, part of %s,", bare, subject, text);
        if (depth < MAX_DEPTH)
            use_check_device(u, whole, holder, depth + 1);
    }
    pci_sysfs_names_free(&holders);
}

static void use_check_device(struct use *u, const char *subject, const char *name, int depth)
{
    use_find_mount(u, subject, name);
    find_swap(u, subject, name);
    check_holders(u, subject, name, depth);
}

/* --- Exclusive openers, signatures ----------------------------------------------------------- */

static void find_signature(struct use *u, const char *name, int fd)
{
    char magic[OWN_MAGIC_LEN];
    struct bd_signature found;

    if (pread(fd, magic, sizeof(magic), 0) == OWN_MAGIC_LEN &&
        memcmp(magic, OWN_MAGIC, OWN_MAGIC_LEN) == 0)
        return;
    int rc = bd_signature_find(fd, 0, 0, NULL, NULL, &found);
    if (rc > 0)
        object(u, USE_SIGNATURE, -EEXIST, "%s holds %s", name, found.name);
    else if (rc < 0)
        object(u, USE_UNKNOWN, -EIO, "%s cannot be read", name);
}

/*
 * Opens the device with O_EXCL, which fails while a file system of any mount
 * namespace, a volume manager or a program has claimed it. So it also finds
 * users that leave no trace in this /proc and /sys.
 */
static void open_exclusively(struct use *u, const char *name, bool is_disk)
{
    char path[PATH_MAX];
    int fd;

    snprintf(path, sizeof(path), "%s/dev/%s", u->root, name);
    fd = open(path, O_RDONLY | O_EXCL | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == EBUSY)
        object(u, USE_EXCLUSIVE, -EBUSY, "%s is claimed by a program or a file system", name);
    else if (fd < 0)
        object(u, USE_UNKNOWN, -errno, "/dev/%s cannot be opened to see what is on it: %s", name,
               strerror(errno));
    else if (is_disk)
        find_signature(u, name, fd);
    if (fd >= 0)
        close(fd);
}

/* --- The drive's block devices --------------------------------------------------------------- */

static const char *skip_number(const char *s, char letter)
{
    if (!s || *s != letter || !isdigit((unsigned char)s[1]))
        return NULL;
    for (s++; isdigit((unsigned char)*s);)
        s++;
    return s;
}

/*
 * Converts the name of a namespace below its controller to that of its block
 * device. "nvme0n1" stays as it is; with multipath "nvme0c1n1" is a hidden path
 * to "nvme0n1". Returns false for anything else.
 */
static bool disk_name(const char *name, char disk[SYSFS_NAME])
{
    const char *subsystem, *path, *end;

    if (strncmp(name, "nvme", 4) != 0)
        return false;
    subsystem = skip_number(name + 3, 'e');
    path = skip_number(subsystem, 'c');
    end = skip_number(path ? path : subsystem, 'n');
    if (!end || *end)
        return false;
    snprintf(disk, SYSFS_NAME, "%.*s%s", (int)(subsystem - name), name, path ? path : subsystem);
    return true;
}

static void check_disk(struct use *u, const char *disk)
{
    struct sysfs_names parts;

    use_check_device(u, disk, disk, 0);
    open_exclusively(u, disk, true);
    if (pci_sysfs_names(&parts, "%s/sys/class/block/%s", u->root, disk))
        return;
    for (int i = 0; i < parts.n; i++) {
        const char *part = parts.entries[i]->d_name;

        if (!pci_sysfs_exists("%s/sys/class/block/%s/%s/partition", u->root, disk, part))
            continue;
        use_check_device(u, part, part, 0);
        open_exclusively(u, part, false);
    }
    pci_sysfs_names_free(&parts);
}

/*
 * Reports a controller that is not live yet: its namespaces do not exist until
 * then.
 */
static void check_state(struct use *u, const struct pci_device *p)
{
    static const char *const starting[] = {"new", "connecting", "resetting"};
    char state[SYSFS_NAME];

    pci_sysfs_text(state, sizeof(state), "%s/sys/bus/pci/devices/%s/nvme/%s/state", u->root, p->bdf,
                   p->kernel_name);
    for (size_t i = 0; i < sizeof(starting) / sizeof(starting[0]); i++)
        if (strcmp(state, starting[i]) == 0)
            object(u, USE_EXCLUSIVE, -EBUSY, "the kernel is starting or resetting it: try again");
}

int pci_check_unused(const char *root, const struct pci_device *p, struct reason *why)
{
    struct use u = {.root = root, .rank = USE_NONE, .why = why};
    struct sysfs_names names;
    char disk[SYSFS_NAME];

    if (!p->kernel_name[0])
        return 0;
    check_state(&u, p);
    int rc =
        pci_sysfs_names(&names, "%s/sys/bus/pci/devices/%s/nvme/%s", root, p->bdf, p->kernel_name);
    if (rc)
        return reason_set(why, rc, "its sysfs folder cannot be read: %s", strerror(-rc));
    for (int i = 0; i < names.n; i++)
        if (disk_name(names.entries[i]->d_name, disk) &&
            pci_sysfs_exists("%s/sys/class/block/%s", root, disk))
            check_disk(&u, disk);
    pci_sysfs_names_free(&names);
    return u.rank == USE_NONE ? 0 : u.rc;
}
