/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/media/files.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "layout/layout.h"

namespace
{

constexpr uint32_t TAG = 0x6169656d;

struct Tag {
    uint32_t magic, file, version;
    uint64_t block;
};

// An inode that is put at the end.
class Held
{
  public:
    Held() = default;
    Held(const Held &) = delete;
    Held &operator=(const Held &) = delete;
    ~Held()
    {
        if (inode_)
            ffs_iput(inode_, 1);
    }
    operator ffs_inode *() const { return inode_; }
    ffs_inode **out() { return &inode_; }

  private:
    ffs_inode *inode_ = nullptr;
};

const ffs_cred CRED = {1000, 1000, 022};

void must(int64_t result, const std::string &what)
{
    if (result < 0)
        throw std::runtime_error(what + ": error " + std::to_string(-result));
}

// --- Making files -------------------------------------------------------------------------------

class Maker
{
  public:
    explicit Maker(struct ffs *fs) : fs_(fs)
    {
        must(ffs_iget(fs, LAY_INO_ROOT, root_.out()), "root");
    }
    void lookup(const std::string &path, Held &out)
    {
        Held dir;
        std::string name = parent(path, dir);
        must(ffs_lookup(dir, name.c_str(), out.out()), path);
    }
    void create(const std::string &path, uint32_t mode, Held &out)
    {
        Held dir;
        std::string name = parent(path, dir);
        must(ffs_mknod(dir, name.c_str(), S_IFREG | mode, 0, &CRED, out.out()), path);
    }
    void mkdir(const std::string &path)
    {
        Held dir, made;
        std::string name = parent(path, dir);
        must(ffs_mkdir(dir, name.c_str(), 0755, &CRED, made.out()), path);
    }
    // Blocks of a file, every `step`-th of them.
    void write(const std::string &path, uint32_t version, uint64_t first, uint64_t n,
               uint64_t step = 1)
    {
        Held file;
        lookup(path, file);
        uint32_t number = static_cast<uint32_t>(ffs_ino(file));
        for (uint64_t i = 0; i < n; i++) {
            std::string data = media_block(number, version, first + i * step);
            must(ffs_write(file, (first + i * step) * 4096, data.data(), data.size()), path);
        }
    }
    void file(const std::string &path, uint64_t blocks, uint32_t mode = 0644, uint64_t step = 1)
    {
        {
            Held made;
            create(path, mode, made);
        }
        write(path, 1, 0, blocks, step);
    }
    void link(const std::string &path, const std::string &target)
    {
        Held dir, made;
        std::string name = parent(path, dir);
        must(ffs_symlink(dir, name.c_str(), target.c_str(), &CRED, made.out()), path);
    }
    void attribute(const std::string &path, const std::string &value)
    {
        Held file;
        lookup(path, file);
        must(ffs_setxattr(file, MEDIA_XATTR, value.data(), value.size(), 0), path);
    }
    void unlink(const std::string &path)
    {
        Held dir;
        std::string name = parent(path, dir);
        must(ffs_unlink(dir, name.c_str()), path);
    }
    // New contents in new blocks.
    void replace(const std::string &path, uint32_t version, uint64_t blocks)
    {
        {
            Held file;
            lookup(path, file);
            ffs_attr attr = {};
            must(ffs_setattr(file, &attr, FFS_SET_SIZE, nullptr), path);
        }
        write(path, version, 0, blocks);
    }

  private:
    // Looks up the directory of a path; its last name.
    std::string parent(const std::string &path, Held &dir)
    {
        size_t at = path.rfind('/');
        must(ffs_iget(fs_, LAY_INO_ROOT, dir.out()), "root");
        for (size_t from = 1; from < at; from = path.find('/', from) + 1) {
            std::string name = path.substr(from, path.find('/', from) - from);
            ffs_inode *next;
            must(ffs_lookup(dir, name.c_str(), &next), path);
            ffs_iput(std::exchange(*dir.out(), next), 1);
        }
        return path.substr(at + 1);
    }
    struct ffs *fs_;
    Held root_;
};

std::string numbered(const std::string &name, int n)
{
    return name + std::to_string(n);
}

// Few of these names fit into a node.
std::string long_name(int n)
{
    return numbered("/dir/", n) + std::string(180, 'n');
}

} // namespace

