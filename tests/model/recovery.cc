/* SPDX-License-Identifier: BSD-2-Clause */
/* Recovers by rules 5, 7, 8 and 10: finds the newest commit, reads on, writes homes. */
#include "tests/model/file_system.h"

namespace model
{

/*
 * Returns the record at a position of one log. A flipped bit is corrected only
 * if the caller says so.
 */
std::optional<Block> FileSystem::record(int m, unsigned pos, Kind kind, bool correct) const
{
    pos %= LOG_BLOCKS;
    Block b = d.read(dev[m], LOG_PLACE + log_place * LOG_BLOCKS + pos);

    if (b.state == State::flipped && correct && plant != Plant::flip_not_corrected)
        b.state = State::sound;
    if (b.kind != kind || b.state != State::sound || b.log != log_id || b.addr != LOG + pos)
        return std::nullopt;
    return b;
}

/* An image is known from its tag: it is taken from either log. */
std::optional<Block> FileSystem::image(unsigned pos, uint8_t addr, uint32_t want,
                                       bool correct) const
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (!has_log(m))
            continue;
        Block b = d.read(dev[m], LOG_PLACE + log_place * LOG_BLOCKS + pos % LOG_BLOCKS);
        if (b.state == State::flipped && correct && plant != Plant::flip_not_corrected)
            b.state = State::sound;
        if (b.state == State::sound && b.addr == addr && crc(b) == want)
            return b;
    }
    return std::nullopt;
}

/*
 * Reads the transaction `tid` at `pos` of incarnation `at` in the union of the
 * logs. Returns false if it is not whole.
 */
bool FileSystem::read_transaction(unsigned pos, uint8_t tid, Found *found, Incarnation at,
                                  bool correct) const
{
    Found f;
    uint32_t want = 0;

    f.pos = pos;
    for (int m = 0; m < MAX_DEVICES && f.records.empty(); m++) {
        std::optional<Block> b;
        if (has_log(m))
            b = record(m, pos, Kind::descriptor, correct);
        if (!b || b->tid != tid || b->inc != at)
            continue;
        want = crc(*b);
        f.records.push_back(*b);
    }
    const Block descriptor = f.records.empty() ? Block{} : f.records[0];
    for (unsigned i = 0; i < descriptor.word[0]; i++) {
        std::optional<Block> b = image(pos + 1 + i, (uint8_t)descriptor.word[1 + 2 * i],
                                       descriptor.word[2 + 2 * i], correct);
        if (!b)
            return false;
        f.records.push_back(*b);
    }
    f.blocks = (unsigned)f.records.size() + 1;
    for (int m = 0; m < MAX_DEVICES; m++) {
        std::optional<Block> b;
        if (has_log(m))
            b = record(m, pos + f.blocks - 1, Kind::commit, true);
        if (!b || b->tid != tid || b->inc != at || b->word[1] != want || b->word[2] != f.blocks)
            continue;
        f.commit = *b;
        f.records.push_back(*b);
        *found = f;
        return true;
    }
    return false;
}

/*
 * Finds the commit with the highest (incarnation, tid). In a commit behind the
 * sound ones a bit is corrected if its records are whole.
 */
bool FileSystem::find_newest(Found *newest) const
{
    bool any = false;
    auto higher = [&](const Block &b) {
        return !any || b.inc.counter > newest->commit.inc.counter ||
               (b.inc.counter == newest->commit.inc.counter && b.tid > newest->commit.tid);
    };
    for (bool correct : {false, true}) {
        for (int m = 0; m < MAX_DEVICES; m++) {
            for (unsigned pos = 0; has_log(m) && pos < LOG_BLOCKS; pos++) {
                std::optional<Block> b = record(m, pos, Kind::commit, correct);
                if (!b || !higher(*b))
                    continue;
                unsigned first = (pos + LOG_BLOCKS + 1 - b->word[2]) % LOG_BLOCKS;
                Found f;
                if (correct && !read_transaction(first, b->tid, &f, b->inc, false))
                    continue;
                newest->commit = *b;
                newest->pos = first;
                newest->blocks = b->word[2];
                any = true;
            }
        }
    }
    return any;
}

