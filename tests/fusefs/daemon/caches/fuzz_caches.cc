// SPDX-License-Identifier: BSD-2-Clause
// Fuzz entry of cache directories: in the directories of an image names get the inode numbers of
// others, bytes change, and the checksums are made right again. Whatever the tree has become, a
// round of the cache ends soon, damages no memory, and removes nothing outside of the cache.
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <string>
#include <vector>

#include "fusefs/daemon/caches/caches.h"
#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/image_repair.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

namespace
{

constexpr uint64_t BYTES = 16u << 20;
constexpr ffs_cred CRED = {0, 0, 0};
constexpr char LIMIT[] = "65536";
constexpr time_t SOON_S = 5;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "fuzz_caches: %s\n", what);
    abort();
}

struct ffs *mount(MemDevice *device)
{
    ffs_mount_opts opts = {};
    struct ffs *fs = nullptr;
    struct reason why = {};
    opts.no_thread = true;
    return ffs_mount(device->dev(), &opts, &fs, &why) == 0 ? fs : nullptr;
}

// Directories a to d of the cache lie in each other, each with some files.
class Base
{
  public:
    Base() : device(BYTES)
    {
        mkfs_params params = {};
        mkfs_plan plan;
        memcpy(params.uuid, "fuzz caches uuid", 16);
        memcpy(params.hash_seed, "fuzz caches seed", 16);
        params.log_blocks = 256;
        if (mkfs_format(device.dev(), &params, &plan))
            fail("mkfs");
        struct ffs *fs = mount(&device);
        if (!fs)
            fail("mount");
        fill(fs);
        ffs_unmount(fs);
        image.assign(device.bytes(), device.bytes() + BYTES);
        for (uint64_t at = 0; at < BYTES; at += LAY_BLOCK_SIZE) {
            if (image_is_metadata(&image[at]))
                blocks.push_back(at);
        }
    }
    MemDevice device;
    std::vector<uint8_t> image;
    std::vector<uint64_t> blocks; // offsets of metadata
    std::vector<uint64_t> inodes; // numbers

  private:
    void fill(struct ffs *fs)
    {
        Inode dir;
        ffs_iget(fs, LAY_INO_ROOT, dir.out());
        add_file(dir, "outside");
        for (const char *name : {"cache", "a", "b", "c", "d"}) {
            Inode sub;
            ffs_mkdir(dir, name, 0755, &CRED, sub.out());
            inodes.push_back(ffs_ino(sub));
            for (int i = 0; i < 6; i++)
                add_file(sub, "f" + std::to_string(i));
            dir = std::move(sub);
        }
    }
    void add_file(ffs_inode *dir, const std::string &name)
    {
        Inode f;
        std::string data(8192, 'x');
        ffs_mknod(dir, name.c_str(), S_IFREG | 0644, 0, &CRED, f.out());
        ffs_write(f, 0, data.data(), data.size());
        inodes.push_back(ffs_ino(f));
    }
};

// Four bytes make a change: a block, and either a byte of it or a number that replaces another.
void mutate(Base *base, const uint8_t *data)
{
    uint8_t *block = base->device.bytes() + base->blocks[data[0] % base->blocks.size()];
    const uint64_t from = base->inodes[data[1] % base->inodes.size()];
    const le64 to = lay_put64(base->inodes[data[2] % base->inodes.size()]);

    if (data[3] % 4 == 0)
        block[(data[1] | data[2] << 8) % LAY_BLOCK_SIZE] ^= data[3];
    for (uint8_t *at = block + sizeof(lay_head);
         data[3] % 4 && at <= block + LAY_BLOCK_SIZE - sizeof(to); at++) {
        le64 number;
        memcpy(&number, at, sizeof(number));
        if (lay_get64(number) == from)
            memcpy(at, &to, sizeof(to));
    }
    lay_geometry geo;
    if (image_geometry(base->image.data(), &geo) == 0)
        image_seal_block(base->device.bytes(), &geo, block);
}

void ignore(void *, uint64_t, uint64_t, const char *)
{
}

void use(struct caches *caches, ffs_inode *root)
{
    Inode dir;
    time_t begin = time(nullptr);
    if (ffs_lookup(root, "cache", dir.out()) != 0)
        return;
    caches_adopt(caches, root, dir);
    caches_set(caches, dir, 0, LIMIT, strlen(LIMIT), 0);
    if (time(nullptr) - begin > SOON_S)
        fail("a round does not end");
}

// The name, not the inode: another name may have been made to name it.
bool is_there(ffs_inode *root)
{
    Inode inode;
    return ffs_lookup(root, "outside", inode.out()) != -ENOENT;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static Base base;
    struct caches *caches = nullptr;
    memcpy(base.device.bytes(), base.image.data(), base.image.size());
    for (size_t i = 0; i + 4 <= size && i < 40; i += 4)
        mutate(&base, data + i);
    struct ffs *fs = mount(&base.device);
    if (!fs)
        return 0;
    {
        Inode root;
        bool before = ffs_iget(fs, LAY_INO_ROOT, root.out()) == 0 && is_there(root);
        if (root && caches_open(fs, -1, &caches) == 0) {
            if (caches_start(caches, ignore, nullptr) == 0)
                use(caches, root);
            caches_stop(caches);
            if (before && !is_there(root))
                fail("a file outside of the cache is gone");
            caches_close(caches);
        }
    }
    ffs_unmount(fs);
    return 0;
}
