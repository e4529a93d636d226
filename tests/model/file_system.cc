/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes transactions, checkpoints and moves by rules 5, 7, 8 and 10. */
#include "tests/model/file_system.h"

#include <cassert>

namespace model
{

void FileSystem::format(int n)
{
    inc = {1, 1};
    for (int m = 0; m < n; m++) {
        live[m] = true;
        dev[m] = m;
        members[m] = {Member::live, inc, {}};
    }
    log_id = 1;
    logs = n > 1 ? 3 : 1;
    for (uint8_t addr = SUPER; addr < ADDRS; addr++) {
        now[addr].kind = addr == SUPER ? Kind::super : Kind::meta;
        now[addr].addr = addr;
        in_log[addr] = true;
    }
    now[MAP].kind = Kind::map;
    now[ENTRIES].kind = Kind::entries;
    for (int m = 0; m < n; m++) {
        d.write(dev[m], LABEL_PLACE, make_label(m, false));
        d.write(dev[m], LABEL_PLACE + 1, make_label(m, false));
    }
    write_data(0);
    checkpoint();
}

/* --- The log ---------------------------------------------------------------------------------- */

void FileSystem::put(unsigned pos, const Block &block)
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (has_log(m))
            d.write(dev[m], LOG_PLACE + log_place * LOG_BLOCKS + pos % LOG_BLOCKS, block);
    }
}

void FileSystem::flush_logs()
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (has_log(m))
            d.flush(dev[m]);
    }
}

void FileSystem::flush_all()
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (live[m])
            d.flush(dev[m]);
    }
}

/* Returns the images of transaction t, which becomes the content of A and B. */
std::vector<Block> FileSystem::images(uint8_t t)
{
    std::vector<Block> list;

    now[META_A].word[0] = t;
    now[META_B].word[0] = t % 2 ? t : now[META_B].word[0];
    for (uint8_t addr : {META_A, META_B}) {
        if (addr == META_B && t % 2 == 0)
            continue;
        now[addr].tid = next_tid;
        list.push_back(now[addr]);
    }
    return list;
}

void FileSystem::write_data(uint8_t t)
{
    Block data;
    data.kind = Kind::data;
    data.word[0] = t;
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (live[m])
            d.write(dev[m], DATA_PLACE, data);
    }
}

/* Writes all of a transaction but its commit block, which it returns. */
Block FileSystem::write_records(const std::vector<Block> &list)
{
    Block descriptor, end;
    unsigned blocks = list.empty() ? 1 : (unsigned)list.size() + 2;

    for (Block *b : {&descriptor, &end}) {
        b->log = log_id;
        b->inc = inc;
        b->tid = next_tid;
    }
    records.clear();
    descriptor.kind = Kind::descriptor;
    descriptor.addr = LOG + next_pos;
    descriptor.word[0] = (uint32_t)list.size();
    for (size_t i = 0; i < list.size(); i++) {
        descriptor.word[1 + 2 * i] = list[i].addr;
        descriptor.word[2 + 2 * i] = crc(list[i]);
        put(next_pos + 1 + (unsigned)i, list[i]);
        in_log[list[i].addr] = true;
    }
    if (!list.empty()) {
        put(next_pos, descriptor);
        records.push_back(descriptor);
    }
    records.insert(records.end(), list.begin(), list.end());
    end.kind = Kind::commit;
    end.addr = LOG + (next_pos + blocks - 1) % LOG_BLOCKS;
    end.tail = tail;
    end.tail_pos = tail_pos;
    end.word[0] = tail_super;
    end.word[1] = list.empty() ? 0 : crc(descriptor);
    end.word[2] = blocks;
    records.push_back(end);
    next_pos = (next_pos + blocks) % LOG_BLOCKS;
    next_tid++;
    log_used += blocks;
    assert(log_used <= LOG_BLOCKS);
    return end;
}

void FileSystem::write_commit(const Block &end)
{
    put(end.addr - LOG, end);
}

void FileSystem::acknowledge(const Block &end, uint8_t t)
{
    if (oracle.commit != end)
        oracle.before = oracle.acked;
    oracle.acked = t;
    oracle.commit_at = LOG_PLACE + log_place * LOG_BLOCKS + end.addr - LOG;
    oracle.commit = end;
    if (d.observer)
        d.observer();
}

/* Reads the newest transaction, and repeats the writes that were lost. */
void FileSystem::read_back_log(unsigned first)
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        bool bad = false;
        for (unsigned i = 0; has_log(m) && i < records.size(); i++) {
            unsigned at = LOG_PLACE + log_place * LOG_BLOCKS + (first + i) % LOG_BLOCKS;
            if (d.read(dev[m], at) == records[i])
                continue;
            d.write(dev[m], at, records[i]);
            bad = true;
        }
        if (bad)
            d.flush(dev[m]);
    }
}

