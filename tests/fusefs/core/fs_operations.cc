/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/core/fs_operations.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include "tests/fusefs/core/fs_fixture.h"

static void use_file(ffs_inode *f, ffs_inode *root, const std::string &tag)
{
    ffs_map map;
    ffs_attr size = {};
    std::string data = pattern(3, 30000);
    ffs_write(f, 5000, data.data(), data.size());
    ffs_fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 9000, 9000);
    ffs_fallocate(f, 0, 100000, 50000);
    ffs_setxattr(f, "user.a", data.data(), 3000, 0);
    ffs_link(f, root, ("h" + tag).c_str());
    if (ffs_map_write(f, 40960, 8192, &map) == 0)
        ffs_map_write_end(&map, 8192, nullptr);
    if (ffs_map_read(f, 0, 100000, &map) == 0)
        ffs_map_release(&map);
    size.size = 7000;
    ffs_setattr(f, &size, FFS_SET_SIZE, nullptr);
    ffs_read(f, 0, data.data(), data.size());
    ffs_note_access(f);
    ffs_clear_setid(f, true);
    ffs_fsync(f, false);
}

void fs_every_operation(struct ffs *fs, ffs_inode *root, const std::string &tag)
{
    const ffs_cred cred = {1000, 1000, 0};
    Inode d, f, i;
    ffs_mkdir(root, ("d" + tag).c_str(), 0755, &cred, d.out());
    ffs_mknod(d ? d : root, "f", S_IFREG | 0644, 0, &cred, f.out());
    ffs_symlink(root, ("l" + tag).c_str(), std::string(2000, 't').c_str(), &cred, i.out());
    if (f)
        use_file(f, root, tag);
    ffs_rename(root, ("h" + tag).c_str(), root, ("r" + tag).c_str(), 0);
    ffs_unlink(root, ("l" + tag).c_str());
    ffs_sync(fs);
}
