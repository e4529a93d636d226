/* SPDX-License-Identifier: BSD-2-Clause */
// Power cuts in random workloads: after any operation of the device, with unflushed writes kept,
// dropped or torn, and again inside the recovery from it. What was synced is there, nothing of
// another user's data is seen, and fsck finds nothing. Of two logs, one may be lost besides.
//
// CRASH_STATES: how many states. A failure prints the line that replays its state alone.
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>

#include <random>
#include <sstream>
#include <string_view>

#include "tests/fusefs/core/space_probe.h"
#include "tests/fusefs/core/storage_fixture.h"
#include "tests/rounds.h"

namespace
{

constexpr size_t STATES = kSanitized ? 600 : 3000; // in every run
constexpr size_t STATES_OF_WORKLOAD = 250;
constexpr unsigned NAMES = 6;
const char *const DIRS[] = {"A", "B", "A/s", "B/s"};
constexpr ffs_cred CRED = {};

// A cut: after `ops` operations, and in the recovery from it after `again`, unless that is -1.
struct State {
    unsigned long workload = 0, ops = 0, fate = 0;
    long again = -1;
    unsigned long again_fate = 0;

    std::string text() const
    {
        std::ostringstream out;
        out << "CRASH_STATE=" << workload << ":" << ops << ":" << fate << ":" << again << ":"
            << again_fate;
        return out.str();
    }
    static bool parse(const char *text, State *out)
    {
        return sscanf(text, "%lu:%lu:%lu:%ld:%lu", &out->workload, &out->ops, &out->fate,
                      &out->again, &out->again_fate) == 5;
    }
};

class Campaign : public StorageTest
{
  protected:
    // Something that a cut after `from` to `until` operations must show.
    struct Promise {
        size_t from, until;
        uint64_t ino; // 0: none
        std::string path, value;
    };

    void begin(unsigned long workload);
    void work(unsigned steps);
    void step();
    void change(const std::string &path);
    void change_file(const std::string &path, ffs_inode *inode);
    void map_write(ffs_inode *inode, const std::string &path);
    void promise(const std::string &path);
    void promise_all();
    void close_promises(const std::string &path, uint64_t ino);
    void fill_disk();
    void swing();

    int find(const std::string &path, Inode *out);
    int parent_of(const std::string &path, Inode *out, std::string *name);
    std::string describe(const std::string &path);
    std::string look(const std::string &path, const Inode &inode);
    std::string foreign_data();
    std::string check_mounted(size_t ops);
    std::string check(CrashDevice *d, size_t ops);
    std::string check_state(const State &state, size_t *recovery);
    std::string campaign(size_t states, unsigned long first);

    std::string any_path()
    {
        return std::string(DIRS[random() % 4]) + "/n" + std::to_string(random() % NAMES);
    }
    // What files of a user hold: each of two users has letters of its own.
    static char letter(const std::string &path, unsigned n)
    {
        return static_cast<char>((path[0] == 'A' ? 'A' : 'a') + n % 26);
    }

    std::mt19937_64 random;
    std::vector<Promise> promises;
    std::vector<ffs_inode *> open;                        // without a name
    std::vector<char> buffer = std::vector<char>(300000); // more than a file has
    bool lies = false;                                    // the device ignores flushes
    bool swings = false;                                  // chunks are mapped and unmapped
    unsigned swinging = 0;                                // workloads with room for such chunks
    unsigned mapped = 0, unmapped = 0;                    // how often there were more, or fewer
};

void Campaign::begin(unsigned long workload)
{
    for (ffs_inode *inode : open)
        ffs_iput(inode, 1);
    open.clear();
    unmount();
    promises.clear();
    random.seed(workload);
    opts.cache_bytes = workload % 3 == 1 ? 1 : 0;
    opts.discard = workload % 7 < 3; // a block freed too early is lost
    make(16u << 20, workload % 2 ? 256 : 512, workload % 5 == 4 ? 4096 : 512);
    ASSERT_EQ(mount(), 0) << why;
    for (const char *dir : DIRS) {
        Inode parent, made;
        std::string name;
        ASSERT_EQ(parent_of(dir, &parent, &name), 0);
        ASSERT_EQ(ffs_mkdir(parent, name.c_str(), 0755, &CRED, made.out()), 0);
    }
    swings = workload % 3 == 2;
    if (swings)
        swing();
    swinging += swings && workload % 4 != 3;
    if (workload % 4 == 3)
        fill_disk();
    ASSERT_EQ(ffs_sync(fs), 0);
    dev->record();
    dev->ignore_flush(lies);
}

// Leaves a few blocks, so that everything fails with ENOSPC sooner or later.
void Campaign::fill_disk()
{
    Inode root, big;
    ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, root.out()), 0);
    ASSERT_EQ(ffs_mknod(root, "big", S_IFREG | 0600, 0, &CRED, big.out()), 0);
    for (uint64_t len = 1u << 20, at = 0; len >= 4096;) {
        if (free_blocks() * 4096 > len + (200u << 10) && ffs_fallocate(big, 0, at, len) == 0)
            at += len;
        else
            len /= 2;
    }
}