std::string media_block(uint32_t file, uint32_t version, uint64_t block)
{
    std::string data(4096, 0);
    Tag tag = {TAG, file, version, block};
    uint64_t x = (static_cast<uint64_t>(file) << 40 | static_cast<uint64_t>(version) << 32) + block;
    for (char &byte : data) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        byte = static_cast<char>(x >> 56);
    }
    memcpy(data.data(), &tag, sizeof(tag));
    return data;
}

void media_populate(struct ffs *fs)
{
    Maker m(fs);
    for (int i = 0; i < 24; i++)
        m.file(numbered("/plain", i), 1 + i % 5, i % 3 ? 0644 : 0600);
    m.mkdir("/dir");
    for (int i = 0; i < 60; i++)
        m.file(long_name(i), i % 4 == 0);
    m.mkdir("/a");
    m.mkdir("/a/b");
    m.file("/a/b/deep", 3);
    m.file("/scattered", 200, 0644, 2);
    m.file("/secret", 20, 0600, 3);
    for (int i = 0; i < 3; i++) {
        m.file(numbered("/attr", i), 1);
        m.attribute(numbered("/attr", i), std::string(3000, static_cast<char>('a' + i)));
        m.link(numbered("/link", i), std::string(3000, static_cast<char>('k' + i)));
    }
    m.link("/short", "plain1");
}

void media_change(struct ffs *fs)
{
    Maker m(fs);
    for (int i = 0; i < 24; i += 2)
        m.replace(numbered("/plain", i), 2, 2 + i % 4);
    for (int i = 0; i < 60; i += 3)
        m.unlink(long_name(i));
    for (int i = 60; i < 100; i++)
        m.file(long_name(i), i % 4 == 0);
    m.write("/scattered", 2, 401, 60, 2);
    m.write("/secret", 2, 1, 10, 3);
    for (int i = 0; i < 3; i++) {
        m.attribute(numbered("/attr", i), std::string(3500, static_cast<char>('A' + i)));
        m.unlink(numbered("/link", i));
        m.link(numbered("/link", i), std::string(3100, static_cast<char>('K' + i)));
    }
    m.file("/a/b/later", 4);
}

void media_touch(struct ffs *fs)
{
    Maker m(fs);
    for (int i = 1; i < 24; i += 4)
        m.replace(numbered("/plain", i), 3, 3);
    for (int i = 100; i < 110; i++)
        m.file(long_name(i), 1);
    m.write("/scattered", 3, 521, 10, 2);
}

// --- Reading them -------------------------------------------------------------------------------

