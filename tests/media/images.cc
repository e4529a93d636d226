/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/media/images.h"

#include <string.h>

#include <algorithm>
#include <stdexcept>

#include "mkfs/mkfs_core.h"
#include "tests/fusefs/core/fs_fixture.h"
#include "tests/fusefs/core/sealed_blocks.h"

extern "C" {
#define _Atomic
#include "fusefs/core/storage.h"
#undef _Atomic
}

namespace
{

constexpr size_t BLOCK = LAY_BLOCK_SIZE;

void must(int err, const std::string &what)
{
    if (err)
        throw std::runtime_error(what + ": error " + std::to_string(-err));
}

// --- Images --------------------------------------------------------------------------------------

class Builder
{
  public:
    Builder(bool data_csum, bool copies) : device_(MEDIA_BYTES)
    {
        mkfs_params params = {};
        mkfs_plan plan = {};
        memcpy(params.uuid, "media campaign \x01", 16);
        params.time_sec = 1700000000;
        params.data_csum = data_csum;
        params.meta_copies = copies;
        must(mkfs_format(device_.dev(), &params, &plan), "mkfs");
        opts_.no_thread = true;
    }
    struct ffs *mount()
    {
        struct reason why = {};
        must(ffs_mount(device_.dev(), &opts_, &fs_, &why), why.text);
        return fs_;
    }
    void unmount() { must(ffs_unmount(fs_), "unmount"); }
    std::vector<uint8_t> bytes() { return {device_.bytes(), device_.bytes() + device_.size()}; }
    void put(const std::vector<uint8_t> &bytes)
    {
        memcpy(device_.bytes(), bytes.data(), bytes.size());
    }

  private:
    MemDevice device_;
    ffs_mount_opts opts_ = {};
    struct ffs *fs_ = nullptr;
};

const std::map<uint32_t, std::string> KINDS = {
    {LAY_MAGIC_LABEL, "label"},     {LAY_MAGIC_MMP, "mmp"},   {LAY_MAGIC_SUPER, "super"},
    {LAY_MAGIC_BITMAP, "bitmap"},   {LAY_MAGIC_SUMS, "sums"}, {LAY_MAGIC_INODES, "inodes"},
    {LAY_MAGIC_EXTENTS, "extents"}, {LAY_MAGIC_DIR, "names"}, {LAY_MAGIC_XATTR, "attributes"},
    {LAY_MAGIC_SYMLINK, "link"},    {LAY_MAGIC_MAP, "map"},   {LAY_MAGIC_ENTRIES, "entries"},
    {LAY_MAGIC_AGES, "ages"},
};

// Blocks that objects own, which are free again when the entries say so.
bool is_owned(const std::string &kind)
{
    return kind == "inodes" || kind == "extents" || kind == "names" || kind == "attributes" ||
           kind == "link";
}

// The entries of the segment that is there say that the block is in use.
bool is_used(const uint8_t *device, uint64_t block)
{
    uint64_t b = block % LAY_SEGMENT_BLOCKS;
    const auto *entries = reinterpret_cast<const lay_entries *>(device + (block - b) * BLOCK);

    return lay_get32(entries->head.magic) == LAY_MAGIC_ENTRIES &&
           (entries->used[b / 8] >> b % 8 & 1);
}

void find_metadata(const lay_geometry &geo, MediaImage &image)
{
    const uint8_t *at = image.now.data();
    for (const auto &[magic, kind] : KINDS) {
        for (uint64_t block : sealed_blocks(at, geo, magic)) {
            if (!is_owned(kind) || is_used(at, block))
                image.blocks[kind].push_back(block);
        }
    }
    for (uint64_t block = 0; block < geo.blocks; block++) {
        if (is_in_log(geo, block) && is_sealed(at + block * BLOCK))
            image.blocks["log"].push_back(block);
    }
}

void find_data(struct ffs *fs, MediaImage &image)
{
    for (const auto &[path, file] : image.files) {
        ffs_inode *inode;
        ffs_segment found[256];
        must(ffs_iget(fs, file.ino, &inode), path);
        ssize_t n = S_ISREG(file.mode) ? ffs_extents(inode, 0, found, 256) : 0;
        for (ssize_t i = 0; i < n; i++) {
            for (uint64_t b = 0; b < found[i].len && found[i].device != FFS_HOLE; b += BLOCK)
                image.blocks["data"].push_back((found[i].device + b) / BLOCK);
        }
        ffs_iput(inode, 1);
    }
}

} // namespace

