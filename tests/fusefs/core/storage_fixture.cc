/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/core/storage_fixture.h"

#include <stdlib.h>
#include <string.h>

#include <random>

#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/space_probe.h"

int storage_format(CrashDevice *d, uint64_t log_blocks)
{
    mkfs_params params = {};
    struct mkfs_plan plan = {};
    memcpy(params.uuid, "storage-test-fs!", 16);
    params.log_blocks = log_blocks;
    params.time_sec = 1700000000;
    params.data_csum = getenv("DATA_CSUM") != nullptr;
    params.meta_copies = StorageTest::meta_copies;
    return mkfs_format(d->dev(), &params, &plan);
}

thread_local std::vector<std::string> StorageTest::log;
const bool StorageTest::meta_copies = getenv("META_COPIES") != nullptr;

StorageTest::StorageTest()
{
    log.clear();
    opts.no_thread = true;
    opts.log = [](int, const char *line) { log.push_back(line); };
}

StorageTest::~StorageTest()
{
    unmount();
}

void StorageTest::make(uint64_t bytes, uint64_t log_blocks, uint32_t lba_size)
{
    /* Copies of chunks take as much space as the chunks. */
    if (meta_copies)
        bytes += 16u << 20;
    dev = std::make_unique<CrashDevice>(bytes, lba_size);
    ASSERT_EQ(storage_format(dev.get(), log_blocks), 0);
}

int StorageTest::mount(CrashDevice *d)
{
    reason text = {};
    int err = ffs_mount((d ? d : dev.get())->dev(), &opts, &fs, &text);
    why = text.text;
    if (err)
        fs = nullptr;
    return err;
}

int StorageTest::unmount()
{
    int err = fs ? ffs_unmount(fs) : 0;
    fs = nullptr;
    return err;
}

void StorageTest::remount()
{
    ASSERT_EQ(unmount(), 0);
    ASSERT_EQ(mount(), 0) << why;
}

void StorageTest::expect_sound()
{
    ASSERT_EQ(unmount(), 0);
    EXPECT_EQ(image_check(dev->dev()), 0);
}

lay_geometry StorageTest::geometry_of(CrashDevice *d)
{
    lay_geometry geo;
    EXPECT_EQ(image_geometry(d->peek(), &geo), 0);
    return geo;
}

lay_super *StorageTest::super_of(CrashDevice *d)
{
    const auto *label = reinterpret_cast<const lay_label *>(d->peek());
    const uint64_t at = lay_get64(label->supers[0]) << LAY_BLOCK_SHIFT;
    return reinterpret_cast<lay_super *>(d->range(at, LAY_BLOCK_SIZE));
}

lay_log_commit *StorageTest::newest_of(CrashDevice *d)
{
    lay_geometry geo;
    lay_label_geometry(reinterpret_cast<const lay_label *>(d->peek()), &geo);
    return image_newest_commit(d->bytes(), &geo);
}

void StorageTest::lose_log(CrashDevice *d, unsigned long which, unsigned long seed)
{
    std::mt19937_64 random(seed);
    lay_label label;
    lay_geometry geo;
    if (which == 0 || ffs_read_label(d->dev(), &label) != 0)
        return;
    lay_label_geometry(&label, &geo);
    if (lay_logs(&geo) < 2)
        return;
    for (uint64_t pos = 0; pos < geo.log_blocks; pos++) {
        uint64_t block = lay_log_block(&geo, which - 1, pos);
        if (seed % 2 == 0 || random() % 2)
            memset(d->range(block << LAY_BLOCK_SHIFT, LAY_BLOCK_SIZE), 0, LAY_BLOCK_SIZE);
    }
}

int StorageTest::handle(const std::function<int(ffs_tx *)> &body, unsigned credits)
{
    ffs_tx *tx;
    int err = ffs_tx_begin(fs, credits, &tx);
    if (err)
        return err;
    err = body(tx);
    if (err)
        ffs_tx_abort(tx);
    else
        ffs_tx_end(tx);
    return err;
}

