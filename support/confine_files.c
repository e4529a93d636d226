/* SPDX-License-Identifier: BSD-2-Clause */
/* Drops capabilities and the right to open files. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "support/confine.h"

int confine_privileges(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : -errno;
}

int confine_capabilities(uint64_t kept)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

    if (syscall(SYS_capget, &head, data) != 0)
        return -errno;
    for (unsigned i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
        data[i].permitted &= (uint32_t)(kept >> (32 * i));
        data[i].effective &= data[i].permitted;
        data[i].inheritable = 0;
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &head, data) == 0 ? 0 : -errno;
}

/* --- Landlock -------------------------------------------------------------------------------- */

/* Rights of later Landlock versions, which the headers of Debian 12 lack. */
#define ACCESS_TRUNCATE  (1ull << 14)
#define ACCESS_IOCTL_DEV (1ull << 15)
#define ACCESS_NET_TCP   (1ull << 0 | 1ull << 1) /* bind and connect */
#define SCOPE_ABSTRACT   (1ull << 0)
#define SCOPE_SIGNAL     (1ull << 1)

/* Lays out struct landlock_ruleset_attr of Landlock version 6. */
struct ruleset_attr {
    uint64_t handled_access_fs;
    uint64_t handled_access_net; /* since version 4 */
    uint64_t scoped;             /* since version 6 */
};

#define OF_READ                                                                                \
    (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_EXECUTE | \
     ACCESS_IOCTL_DEV)
#define OF_WRITE  (LANDLOCK_ACCESS_FS_WRITE_FILE | ACCESS_TRUNCATE | ACCESS_IOCTL_DEV)
#define OF_CREATE (LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE)
/* Rights that a rule for a file other than a directory may have. */
#define OF_FILE (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE | OF_WRITE)

static long confine_version(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}

/* Returns all file rights that a version of Landlock knows. */
static uint64_t confine_known_rights(long version)
{
    uint64_t rights = LANDLOCK_ACCESS_FS_REFER - 1;

    if (version >= 2)
        rights |= LANDLOCK_ACCESS_FS_REFER;
    if (version >= 3)
        rights |= ACCESS_TRUNCATE;
    if (version >= 5)
        rights |= ACCESS_IOCTL_DEV;
    return rights;
}

int confine_files_begin(unsigned scopes)
{
    long version = confine_version();

    if (version <= 0)
        return -ENOSYS;
    const struct ruleset_attr attr = {
        .handled_access_fs = confine_known_rights(version),
        .handled_access_net = ACCESS_NET_TCP,
        .scoped = (scopes & CONFINE_SIGNALS ? SCOPE_SIGNAL : 0) |
                  (scopes & CONFINE_ABSTRACT ? SCOPE_ABSTRACT : 0),
    };
    size_t len = version >= 6   ? sizeof(attr)
                 : version >= 4 ? offsetof(struct ruleset_attr, scoped)
                                : offsetof(struct ruleset_attr, handled_access_net);
    long rules = syscall(SYS_landlock_create_ruleset, &attr, len, 0);
    return rules < 0 ? -errno : (int)rules;
}

static int confine_add_rule(int rules, int fd, unsigned rights)
{
    struct landlock_path_beneath_attr rule = {.parent_fd = fd};
    struct stat st;

    if (fstat(fd, &st) != 0)
        return -errno;
    rule.allowed_access = (rights & CONFINE_READ ? OF_READ : 0) |
                          (rights & CONFINE_WRITE ? OF_WRITE : 0) |
                          (rights & CONFINE_CREATE ? OF_CREATE : 0);
    rule.allowed_access &= confine_known_rights(confine_version());
    if (!S_ISDIR(st.st_mode))
        rule.allowed_access &= OF_FILE;
    return syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0
               ? 0
               : -errno;
}

int confine_files_allow(int rules, const char *path, unsigned rights)
{
    int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    int err = confine_add_rule(rules, fd, rights);
    close(fd);
    return err;
}

int confine_files_end(int rules, int err)
{
    if (!err && syscall(SYS_landlock_restrict_self, rules, 0) != 0)
        err = -errno;
    close(rules);
    return err;
}

static void confine_to_paths(const struct confine_path *paths, unsigned count)
{
    int rules = confine_files_begin(CONFINE_SIGNALS | CONFINE_ABSTRACT);

    if (rules < 0)
        return;
    for (unsigned i = 0; i < count; i++) {
        if (paths[i].path)
            (void)confine_files_allow(rules, paths[i].path, paths[i].rights);
    }
    (void)confine_files_end(rules, 0);
}

void confine_program(const struct confine_path *paths, unsigned count, uint64_t kept)
{
    (void)confine_privileges();
    if (!CONFINE_SANITIZED)
        confine_to_paths(paths, count);
    (void)confine_capabilities(kept);
    if (!CONFINE_SANITIZED)
        (void)confine_calls(true);
}