/* Commits images, which show transaction t when they are durable. */
void FileSystem::commit_images(const std::vector<Block> &list, uint8_t t, bool read_back)
{
    unsigned first = next_pos;

    oracle.attempted = t > oracle.attempted ? t : oracle.attempted;
    d.verified = read_back;
    Block end = write_records(list);
    const std::vector<Block> written = records;
    if (plant != Plant::commit_before_records)
        flush_all();
    records.pop_back();
    if (read_back && plant != Plant::entries_not_read_back)
        read_back_log(first);
    records = written;
    write_commit(end);
    d.verified = false;
    if (plant == Plant::ack_before_flush)
        acknowledge(end, t);
    if (plant == Plant::ack_on_one_log)
        d.flush(dev[0]);
    if (plant == Plant::ack_on_one_log)
        acknowledge(end, t);
    flush_logs();
    if (read_back && plant != Plant::entries_not_read_back)
        read_back_log(first);
    acknowledge(end, t);
}

void FileSystem::commit(uint8_t t)
{
    if (plant != Plant::data_after_commit)
        write_data(t);
    commit_images(images(t), t, false);
    if (plant == Plant::data_after_commit)
        write_data(t);
}

void FileSystem::commit_nothing()
{
    commit_images({}, (uint8_t)now[META_A].word[0], false);
}

/* The records of t + 1 are on their way before the commit of t is durable. */
void FileSystem::commit_two(uint8_t t)
{
    oracle.attempted = t;
    write_data(t);
    Block first = write_records(images(t));
    flush_all();
    write_commit(first);
    write_data(t + 1);
    Block second = write_records(images(t + 1));
    flush_logs();
    acknowledge(first, t);
    oracle.attempted = t + 1;
    flush_all();
    write_commit(second);
    flush_logs();
    acknowledge(second, t + 1);
}

/* --- Checkpoints ------------------------------------------------------------------------------ */

/* Returns the images of the blocks whose content names others: rule 10. */
std::vector<Block> FileSystem::name_ages(bool clean)
{
    Block old[ADDRS];
    std::vector<Block> changed;

    std::copy(std::begin(now), std::end(now), old);
    auto seal = [&](uint8_t addr) {
        if (now[addr] == old[addr])
            return;
        now[addr].tid = next_tid;
        changed.push_back(now[addr]);
    };
    for (uint8_t addr : {META_A, META_B}) {
        if (in_log[addr])
            now[ENTRIES].word[addr - META_A] = crc(now[addr]);
    }
    seal(ENTRIES);
    now[MAP].word[1] = crc(now[ENTRIES]);
    seal(MAP);
    now[SUPER].word[0] = crc(now[MAP]);
    if (clean) {
        /* The note is about the later tail, which follows this transaction. */
        unsigned blocks = (unsigned)changed.size() + 3;
        now[SUPER].word[1] = inc.counter << 8 | inc.id;
        now[SUPER].word[2] = (uint32_t)(next_tid + 1) << 8 | (next_pos + blocks) % LOG_BLOCKS;
    }
    seal(SUPER);
    return changed;
}

/* Returns true if the log can take the transactions of a checkpoint. */
bool FileSystem::room_for_checkpoint()
{
    Block saved[ADDRS];

    std::copy(std::begin(now), std::end(now), saved);
    size_t changed = name_ages(false).size();
    std::copy(std::begin(saved), std::end(saved), now);
    return log_used + (changed ? changed + 2 : 0) + 1 <= LOG_BLOCKS;
}

std::vector<unsigned> FileSystem::places(uint8_t addr) const
{
    if (addr == SUPER)
        return {SUPER_PLACE};
    if (addr == MAP)
        return {MAP_PLACE};
    unsigned at = CHUNK_PLACE + now[MAP].word[0] * 3 + addr - ENTRIES;
    if (moving && plant != Plant::move_to_one_place)
        return {at, at + 3};
    return {at};
}

void FileSystem::write_home(const Block *snapshot, const bool *which)
{
    d.verified = true;
    for (uint8_t addr = SUPER; addr < ADDRS; addr++) {
        for (int m = 0; which[addr] && m < MAX_DEVICES; m++) {
            for (unsigned at : places(addr)) {
                if (has_copy(m))
                    d.write(dev[m], at, snapshot[addr]);
            }
        }
    }
    d.verified = false;
}