// Five files of 255 blocks of attributes come or go, so that the number of chunks changes.
void Campaign::swing()
{
    Inode root;
    std::string value(65000, 'v');
    ASSERT_EQ(ffs_iget(fs, LAY_INO_ROOT, root.out()), 0);
    uint64_t before = space_chunks(fs);
    for (unsigned n = 0; n < 5; n++) {
        Inode file;
        std::string name = "m" + std::to_string(n);
        if (ffs_unlink(root, name.c_str()) == 0 ||
            ffs_mknod(root, name.c_str(), S_IFREG | 0600, 0, &CRED, file.out()) != 0)
            continue;
        for (int i = 0; i < 15; i++)
            ffs_setxattr(file, ("user." + std::to_string(i)).c_str(), value.data(), value.size(),
                         0);
    }
    mapped += space_chunks(fs) > before;
    unmapped += space_chunks(fs) < before;
}

int Campaign::parent_of(const std::string &path, Inode *out, std::string *name)
{
    size_t slash = path.rfind('/');
    *name = path.substr(slash == std::string::npos ? 0 : slash + 1);
    if (slash == std::string::npos)
        return ffs_iget(fs, LAY_INO_ROOT, out->out());
    return find(path.substr(0, slash), out);
}

int Campaign::find(const std::string &path, Inode *out)
{
    Inode parent;
    std::string name;
    int err = parent_of(path, &parent, &name);
    return err ? err : ffs_lookup(parent, name.c_str(), out->out());
}

// --- The workload -------------------------------------------------------------------------------

void Campaign::close_promises(const std::string &path, uint64_t ino)
{
    for (Promise &p : promises) {
        if (p.until == SIZE_MAX && (p.path == path || (ino && p.ino == ino)))
            p.until = dev->ops();
    }
}

void Campaign::promise(const std::string &path)
{
    Inode inode;
    uint64_t ino = find(path, &inode) == 0 ? ffs_ino(inode) : 0;
    for (const Promise &p : promises) {
        if (p.until == SIZE_MAX && p.path == path)
            return;
    }
    promises.push_back({dev->ops(), SIZE_MAX, ino, path, describe(path)});
}

void Campaign::promise_all()
{
    for (const char *dir : DIRS) {
        for (unsigned i = 0; i < NAMES; i++)
            promise(std::string(dir) + "/n" + std::to_string(i));
    }
}

void Campaign::map_write(ffs_inode *inode, const std::string &path)
{
    struct ffs_map map;
    std::string data(4096, letter(path, 7));
    if (ffs_map_write(inode, random() % 40 * 4096, 4096, &map) != 0)
        return;
    uint64_t written = 0;
    if (bd_write(ffs_dev(fs), map.segments[0].device, data.data(), data.size(), 0) == 0)
        written = 4096;
    ffs_map_write_end(&map, written, nullptr);
}

void Campaign::change_file(const std::string &path, ffs_inode *inode)
{
    std::string data(1 + random() % 30000, letter(path, static_cast<unsigned>(random() % 26)));
    uint64_t at = random() % 150000;
    struct ffs_attr attr;
    ffs_getattr(inode, &attr);
    switch (random() % 9) {
    case 0:
        attr.size = at;
        ffs_setattr(inode, &attr, FFS_SET_SIZE, nullptr);
        break;
    case 1:
        ffs_fallocate(inode, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, data.size());
        break;
    case 2:
        ffs_fallocate(inode, random() % 2 ? FALLOC_FL_KEEP_SIZE : 0, at, data.size());
        break;
    case 3:
        ffs_setxattr(inode, "user.a", data.data(), data.size() % 3000, 0);
        break;
    case 4:
        map_write(inode, path);
        break;
    case 5:
        ffs_write(inode, attr.size, data.data(), data.size());
        break;
    case 6:
        attr.mode = 0600 + random() % 64;
        ffs_setattr(inode, &attr, FFS_SET_MODE, nullptr);
        break;
    default:
        ffs_write(inode, at, data.data(), data.size());
    }
}

