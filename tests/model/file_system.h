/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A file system by the rules of format 3, reduced to two blocks of metadata.
 *
 * Transaction t sets block A to t, and block B too if t is odd; so B is known
 * from A. Both are in one chunk with its block of entries. The chunk has two
 * places, the superblock and the map one each, on the first two members. Every
 * member has a block of data, which is set to t before transaction t commits.
 */
#ifndef TESTS_MODEL_FILE_SYSTEM_H
#define TESTS_MODEL_FILE_SYSTEM_H

#include <optional>
#include <vector>

#include "tests/model/disks.h"

namespace model
{

/*
 * Logical addresses. Contents of the blocks, in `word`:
 *   super    [0] CRC of the map, [1] and [2] note of a clean unmount
 *   map      [0] place of the chunk, [1] CRC of the block of entries
 *   entries  [0] CRC of A, [1] CRC of B
 *   A, B     [0] transaction; A: [1] 1 if the chunk's first place has data
 *   label    [0] place of the log and members with a log, [1 + m] and [4 + m]
 *            member m, [7] index, and 256 more while the member joins
 *   descriptor  [0] images, [1 + 2i] and [2 + 2i] address and CRC of image i
 *   commit   [0] CRC of the superblock as of the tail, [1] CRC of the
 *            descriptor or 0, [2] blocks of the transaction
 */
enum Addr : uint8_t { SUPER = 1, MAP, ENTRIES, META_A, META_B, ADDRS, LABEL = 8, LOG = 32 };

/* Mistakes that the model can be told to make. */
enum class Plant {
    none,
    commit_before_records,
    ack_before_flush,
    ack_on_one_log,
    logs_left_unequal,
    label_copies_together,
    label_order_fixed,
    label_after_commit,
    label_before_new_log,
    new_log_has_new_incarnation,
    home_before_entries,
    home_of_running,
    home_not_read_back,
    entries_not_read_back,
    tail_before_home,
    reuse_before_tail,
    clean_note_of_any_incarnation,
    clean_note_followed,
    gap_ignored,
    misplaced_commit_ignored,
    age_ignored,
    superblock_age_ignored,
    map_of_home,
    move_to_one_place,
    space_reused_at_once,
    data_after_commit,
    stale_member_used,
    seen_not_advanced,
    split_ignored,
    cut_label_is_stale,
    rolled_back_used,
    members_by_order,
    foreign_block_ignored,
    joining_label_judges,
    first_commit_appended,
    flip_not_corrected,
    count,
};

enum class Mount { ok, foreign, missing, split, log_damaged, super_lost, map_lost, no_room };

/* Describes what a crash may leave. */
struct Oracle {
    uint8_t acked = 0;      /* the transaction that was reported durable */
    uint8_t before = 0;     /* as of the commit before the newest durable one */
    uint8_t attempted = 0;  /* the latest that may be committed */
    unsigned commit_at = 0; /* place and content of the newest durable commit */
    Block commit;
};

struct Member {
    enum State : uint8_t { none, live, absent };
    State state = none;
    Incarnation seen;  /* last incarnation known to be durable on the member */
    Incarnation maybe; /* a later one that may be, of an absent member */
};

/* A transaction of the log as it was found. */
struct Found {
    Block commit;
    unsigned pos, blocks;
    std::vector<Block> records; /* the commit is the last one */
};

class FileSystem
{
  public:
    FileSystem(Disks &disks, Plant plant, Oracle &oracle, uint8_t salt)
        : d(disks), plant(plant), oracle(oracle), salt(salt)
    {
    }

    void format(int members);
    Mount mount(bool degraded);
    /* The next operations need a mounted file system. */
    void commit(uint8_t t);
    void commit_two(uint8_t t); /* t and t + 1, both in flight */
    void commit_nothing();
    void checkpoint(bool clean = false, uint8_t beside = 0);
    void unmount();
    void begin_move();
    void end_move();
    void reuse_space(uint8_t t); /* of the chunk's former place */
    void move_log();
    void drop_log(int member);
    void leave(int member);
    void join(int member, bool complete);
    /* Returns true if A and B are readable, and stores their transaction in *t. */
    bool state(uint8_t *t);
    /* False if something is lost: the mount has changed nothing. */
    bool writable() const
    {
        return can_write;
    }
    bool used(int member) const
    {
        return live[member];
    }
    int device(int member) const
    {
        return dev[member];
    }
    bool data_in_chunk_place() const
    {
        return now[META_A].word[1];
    }
    Incarnation incarnation() const
    {
        return inc;
    }

