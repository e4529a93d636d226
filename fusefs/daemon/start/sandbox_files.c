/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Restricts the files that can be opened with Landlock. Open descriptors stay
 * usable.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fusefs/daemon/start/sandbox.h"

/* Rights of later Landlock versions, which the headers of Debian 12 lack. */
#define ACCESS_TRUNCATE  (1ull << 14)
#define ACCESS_IOCTL_DEV (1ull << 15)

#define READ       (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define READ_WRITE (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE)
#define DEVICES                                                                         \
    (READ | READ_WRITE | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE | \
     ACCESS_TRUNCATE | ACCESS_IOCTL_DEV)
#define OF_PROC (LANDLOCK_ACCESS_FS_WRITE_FILE | ACCESS_TRUNCATE)
/* Rights that a rule for a file may have. */
#define OF_FILE (READ_WRITE | LANDLOCK_ACCESS_FS_EXECUTE | ACCESS_TRUNCATE | ACCESS_IOCTL_DEV)

/* Returns all rights on files that a version of Landlock knows. */
static uint64_t rights_of(long version)
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

/* A path that does not exist needs no rule. */
static int allow(int rules, const char *path, uint64_t rights)
{
    int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    const struct landlock_path_beneath_attr rule = {.allowed_access = rights, .parent_fd = fd};
    long rc = syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    int err = rc == 0 ? 0 : -errno;
    close(fd);
    return err;
}

static int add_rules(int rules, const struct sandbox_files *files, uint64_t known)
{
    int err = allow(rules, "/dev/null", READ_WRITE);

    if (!err && files->image)
        err = allow(rules, files->image, (READ_WRITE | ACCESS_TRUNCATE) & known & OF_FILE);
    if (!err && files->proc)
        err = allow(rules, "/proc", READ & known);
    if (!err && files->cuda)
        err = allow(rules, "/", (READ | LANDLOCK_ACCESS_FS_EXECUTE) & known);
    if (!err && files->cuda)
        err = allow(rules, "/dev", DEVICES & known);
    if (!err && files->cuda) /* driver 580 names its threads with O_TRUNC in task/TID/comm */
        err = allow(rules, "/proc/self", (READ | OF_PROC) & known);
    return err;
}

int sandbox_limit_files(const struct sandbox_files *files)
{
    long version = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

    if (version <= 0)
        return -ENOSYS;
    const struct landlock_ruleset_attr attr = {.handled_access_fs = rights_of(version)};
    long rules = syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr.handled_access_fs), 0);
    if (rules < 0)
        return -errno;
    int err = add_rules((int)rules, files, attr.handled_access_fs);
    if (!err && syscall(SYS_landlock_restrict_self, (int)rules, 0) != 0)
        err = -errno;
    close((int)rules);
    return err;
}