// A change of a name, or of the file that has it.
void Campaign::change(const std::string &path)
{
    Inode dir, inode, target;
    std::string name, to = path.substr(0, path.size() - 1) + std::to_string(random() % NAMES);
    ASSERT_EQ(parent_of(path, &dir, &name), 0);
    int missing = ffs_lookup(dir, name.c_str(), inode.out());
    close_promises(path, missing ? 0 : ffs_ino(inode));
    if (missing) {
        if (random() % 5 == 0)
            ffs_symlink(dir, name.c_str(), std::string(random() % 3000 + 1, 't').c_str(), &CRED,
                        inode.out());
        else
            ffs_mknod(dir, name.c_str(), S_IFREG | 0644, 0, &CRED, inode.out());
        return;
    }
    unsigned choice = random() % 12;
    if (choice == 0) {
        ffs_unlink(dir, name.c_str());
    } else if (choice == 1) {
        ffs_iref(inode, 1);
        open.push_back(inode);
        ffs_unlink(dir, name.c_str());
    } else if (choice < 4 && to != path) {
        uint64_t ino = find(to, &target) == 0 ? ffs_ino(target) : 0;
        close_promises(to, ino);
        if (choice == 2)
            ffs_rename(dir, name.c_str(), dir, to.substr(to.rfind('/') + 1).c_str(), 0);
        else
            ffs_link(inode, dir, to.substr(to.rfind('/') + 1).c_str());
    } else {
        change_file(path, inode);
    }
}

void Campaign::step()
{
    std::string path = any_path();
    Inode inode;
    switch (random() % 12) {
    case 0:
        if (find(path, &inode) == 0 && ffs_fsync(inode, false) == 0)
            promise(path);
        break;
    case 1:
        if (find(path, &inode) == 0)
            ffs_fsync(inode, true);
        break;
    case 2:
        if (random() % 3 == 0 && ffs_sync(fs) == 0)
            promise_all();
        break;
    case 3:
        if (random() % 4 == 0)
            ffs_checkpoint_now(fs);
        else
            ffs_sums_settle(fs, random() % 2);
        break;
    case 4:
        if (!open.empty()) {
            ffs_iput(open.back(), 1);
            open.pop_back();
        }
        break;
    default:
        change(path);
        if (swings && random() % 8 == 0)
            swing();
    }
}

void Campaign::work(unsigned steps)
{
    for (unsigned i = 0; i < steps && !HasFatalFailure(); i++)
        step();
}

// --- What a cut left ----------------------------------------------------------------------------

std::string Campaign::look(const std::string &path, const Inode &inode)
{
    struct ffs_attr attr;
    std::ostringstream out;
    char value[5000];
    ffs_getattr(inode, &attr);
    ssize_t n = S_ISLNK(attr.mode) ? ffs_readlink(inode, buffer.data(), buffer.size())
                                   : ffs_read(inode, 0, buffer.data(), buffer.size());
    ssize_t x = ffs_getxattr(inode, "user.a", value, sizeof(value));
    auto hash = [](const char *data, ssize_t len) {
        return std::hash<std::string_view>()({data, len > 0 ? static_cast<size_t>(len) : 0});
    };
    out << path << " mode " << std::oct << attr.mode << std::dec << " size " << attr.size
        << " links " << attr.nlink << " data " << n << " " << hash(buffer.data(), n) << " user.a "
        << x << " " << hash(value, x);
    return out.str();
}

std::string Campaign::describe(const std::string &path)
{
    Inode inode;
    int err = find(path, &inode);
    return err ? path + " error " + std::to_string(err) : look(path, inode);
}

// A file that holds bytes which no write put into a file of its user, or "".
std::string Campaign::foreign_data()
{
    for (const char *dir : DIRS) {
        for (unsigned i = 0; i < NAMES; i++) {
            std::string path = std::string(dir) + "/n" + std::to_string(i);
            Inode inode;
            if (find(path, &inode) != 0)
                continue;
            struct ffs_attr attr;
            ffs_getattr(inode, &attr);
            ssize_t n = S_ISREG(attr.mode) ? ffs_read(inode, 0, buffer.data(), buffer.size()) : 0;
            if (n < 0) // sound data with a checksum that is not its own
                return path + " cannot be read: " + std::to_string(n);
            for (ssize_t k = 0; k < n; k++) {
                char c = buffer[static_cast<size_t>(k)];
                if (c && (c < letter(path, 0) || c > letter(path, 25)))
                    return path + " has byte " + std::to_string(c) + " at " + std::to_string(k);
            }
        }
    }
    return "";
}