/*
 * True if, in every log, a commit above the newest one lies at a position that
 * it was not written for: a misdirected write has taken the place of another
 * record. With two logs the transaction was not durable if only one has that.
 */
bool FileSystem::commit_is_misplaced(const Found &newest) const
{
    unsigned with = 0;

    for (int m = 0; m < MAX_DEVICES; m++) {
        for (unsigned pos = 0; has_log(m) && pos < LOG_BLOCKS; pos++) {
            Block b = d.read(dev[m], LOG_PLACE + log_place * LOG_BLOCKS + pos);
            if (b.kind == Kind::commit && b.state == State::sound && b.log == log_id &&
                b.addr != LOG + pos && b.tid > newest.commit.tid)
                with |= 1u << m;
        }
    }
    return with && with == logs && plant != Plant::misplaced_commit_ignored;
}

/*
 * Returns true if a commit lies behind a position. The first write of an
 * incarnation is a commit, and a ring is written in order: as long as the
 * commit of a clean unmount is there, the next mount's first commit follows it.
 */
bool FileSystem::is_followed(unsigned pos, uint8_t tid) const
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        std::optional<Block> next;
        if (has_log(m))
            next = record(m, pos + 1, Kind::commit, true);
        if (next && next->tid > tid)
            return plant != Plant::clean_note_followed;
    }
    return false;
}

/* After a clean unmount the superblock names the newest commit. */
bool FileSystem::read_note(Found *newest) const
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (!has_copy(m))
            continue;
        Block super = d.read(dev[m], SUPER_PLACE);
        unsigned pos = super.word[2] & 0xff;
        if (super.kind != Kind::super || super.state != State::sound)
            continue;
        if (super.word[1] != (uint32_t)(inc.counter << 8 | inc.id) &&
            plant != Plant::clean_note_of_any_incarnation)
            continue;
        for (int log = 0; log < MAX_DEVICES; log++) {
            std::optional<Block> b;
            if (has_log(log))
                b = record(log, pos, Kind::commit, false);
            if (!b || b->tid != super.word[2] >> 8 || b->word[0] != crc(super))
                continue;
            if (is_followed(pos, b->tid))
                return false;
            *newest = {*b, pos, 1, {}};
            return true;
        }
    }
    return false;
}

/* Reads all transactions from the tail to the newest. */
bool FileSystem::read_tail(const Found &newest, std::vector<Found> *log) const
{
    unsigned pos = newest.commit.tail_pos, left = LOG_BLOCKS;

    for (uint8_t tid = newest.commit.tail; tid <= newest.commit.tid; tid++) {
        Found found;
        bool whole = false;
        Incarnation tried = newest.commit.inc;
        /* The incarnation is that of the record at the position: the highest. */
        for (int counter = newest.commit.inc.counter; counter >= 0 && !whole; counter--) {
            for (int m = 0; m < MAX_DEVICES && !whole; m++) {
                for (Kind kind : {Kind::descriptor, Kind::commit}) {
                    std::optional<Block> b;
                    if (has_log(m))
                        b = record(m, pos, kind, true);
                    if (!b || b->inc.counter != counter || b->tid != tid)
                        continue;
                    tried = b->inc;
                    whole = whole || read_transaction(pos, tid, &found, tried, true);
                }
            }
        }
        if (!whole && plant == Plant::gap_ignored && !log->empty())
            return true;
        if (!whole || found.blocks > left)
            return false;
        left -= found.blocks;
        pos = (pos + found.blocks) % LOG_BLOCKS;
        log->push_back(found);
    }
    return true;
}

void FileSystem::apply(const std::vector<Found> &log)
{
    for (const Found &f : log) {
        for (size_t i = 1; i + 1 < f.records.size(); i++) {
            now[f.records[i].addr] = f.records[i];
            in_log[f.records[i].addr] = true;
        }
    }
}

/* Returns the copy of a block that has the age, with one bit corrected. */
std::optional<Block> FileSystem::home(uint8_t addr, uint32_t age) const
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (!has_copy(m))
            continue;
        Block b = d.read(dev[m], places(addr)[0]);
        if (b.state == State::flipped && plant != Plant::flip_not_corrected)
            b.state = State::sound;
        bool known = crc(b) == age || plant == Plant::age_ignored ||
                     (plant == Plant::superblock_age_ignored && addr == SUPER);
        if (b.state == State::sound && b.addr == addr && known)
            return b;
    }
    return std::nullopt;
}