  private:
    /* members.cc has the functions of rules 1 and 2. */
    std::optional<Block> read_label(int device, bool *foreign, unsigned *which) const;
    void use_table(const Block &label);
    bool member_is_stale(Incarnation own, const Member &member, bool evidence) const;
    bool table_is_complete(bool evidence, Incarnation newest);
    Mount judge(bool degraded);
    Mount judge_members(const std::vector<std::optional<Block>> &labels, const Block &judge,
                        bool degraded);
    bool log_holds(const Block &judge, const std::vector<std::optional<Block>> &labels) const;
    Block make_label(int m, bool joining) const;
    void write_label(int m, bool joining = false);
    void write_label_copy(int m, unsigned copy, const Block &label);
    void new_incarnation();
    void advance_incarnation();

    /* recovery.cc reads the log by rules 7 and 8. */
    Mount recover();
    bool find_newest(Found *newest) const;
    bool commit_is_misplaced(const Found &newest) const;
    bool is_followed(unsigned pos, uint8_t tid) const;
    bool read_note(Found *newest) const;
    bool read_transaction(unsigned pos, uint8_t tid, Found *found, Incarnation at,
                          bool correct) const;
    std::optional<Block> record(int m, unsigned pos, Kind kind, bool correct) const;
    std::optional<Block> image(unsigned pos, uint8_t addr, uint32_t want, bool correct) const;
    bool read_tail(const Found &newest, std::vector<Found> *log) const;
    void apply(const std::vector<Found> &log);
    Mount read_homes();
    std::optional<Block> home(uint8_t addr, uint32_t age) const;
    void begin_after(const std::vector<Found> &log);
    void equalise(const std::vector<Found> &log);
    void heal();

    /* file_system.cc writes by rules 5, 7, 8 and 10. */
    void put(unsigned pos, const Block &block);
    void flush_logs();
    void flush_all();
    std::vector<Block> images(uint8_t t);
    void write_data(uint8_t t);
    Block write_records(const std::vector<Block> &images);
    void write_commit(const Block &commit);
    void acknowledge(const Block &commit, uint8_t t);
    void commit_images(const std::vector<Block> &images, uint8_t t, bool read_back);
    void read_back_log(unsigned first);
    std::vector<Block> name_ages(bool clean);
    bool room_for_checkpoint();
    void write_home(const Block *snapshot, const bool *which);
    bool read_back_home(const Block *snapshot, const bool *which);
    std::vector<unsigned> places(uint8_t addr) const;
    bool has_copy(int m) const
    {
        return live[m] && m < 2;
    }
    bool has_log(int m) const
    {
        return live[m] && logs & 1u << m;
    }

    Disks &d;
    const Plant plant;
    Oracle &oracle;
    const uint8_t salt; /* makes the ids of two histories differ */

    Member members[MAX_DEVICES];
    bool live[MAX_DEVICES] = {};
    int dev[MAX_DEVICES] = {-1, -1, -1};
    unsigned believed[MAX_DEVICES] = {}; /* the copy of the label that judged */
    Incarnation inc;
    uint8_t log_id = 0, log_place = 0, logs = 0;

    Block now[ADDRS];        /* newest committed contents */
    bool in_log[ADDRS] = {}; /* the log from the tail on has an image */
    bool lost[ADDRS] = {};   /* no copy has the content that is named */
    bool moving = false, can_write = false;
    uint8_t next_tid = 1, tail = 1;
    unsigned next_pos = 0, tail_pos = 0, log_used = 0;
    uint32_t tail_super = 0;
    std::vector<Block> records; /* of the newest transaction */
};

} // namespace model

#endif