std::string Campaign::check_mounted(size_t ops)
{
    for (const Promise &p : promises) {
        if (p.from > ops || p.until < ops)
            continue;
        std::string now = describe(p.path);
        if (now != p.value)
            return "was '" + p.value + "', is '" + now + "'";
    }
    return foreign_data();
}

std::string Campaign::check(CrashDevice *d, size_t ops)
{
    struct ffs *whole = fs;
    std::string wrong;
    int err = mount(d);
    if (!err) {
        wrong = check_mounted(ops);
        err = unmount();
        if (wrong.empty() && err)
            wrong = "unmount: " + std::to_string(err);
        if (wrong.empty() && image_check(d->dev()) != 0)
            wrong = "fsck finds damage";
    } else {
        wrong = "mount: " + why;
    }
    fs = whole;
    return wrong;
}

// *recovery, unless it is NULL: operations of the device from the mount to the unmount.
std::string Campaign::check_state(const State &state, size_t *recovery)
{
    auto fate_of = [](unsigned long n) {
        return n % 8 == 0 ? CRASH_DROP : n % 8 == 1 ? CRASH_KEEP : CRASH_RANDOM;
    };
    const unsigned long lost = state.fate / 8 % 3;
    Device cut = dev->cut(state.ops, fate_of(state.fate), state.fate);
    lose_log(cut.get(), lost, state.fate / 24);
    if (fate_of(state.fate) != CRASH_RANDOM && image_check(cut->dev()) != 0)
        return "fsck finds damage before the recovery";
    if (recovery || state.again >= 0)
        cut->record();
    std::string wrong = check(cut.get(), state.ops);
    if (recovery)
        *recovery = cut->ops();
    if (!wrong.empty() || state.again < 0)
        return wrong;
    Device again =
        cut->cut(static_cast<size_t>(state.again), fate_of(state.again_fate), state.again_fate);
    // The other log may not be lost before a recovery has made them equal again.
    lose_log(again.get(), lost ? lost : state.again_fate / 8 % 3, state.again_fate / 24);
    wrong = check(again.get(), state.ops);
    return wrong.empty() ? wrong : "after a crash in the recovery: " + wrong;
}

// The first thing that is wrong, or "".
std::string Campaign::campaign(size_t states, unsigned long first)
{
    std::mt19937_64 choice(first);
    for (size_t done = 0; done < states;) {
        State state;
        state.workload = first++;
        begin(state.workload);
        work(150);
        if (HasFatalFailure())
            return "the workload failed";
        for (size_t i = 0; i < STATES_OF_WORKLOAD && done < states; i++, done++) {
            size_t recovery = 0;
            state.ops = choice() % (dev->ops() + 1);
            state.fate = choice() % 100000;
            state.again = -1;
            std::string wrong = check_state(state, i % 5 ? nullptr : &recovery);
            if (wrong.empty() && i % 5 == 0) {
                state.again = static_cast<long>(choice() % (recovery + 1));
                state.again_fate = choice() % 100000;
                wrong = check_state(state, nullptr);
            }
            if (!wrong.empty())
                return wrong + "\nreplay with: " + state.text() + " storage_campaign_test";
        }
    }
    return "";
}

TEST_F(Campaign, FindsNothing)
{
    const char *states = getenv("CRASH_STATES"), *one = getenv("CRASH_STATE");
    State state;
    if (one) {
        ASSERT_TRUE(State::parse(one, &state)) << one;
        begin(state.workload);
        work(150);
        EXPECT_EQ(check_state(state, nullptr), "");
    } else {
        EXPECT_EQ(campaign(states ? strtoull(states, nullptr, 10) : STATES, 1), "");
        EXPECT_GE(mapped, swinging);
        EXPECT_GE(unmapped, swinging);
    }
    for (ffs_inode *inode : open)
        ffs_iput(inode, 1);
}

TEST_F(Campaign, FindsADeviceWhoseFlushesDoNothing)
{
    lies = true;
    std::string wrong = campaign(500, 1);
    size_t line = wrong.find("CRASH_STATE=");
    State state;
    ASSERT_NE(line, std::string::npos) << wrong;
    ASSERT_TRUE(State::parse(wrong.c_str() + line + strlen("CRASH_STATE="), &state)) << wrong;
    begin(state.workload);
    work(150);
    EXPECT_NE(check_state(state, nullptr), "") << "the line does not replay: " << wrong;
    for (ffs_inode *inode : open)
        ffs_iput(inode, 1);
}

} // namespace