/* Returns false if a block differs from what was written. */
bool FileSystem::read_back_home(const Block *snapshot, const bool *which)
{
    bool good = true;

    for (uint8_t addr = SUPER; addr < ADDRS; addr++) {
        for (int m = 0; which[addr] && m < MAX_DEVICES; m++) {
            for (unsigned at : places(addr))
                good = good && (!has_copy(m) || d.read(dev[m], at) == snapshot[addr]);
        }
    }
    return good;
}

void FileSystem::checkpoint(bool clean, uint8_t beside)
{
    std::vector<Block> changed = name_ages(clean);
    bool which[ADDRS], empty[ADDRS] = {};
    Block snapshot[ADDRS];
    const bool early = plant == Plant::home_before_entries;

    std::copy(std::begin(in_log), std::end(in_log), which);
    for (const Block &block : changed)
        which[block.addr] = true;
    std::copy(std::begin(now), std::end(now), snapshot);
    if (early)
        write_home(snapshot, which);
    if (!changed.empty())
        commit_images(changed, (uint8_t)now[META_A].word[0], true);
    std::copy(std::begin(empty), std::end(empty), in_log);
    const uint8_t later = next_tid;
    const unsigned later_pos = next_pos, used = log_used;
    const bool running = beside && plant == Plant::home_of_running;
    if (running) {
        images(beside);
        std::copy(std::begin(now), std::end(now), snapshot);
    } else if (beside) {
        commit(beside);
    }
    if (!early)
        write_home(snapshot, which);
    if (plant != Plant::tail_before_home)
        flush_all();
    if (plant != Plant::home_not_read_back && plant != Plant::tail_before_home &&
        !read_back_home(snapshot, which)) {
        write_home(snapshot, which);
        flush_all();
    }
    tail = later;
    tail_pos = later_pos;
    tail_super = crc(snapshot[SUPER]);
    log_used -= used;
    if (plant == Plant::reuse_before_tail) {
        write_commit(write_records({}));
        return;
    }
    commit_images({}, running ? oracle.acked : (uint8_t)now[META_A].word[0], true);
    if (running)
        commit(beside);
}

void FileSystem::unmount()
{
    checkpoint(true);
}

/* --- Moves ------------------------------------------------------------------------------------ */

void FileSystem::begin_move()
{
    for (int m = 0; m < MAX_DEVICES; m++) {
        for (unsigned i = 0; has_copy(m) && i < 3; i++)
            d.write(dev[m], CHUNK_PLACE + 3 + i, d.read(dev[m], CHUNK_PLACE + i));
    }
    flush_all();
    for (int m = 0; m < MAX_DEVICES; m++) {
        for (unsigned i = 0; has_copy(m) && i < 3; i++) {
            Block block = d.read(dev[m], CHUNK_PLACE + i);
            if (d.read(dev[m], CHUNK_PLACE + 3 + i) != block)
                d.write(dev[m], CHUNK_PLACE + 3 + i, block);
        }
    }
    flush_all();
    moving = true;
}

void FileSystem::end_move()
{
    now[MAP].word[0] = 1;
    now[MAP].tid = next_tid;
    moving = false;
    commit_images({now[MAP]}, (uint8_t)now[META_A].word[0], false);
}

void FileSystem::reuse_space(uint8_t t)
{
    Block data;

    if (plant != Plant::space_reused_at_once)
        commit_nothing();
    data.kind = Kind::data;
    for (int m = 0; m < MAX_DEVICES; m++) {
        for (unsigned i = 0; has_copy(m) && i < 3; i++)
            d.write(dev[m], CHUNK_PLACE + i, data);
    }
    flush_all();
    now[META_A].word[1] = 1;
    commit(t);
}

/* The log is empty: a checkpoint has been made. */
void FileSystem::move_log()
{
    const uint8_t place = log_place;
    Incarnation old = inc;

    auto first_commit = [&] {
        log_id++;
        log_place = 1 - place;
        next_pos = tail_pos = 0;
        log_used = 0;
        tail = next_tid;
        if (plant == Plant::new_log_has_new_incarnation)
            advance_incarnation();
        commit_images({}, (uint8_t)now[META_A].word[0], true);
        inc = old;
    };
    if (plant != Plant::label_before_new_log) {
        first_commit();
        new_incarnation();
    } else {
        log_id++;
        log_place = 1 - place;
        new_incarnation();
        old = inc;
        log_id--;
        log_place = place;
        first_commit();
    }
    commit_nothing();
}

void FileSystem::drop_log(int member)
{
    logs &= ~(1u << member);
    new_incarnation();
    commit_nothing();
}

bool FileSystem::state(uint8_t *t)
{
    *t = (uint8_t)now[META_A].word[0];
    return !lost[META_A] && !lost[META_B] &&
           now[META_B].word[0] == (*t % 2 ? *t
                                   : *t   ? *t - 1u
                                          : 0u);
}

} // namespace model