MediaImage media_image(bool data_csum, bool copies, bool crashed)
{
    MediaImage image = {};
    Builder b(data_csum, copies);
    image.data_csum = data_csum;
    image.copies = copies;
    image.crashed = crashed;
    media_populate(b.mount());
    b.unmount();
    image.old = b.bytes();
    media_change(b.mount());
    b.unmount();
    struct ffs *fs = b.mount();
    if (crashed) {
        media_touch(fs);
        must(ffs_sync(fs), "sync");
        image.now = b.bytes();
    }
    image.files = media_list(fs);
    lay_geometry geo = *ffs_geometry(fs);
    find_data(fs, image);
    b.unmount();
    if (!crashed)
        image.now = b.bytes();
    find_metadata(geo, image);
    return image;
}

// --- Damage --------------------------------------------------------------------------------------

namespace
{

class Damager
{
  public:
    Damager(const MediaImage &image, std::mt19937_64 &random, MediaCase &c)
        : image_(image), random_(random), case_(c)
    {
        auto kind = image.blocks.begin();
        std::advance(kind, below(image.blocks.size()));
        case_.kind = kind->first;
        blocks_ = &kind->second;
        block_ = pick(*blocks_);
    }
    // False if this block cannot be damaged in this way.
    bool done(MediaDamage damage)
    {
        case_.text = case_.kind + " block " + std::to_string(block_) + ", ";
        switch (damage) {
        case MEDIA_FLIP:
            return flip();
        case MEDIA_ZERO:
            memset(at(block_), 0, BLOCK);
            break;
        case MEDIA_GARBAGE:
            garbage();
            break;
        case MEDIA_SWAP:
            return swap();
        case MEDIA_STALE:
            memcpy(at(block_), old(), BLOCK);
            break;
        case MEDIA_MISDIRECTED:
            return misdirect();
        default:
            return half();
        }
        case_.text += media_damage_name(damage);
        return changed();
    }

  private:
    uint64_t below(uint64_t n) { return random_() % n; }
    uint64_t pick(const std::vector<uint64_t> &from) { return from[below(from.size())]; }
    uint8_t *at(uint64_t block) { return case_.bytes.data() + block * BLOCK; }
    const uint8_t *old() const { return image_.old.data() + block_ * BLOCK; }
    bool changed() { return memcmp(at(block_), image_.now.data() + block_ * BLOCK, BLOCK) != 0; }
    bool flip()
    {
        uint64_t bit = below(8 * BLOCK);
        at(block_)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
        case_.text += "bit " + std::to_string(bit % 8) + " of byte " + std::to_string(bit / 8);
        return true;
    }
    void garbage()
    {
        for (size_t i = 0; i < BLOCK; i++)
            at(block_)[i] = static_cast<uint8_t>(random_() >> 32);
    }
    bool swap()
    {
        uint64_t other = pick(*blocks_);
        std::swap_ranges(at(block_), at(block_) + BLOCK, at(other));
        case_.text += "swapped with " + std::to_string(other);
        return changed();
    }
    bool misdirect()
    {
        auto kind = image_.blocks.begin();
        std::advance(kind, below(image_.blocks.size()));
        uint64_t other = pick(kind->second);
        memcpy(at(block_), image_.now.data() + other * BLOCK, BLOCK);
        case_.text += "overwritten by " + kind->first + " block " + std::to_string(other);
        return kind->first != case_.kind && changed();
    }
    // The first LBAs are those of before the last write.
    bool half()
    {
        uint64_t lbas = 1 + below(7);
        memcpy(at(block_), old(), lbas * 512);
        case_.text += std::to_string(lbas) + " LBAs of before the last write";
        return changed() && memcmp(at(block_), old(), BLOCK) != 0;
    }

    const MediaImage &image_;
    std::mt19937_64 &random_;
    MediaCase &case_;
    const std::vector<uint64_t> *blocks_;
    uint64_t block_;
};

} // namespace

const char *media_damage_name(MediaDamage damage)
{
    static const char *const names[] = {"flip",  "zero",        "garbage", "swap",
                                        "stale", "misdirected", "half"};
    return names[damage];
}

void media_case(const MediaImage &image, MediaDamage damage, std::mt19937_64 &random, MediaCase &c)
{
    c.damage = damage;
    do {
        c.bytes = image.now;
    } while (!Damager(image, random, c).done(damage));
}
