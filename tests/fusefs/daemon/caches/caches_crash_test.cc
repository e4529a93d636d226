// SPDX-License-Identifier: BSD-2-Clause
// A power cut while a cache directory is filled and keeps its limit: no damage, and of a file that
// was synced before it got its name, all or nothing is there.
#include <atomic>
#include <cstring>

#include "fusefs/daemon/caches/caches.h"
#include "tests/fusefs/core/storage_fixture.h"
#include "tests/rounds.h"

namespace
{

constexpr enum crash_fate FATES[] = {CRASH_DROP, CRASH_KEEP, CRASH_RANDOM, CRASH_RANDOM};
constexpr size_t LEN = 128 * 1024;
constexpr char LIMIT[] = "1048576";

class CachesCrash : public StorageTest
{
  protected:
    void SetUp() override
    {
        opts.cache_bytes = 1;
        make(24u << 20, 256);
        opts.discard = true; // blocks freed too early are lost
        ASSERT_EQ(mount(), 0) << why;
        ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, &root), 0);
        ASSERT_EQ(ffs_mkdir(root, "cache", 0755, &cred, &dir), 0);
        ASSERT_EQ(caches_open(fs, -1, &caches), 0);
        ASSERT_EQ(caches_start(caches, count_removed, this), 0);
        ASSERT_EQ(caches_set(caches, dir, 0, LIMIT, strlen(LIMIT), 0), 0);
        ASSERT_EQ(ffs_sync(fs), 0);
        dev->record();
    }
    void end()
    {
        caches_stop(caches);
        ffs_iput(dir, 1);
        caches_close(caches);
        ffs_iput(root, 1);
        ASSERT_EQ(unmount(), 0);
    }
    static void count_removed(void *arg, uint64_t, uint64_t, const char *)
    {
        static_cast<CachesCrash *>(arg)->removed++;
    }
    // By rename from a name in the same directory, or from no name at all.
    void publish(int i)
    {
        std::string name = "f" + std::to_string(i), tmp = "tmp" + std::to_string(i);
        std::string data(LEN, static_cast<char>('a' + i % 26));
        ffs_inode *inode;
        caches_charge charge;
        int err = i % 2 ? ffs_mknod(dir, tmp.c_str(), S_IFREG | 0644, 0, &cred, &inode)
                        : ffs_tmpfile(dir, 0644, &cred, &inode);
        ASSERT_EQ(err, 0);
        caches_adopt(caches, dir, inode);
        ASSERT_EQ(caches_file_opened(inode), 0);
        ASSERT_EQ(caches_charge_begin(caches, inode, 0, LEN, &charge), 0) << i;
        ASSERT_EQ(ffs_write(inode, 0, data.data(), LEN), static_cast<ssize_t>(LEN));
        caches_charge_end(caches, inode, &charge);
        ASSERT_EQ(ffs_fsync(inode, false), 0);
        struct caches_rename r = {dir, tmp.c_str(), dir, name.c_str(), 0};
        ASSERT_EQ(i % 2 ? caches_rename(caches, &r) : caches_link(caches, inode, dir, name.c_str()),
                  0);
        caches_file_closed(inode);
        ffs_iput(inode, 1);
    }
    static bool is_whole(ffs_inode *inode, int i)
    {
        std::string data(LEN + 1, 0);
        ssize_t n = ffs_read(inode, 0, &data[0], data.size());
        return n == static_cast<ssize_t>(LEN) &&
               data.compare(0, LEN, std::string(LEN, static_cast<char>('a' + i % 26))) == 0;
    }
    std::string check(size_t ops, int files)
    {
        Device cut = dev->cut(ops, FATES[ops % 4], ops);
        ffs_inode *top, *folder, *inode;
        std::string wrong;
        char limit[32] = "";

        if (mount(cut.get()))
            return "mount: " + why;
        EXPECT_EQ(ffs_iget(fs, LAY_INO_ROOT, &top), 0);
        if (ffs_lookup(top, "cache", &folder) != 0)
            return "the directory is gone";
        if (ffs_getxattr(folder, CACHES_LIMIT_XATTR, limit, sizeof(limit)) < 0 ||
            strcmp(limit, LIMIT) != 0)
            wrong = "the limit is gone";
        for (int i = 0; i < files; i++) {
            std::string name = "f" + std::to_string(i);
            if (ffs_lookup(folder, name.c_str(), &inode) != 0)
                continue;
            wrong = is_whole(inode, i) ? wrong : name + " is not whole";
            ffs_iput(inode, 1);
        }
        ffs_iput(folder, 1);
        ffs_iput(top, 1);
        if (unmount())
            wrong = "unmount";
        return wrong.empty() && image_check(cut->dev()) != 0 ? "fsck" : wrong;
    }

    ffs_cred cred = {0, 0, 0};
    ffs_inode *root = nullptr, *dir = nullptr;
    struct caches *caches = nullptr;
    std::atomic<unsigned> removed{0};
};

TEST_F(CachesCrash, LeavesCompleteFilesAndNoDamage)
{
    const int files = static_cast<int>(test_rounds(48, 200));

    for (int i = 0; i < files; i++)
        publish(i);
    end();
    EXPECT_GT(removed, static_cast<unsigned>(files) / 2);
    for (size_t ops = 0; ops <= dev->ops(); ops += 3)
        ASSERT_EQ(check(ops, files), "") << "after " << ops << " of " << dev->ops();
}

} // namespace