/* Reads what the log does not hold: superblock, map, entries, then the rest. */
Mount FileSystem::read_homes()
{
    auto take = [&](uint8_t addr, uint32_t age) {
        if (in_log[addr])
            return true;
        std::optional<Block> b = home(addr, age);
        if (b)
            now[addr] = *b;
        lost[addr] = !b;
        return b.has_value();
    };
    if (!take(SUPER, tail_super))
        return Mount::super_lost;
    if (!take(MAP, now[SUPER].word[0]))
        return Mount::map_lost;
    if (plant == Plant::map_of_home) {
        for (int m = 0; m < 1 && has_copy(m); m++)
            now[MAP].word[0] = d.read(dev[m], MAP_PLACE).word[0];
    }
    if (!take(ENTRIES, now[MAP].word[1])) {
        lost[META_A] = !in_log[META_A];
        lost[META_B] = !in_log[META_B];
        return Mount::ok;
    }
    take(META_A, now[ENTRIES].word[0]);
    take(META_B, now[ENTRIES].word[1]);
    return Mount::ok;
}

/* A damaged copy is written again. A sound one is never touched for that. */
void FileSystem::heal()
{
    for (uint8_t addr = SUPER; addr < ADDRS; addr++) {
        for (int m = 0; m < MAX_DEVICES; m++) {
            if (!has_copy(m) || in_log[addr] || lost[addr])
                continue;
            if (d.read(dev[m], places(addr)[0]) == now[addr])
                continue;
            d.write(dev[m], places(addr)[0], now[addr]);
            d.flush(dev[m]);
        }
    }
}

/* Sets where the next record goes. */
void FileSystem::begin_after(const std::vector<Found> &log)
{
    const Found &last = log.back();
    unsigned used = 0;

    for (const Found &f : log)
        used += f.blocks;
    tail = last.commit.tail;
    tail_pos = last.commit.tail_pos;
    next_tid = last.commit.tid + 1;
    next_pos = (last.pos + last.blocks) % LOG_BLOCKS;
    log_used = used;
    /*
     * An empty transaction with the tail of the one before is replaced, so that
     * mounts which crash do not fill the log.
     */
    if (last.blocks == 1 && log.size() > 1 && log[log.size() - 2].commit.tail == tail &&
        plant != Plant::first_commit_appended) {
        next_tid--;
        next_pos = last.pos;
        log_used--;
    }
}

void FileSystem::equalise(const std::vector<Found> &log)
{
    if (plant == Plant::logs_left_unequal)
        return;
    for (const Found &f : log) {
        for (unsigned i = 0; i < f.blocks; i++) {
            unsigned at = LOG_PLACE + log_place * LOG_BLOCKS + (f.pos + i) % LOG_BLOCKS;
            for (int m = 0; m < MAX_DEVICES; m++) {
                if (has_log(m) && d.read(dev[m], at) != f.records[i])
                    d.write(dev[m], at, f.records[i]);
            }
        }
    }
    flush_logs();
}

Mount FileSystem::recover()
{
    Found newest;
    std::vector<Found> log;

    if (!read_note(&newest) && !find_newest(&newest))
        return Mount::log_damaged;
    if (newest.commit.inc.counter > inc.counter || commit_is_misplaced(newest) ||
        !read_tail(newest, &log))
        return Mount::log_damaged;
    apply(log);
    tail_super = log.back().commit.word[0];
    Mount result = read_homes();
    if (result != Mount::ok)
        return result;
    for (bool block_is_lost : lost) {
        if (block_is_lost)
            return Mount::ok;
    }
    begin_after(log);
    if (log_used + 1 > LOG_BLOCKS)
        return Mount::no_room;
    if (plant != Plant::label_after_commit)
        new_incarnation();
    else
        advance_incarnation();
    equalise(log);
    commit_nothing();
    oracle.attempted = oracle.acked;
    if (plant == Plant::label_after_commit) {
        inc.counter--;
        new_incarnation();
    }
    can_write = true;
    heal();
    if (!room_for_checkpoint())
        return Mount::no_room;
    checkpoint();
    return Mount::ok;
}

} // namespace model