namespace
{

struct Names {
    std::vector<std::string> all;
};

int collect(void *arg, const char *name, size_t len, uint64_t, uint8_t, uint64_t)
{
    static_cast<Names *>(arg)->all.emplace_back(name, len);
    return 0;
}

std::string attribute_of(ffs_inode *inode)
{
    char value[4096];
    ssize_t n = ffs_getxattr(inode, MEDIA_XATTR, value, sizeof(value));
    must(n == -ENODATA ? 0 : n, MEDIA_XATTR);
    return n > 0 ? std::string(value, static_cast<size_t>(n)) : "";
}

std::string content_of(ffs_inode *inode, const ffs_attr &attr)
{
    std::string data(S_ISDIR(attr.mode) ? 0 : attr.size, 0);
    if (S_ISREG(attr.mode))
        must(ffs_read(inode, 0, data.data(), data.size()), "read");
    else if (S_ISLNK(attr.mode))
        must(ffs_readlink(inode, data.data(), data.size()), "readlink");
    return data;
}

void add_below(ffs_inode *dir, const std::string &path, MediaFiles &all)
{
    Names names;
    must(ffs_readdir(dir, 2, collect, &names), path);
    for (const std::string &name : names.all) {
        Held inode;
        ffs_attr attr;
        must(ffs_lookup(dir, name.c_str(), inode.out()), name);
        ffs_getattr(inode, &attr);
        all[path + "/" + name] = {attr.ino, attr.mode, attr.uid, content_of(inode, attr),
                                  attribute_of(inode)};
        if (S_ISDIR(attr.mode))
            add_below(inode, path + "/" + name, all);
    }
}

// --- Judging ------------------------------------------------------------------------------------

bool is_error(int64_t result)
{
    return result == -EIO || result == -EUCLEAN;
}

int find(struct ffs *fs, const std::string &path, Held &out)
{
    int err = ffs_iget(fs, LAY_INO_ROOT, out.out());
    for (size_t from = 1; from < path.size() && !err;) {
        size_t end = std::min(path.find('/', from), path.size());
        ffs_inode *next = nullptr;
        err = ffs_lookup(out, path.substr(from, end - from).c_str(), &next);
        if (!err)
            ffs_iput(std::exchange(*out.out(), next), 1);
        from = end + 1;
    }
    return err;
}

// What a block that is not the expected one is. Zeros are a hole where the map was lost.
MediaVerdict judge_block(const std::string &got, const std::string &want)
{
    Tag tag, own;
    if (got == want)
        return MEDIA_SAME;
    memcpy(&tag, got.data(), sizeof(tag));
    memcpy(&own, want.data(), sizeof(own));
    bool zeros = got.find_first_not_of('\0') == std::string::npos;
    bool older = tag.magic == TAG && tag.file == own.file && tag.block == own.block &&
                 got == media_block(tag.file, tag.version, tag.block);
    return zeros || older || (own.magic != TAG && tag.magic != TAG) ? MEDIA_DIFFERS : MEDIA_WRONG;
}

MediaVerdict judge_data(ffs_inode *inode, const MediaFile &want, uint64_t size)
{
    MediaVerdict worst = size == want.data.size() ? MEDIA_SAME : MEDIA_DIFFERS;
    std::string got(4096, 0);
    for (uint64_t at = 0; at < want.data.size(); at += 4096) {
        ssize_t n = ffs_read(inode, at, got.data(), 4096);
        if (n != 4096)
            worst = std::max(worst, is_error(n) ? MEDIA_ERROR : MEDIA_DIFFERS);
        else
            worst = std::max(worst, judge_block(got, want.data.substr(at, 4096)));
    }
    return worst;
}

MediaVerdict judge_text(ssize_t n, const char *got, const std::string &want)
{
    if (is_error(n))
        return MEDIA_ERROR;
    bool same =
        n == -ENODATA ? want.empty() : n >= 0 && std::string(got, static_cast<size_t>(n)) == want;
    return same ? MEDIA_SAME : MEDIA_DIFFERS;
}

MediaVerdict judge_inode(ffs_inode *inode, const MediaFile &want)
{
    ffs_attr attr;
    char buf[4096];
    ffs_getattr(inode, &attr);
    if (attr.ino != want.ino || attr.mode != want.mode || attr.uid != want.uid)
        return MEDIA_DIFFERS;
    MediaVerdict verdict =
        judge_text(ffs_getxattr(inode, MEDIA_XATTR, buf, sizeof(buf)), buf, want.attribute);
    if (S_ISREG(attr.mode))
        return std::max(verdict, judge_data(inode, want, attr.size));
    if (S_ISLNK(attr.mode))
        return std::max(verdict, judge_text(ffs_readlink(inode, buf, sizeof(buf)), buf, want.data));
    return verdict;
}

} // namespace

MediaFiles media_list(struct ffs *fs)
{
    MediaFiles all;
    Held root;
    must(ffs_iget(fs, LAY_INO_ROOT, root.out()), "root");
    add_below(root, "", all);
    return all;
}

MediaVerdict media_judge(struct ffs *fs, const std::string &path, const MediaFile &want)
{
    Held inode;
    int err = find(fs, path, inode);
    if (!err)
        return judge_inode(inode, want);
    return is_error(err) ? MEDIA_ERROR : MEDIA_GONE;
}

MediaVerdict media_judge_repaired(struct ffs *fs, const std::string &path, const MediaFiles &all)
{
    MediaVerdict verdict = media_judge(fs, path, all.at(path));
    for (size_t end = path.size(); verdict == MEDIA_GONE && end > 0;
         end = path.rfind('/', end - 1)) {
        std::string saved = "/lost+found/#" + std::to_string(all.at(path.substr(0, end)).ino);
        verdict = media_judge(fs, saved + path.substr(end), all.at(path));
        if (verdict != MEDIA_GONE)
            verdict = std::max(verdict, MEDIA_MOVED);
    }
    return verdict;
}

const char *media_verdict_name(MediaVerdict verdict)
{
    static const char *const names[] = {"same", "an error", "moved", "gone", "different", "WRONG"};
    return names[verdict];
}
