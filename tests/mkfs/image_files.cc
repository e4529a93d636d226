/* SPDX-License-Identifier: BSD-2-Clause */
/* A walk over all files of a mount. */
#include "tests/mkfs/image_files.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "fusefs/core/ffs.h"
#include "layout/layout.h"

namespace
{

char names[1 << 16], buf[1 << 16]; /* too large to be cleared for every file */

struct Entry {
    std::string name;
    uint64_t ino;
};

int collect(void *arg, const char *name, size_t len, uint64_t ino, uint8_t, uint64_t)
{
    static_cast<std::vector<Entry> *>(arg)->push_back({std::string(name, len), ino});
    return 0;
}

void fail_on(int64_t result, const std::string &what)
{
    if (result < 0)
        throw std::runtime_error(what + ": error " + std::to_string(-result));
}

std::string data_of(ffs_inode *inode, uint64_t size)
{
    uint32_t crc = 0;
    for (uint64_t at = 0; at < size; at += sizeof(buf)) {
        ssize_t n = ffs_read(inode, at, buf, sizeof(buf));
        if (n == -EIO)
            return "EIO";
        fail_on(n, "read");
        crc = lay_crc32c(crc, buf, static_cast<size_t>(n));
    }
    return std::to_string(crc);
}

std::string attributes_of(ffs_inode *inode)
{
    std::map<std::string, std::string> all;
    ssize_t len = ffs_listxattr(inode, true, names, sizeof(names));
    fail_on(len, "listxattr");
    for (const char *name = names; name < names + len; name += strlen(name) + 1) {
        ssize_t n = ffs_getxattr(inode, name, buf, sizeof(buf));
        fail_on(n, "getxattr");
        all[name] = std::string(buf, static_cast<size_t>(n));
    }
    std::string text;
    for (const auto &[name, bytes] : all)
        text += " " + name + "=" + bytes;
    return text;
}

class Lister
{
  public:
    explicit Lister(struct ffs *fs) : fs_(fs) {}
    void add(const std::string &path, uint64_t ino)
    {
        ffs_inode *inode;
        fail_on(ffs_iget(fs_, ino, &inode), path);
        ffs_attr a;
        ffs_getattr(inode, &a);
        std::ostringstream text;
        /* The size of a directory says how full its nodes are. */
        text << std::oct << a.mode << std::dec << " " << a.uid;
        if (!S_ISDIR(a.mode))
            text << " " << a.size;
        if (S_ISREG(a.mode))
            text << " " << data_of(inode, a.size);
        if (S_ISLNK(a.mode)) {
            std::vector<char> target(4096);
            ssize_t n = ffs_readlink(inode, target.data(), target.size());
            fail_on(n, "readlink");
            text << " " << std::string(target.data(), static_cast<size_t>(n));
        }
        text << attributes_of(inode);
        files[path] = text.str();
        if (S_ISDIR(a.mode))
            add_children(path, inode);
        ffs_iput(inode, 1);
    }
    Files files;

  private:
    void add_children(const std::string &path, ffs_inode *dir)
    {
        std::vector<Entry> entries;
        fail_on(ffs_readdir(dir, 2, collect, &entries), path);
        for (const Entry &e : entries)
            add(path + "/" + e.name, e.ino);
    }
    struct ffs *fs_;
};

bool below(const std::string &path, const std::string &top)
{
    return path == top || path.rfind(top + "/", 0) == 0;
}

bool may_differ(const std::string &path, const std::vector<std::string> &lost)
{
    return below(path, "/lost+found") || below(path, "/lost+found.1") || path.empty() ||
           std::any_of(lost.begin(), lost.end(),
                       [&](const std::string &top) { return below(path, top); });
}

} // namespace

Files list_files(bd_dev *dev, bool write)
{
    ffs_mount_opts opts = {};
    struct ffs *fs;
    struct reason why = {};
    opts.no_thread = true;
    opts.read_only = !write;
    fail_on(ffs_mount(dev, &opts, &fs, &why), why.text);
    Lister lister(fs);
    lister.add("", LAY_INO_ROOT);
    fail_on(ffs_unmount(fs), "unmount");
    return lister.files;
}

Files list_files(const std::string &image, bool write)
{
    bd_dev *dev;
    fail_on(bd_file_open(image.c_str(), BD_OPEN_EXCLUSIVE, 0, &dev), image);
    std::unique_ptr<bd_dev, decltype(&bd_close)> open(dev, bd_close);
    return list_files(dev, write);
}

std::string difference(const Files &before, const Files &after,
                       const std::vector<std::string> &lost)
{
    for (const auto &[path, what] : before) {
        if (may_differ(path, lost))
            continue;
        if (!after.count(path))
            return path + " is lost";
        if (after.at(path) != what)
            return path + " was " + what.substr(0, 80) + " is " + after.at(path).substr(0, 80);
    }
    for (const auto &entry : after) {
        if (!before.count(entry.first) && !may_differ(entry.first, lost))
            return entry.first + " is new";
    }
    return "";
}