Inode StorageTest::root()
{
    Inode root;
    EXPECT_EQ(ffs_iget(fs, LAY_INO_ROOT, root.out()), 0);
    return root;
}

Inode StorageTest::lookup(const std::string &name)
{
    Inode file;
    int err = ffs_lookup(root(), name.c_str(), file.out());
    EXPECT_TRUE(!err || err == -ENOENT) << err << " " << name;
    return file;
}

int StorageTest::new_file(const char *name, ffs_inode **out)
{
    const ffs_cred cred = {0, 0, 0};
    return ffs_mknod(root(), name, S_IFREG | 0644, 0, &cred, out);
}

int StorageTest::remove_file(const std::string &name)
{
    return ffs_unlink(root(), name.c_str());
}

uint64_t StorageTest::fill_data(const char *name)
{
    Inode file;
    uint64_t at = 0;
    EXPECT_EQ(new_file(name, file.out()), 0);
    for (uint64_t len = 4096; len > 0;) {
        if (ffs_fallocate(file, 0, at << LAY_BLOCK_SHIFT, len << LAY_BLOCK_SHIFT) == 0)
            at += len;
        else
            len /= 2;
    }
    return at;
}

std::set<uint64_t> StorageTest::segments()
{
    std::set<uint64_t> all;
    for (uint64_t s = 0; s < lay_segments(ffs_geometry(fs)); s++) {
        if (space_segment(fs, s) != 0)
            all.insert(s);
    }
    return all;
}

void StorageTest::fill_low_blocks()
{
    const lay_expect expect = {LAY_MAGIC_BITMAP, 0, 0, 0, 0};
    ffs_buf *buf;
    ffs_inode *file;
    std::vector<uint64_t> runs;
    ASSERT_EQ(new_file("low", &file), 0);
    ffs_meta_read(fs);
    ASSERT_EQ(ffs_buf_get(fs, LAY_ADDR(LAY_KIND_BITMAP, 0), &expect, &buf), 0);
    uint64_t run = 0;
    for (unsigned i = 0; i < LAY_GROUP_BLOCKS; i++) {
        bool used = static_cast<const lay_bitmap *>(buf->data)->bits[i / 8] >> i % 8 & 1;
        if (used && run > 0)
            runs.push_back(run);
        run = used ? 0 : run + 1;
    }
    ffs_buf_put(buf);
    ffs_meta_done(fs);
    uint64_t at = 0;
    for (uint64_t n : runs) {
        ASSERT_EQ(ffs_fallocate(file, 0, at << LAY_BLOCK_SHIFT, n << LAY_BLOCK_SHIFT), 0);
        at += n;
    }
    ffs_iput(file, 1);
}

int StorageTest::new_inode(ffs_inode **out)
{
    *out = nullptr;
    int err = handle([&](ffs_tx *tx) {
        int e = ffs_inode_new(tx, S_IFREG | 0644, out);
        if (e)
            return e;
        (*out)->d.nlink = lay_put32(1);
        (*out)->d.map_kind = lay_put16(LAY_MAP_INLINE);
        return 0;
    });
    return err;
}

int StorageTest::set_uid(uint64_t ino, uint32_t value)
{
    Inode inode;
    int err = ffs_iget(fs, ino, inode.out());
    if (err)
        return err;
    return handle([&](ffs_tx *tx) {
        int e = ffs_inode_dirty(tx, inode);
        if (!e)
            inode->d.uid = lay_put32(value);
        return e;
    });
}

int64_t StorageTest::uid(uint64_t ino)
{
    Inode inode;
    int err = ffs_iget(fs, ino, inode.out());
    if (err)
        return err;
    ffs_meta_read(fs);
    int64_t value = lay_get32(inode->d.uid);
    ffs_meta_done(fs);
    return value;
}

uint64_t StorageTest::free_blocks()
{
    ffs_meta_read(fs);
    uint64_t n = ffs_free_blocks(fs);
    ffs_meta_done(fs);
    return n;
}
