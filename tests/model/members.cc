/* SPDX-License-Identifier: BSD-2-Clause */
/* Keeps labels, incarnations and members by rules 1 and 2. */
#include "tests/model/file_system.h"

namespace model
{

static int index_of(const Block &label)
{
    return label.word[7] & 0xff;
}

static bool joins(const Block &label)
{
    return label.word[7] >> 8;
}

/* --- Writing ---------------------------------------------------------------------------------- */

Block FileSystem::make_label(int m, bool joining) const
{
    Block label;

    label.kind = Kind::label;
    label.addr = LABEL;
    label.log = log_id;
    label.inc = inc;
    label.word[0] = log_place | (uint32_t)logs << 8;
    for (int i = 0; i < MAX_DEVICES; i++) {
        label.word[1 + i] = (uint32_t)members[i].state << 16 |
                            (uint32_t)members[i].seen.counter << 8 | members[i].seen.id;
        label.word[4 + i] = (uint32_t)members[i].maybe.counter << 8 | members[i].maybe.id;
    }
    label.word[7] = (uint32_t)m | (uint32_t)joining << 8;
    return label;
}

void FileSystem::write_label_copy(int m, unsigned copy, const Block &label)
{
    d.write(dev[m], LABEL_PLACE + copy, label);
    if (plant == Plant::label_copies_together)
        return;
    d.flush(dev[m]);
    if (d.read(dev[m], LABEL_PLACE + copy) != label) {
        d.write(dev[m], LABEL_PLACE + copy, label);
        d.flush(dev[m]);
    }
}

/* The copy that was believed is overwritten last. */
void FileSystem::write_label(int m, bool joining)
{
    const Block label = make_label(m, joining);
    const unsigned first = plant == Plant::label_order_fixed ? 0 : 1 - believed[m];

    d.verified = true;
    write_label_copy(m, first, label);
    write_label_copy(m, 1 - first, label);
    d.verified = false;
    if (plant == Plant::label_copies_together)
        d.flush(dev[m]);
}

void FileSystem::advance_incarnation()
{
    inc.counter++;
    inc.id = (uint8_t)(inc.counter * 16 + salt);
}

/* The table in the labels says what was durable before them. */
void FileSystem::new_incarnation()
{
    advance_incarnation();
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (live[m])
            write_label(m);
    }
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (live[m])
            members[m].seen = inc;
    }
}

/* The newcomer's label is the first one, and says that it joins. */
void FileSystem::join(int member, bool complete)
{
    Block data;

    data.kind = Kind::data;
    data.word[0] = now[META_A].word[0];
    dev[member] = member;
    d.write(member, DATA_PLACE, data);
    d.flush(member);
    members[member] = {Member::live, {}, {}};
    advance_incarnation();
    write_label(member, true);
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (live[m])
            write_label(m);
    }
    live[member] = true;
    for (int m = 0; m < MAX_DEVICES; m++) {
        if (live[m])
            members[m].seen = inc;
    }
    commit_nothing();
    if (!complete)
        return;
    new_incarnation();
    commit_nothing();
}

/* The leaver's label is the last one. */
void FileSystem::leave(int member)
{
    live[member] = false;
    members[member] = {};
    new_incarnation();
    d.write(dev[member], LABEL_PLACE, {});
    d.flush(dev[member]);
    d.write(dev[member], LABEL_PLACE + 1, {});
    d.flush(dev[member]);
    commit_nothing();
}

/* --- Reading ---------------------------------------------------------------------------------- */

/* Returns the newer of the sound labels, in which one bit may be corrected. */
std::optional<Block> FileSystem::read_label(int device, bool *foreign, unsigned *which) const
{
    std::optional<Block> best;

    *which = 0;

    for (unsigned copy = 0; copy < 2; copy++) {
        Block label = d.read(device, LABEL_PLACE + copy);
        if (label.kind != Kind::label) {
            *foreign = copy == 0 && plant != Plant::foreign_block_ignored;
            if (*foreign)
                return std::nullopt;
            continue;
        }
        if (label.state == State::flipped && plant != Plant::flip_not_corrected)
            label.state = State::sound;
        if (label.state != State::sound || label.addr != LABEL)
            continue;
        if (best && label.inc.counter <= best->inc.counter)
            continue;
        best = label;
        *which = copy;
    }
    return best;
}

void FileSystem::use_table(const Block &label)
{
    inc = label.inc;
    log_id = label.log;
    log_place = label.word[0] & 1;
    logs = label.word[0] >> 8 & 7;
    for (int m = 0; m < MAX_DEVICES; m++) {
        uint32_t word = label.word[1 + m], maybe = label.word[4 + m];
        members[m] = {(Member::State)(word >> 16),
                      {(uint8_t)(word >> 8), (uint8_t)word},
                      {(uint8_t)(maybe >> 8), (uint8_t)maybe}};
    }
}

/* Returns true if a log holds a commit of the incarnation that judges. */
bool FileSystem::log_holds(const Block &judge,
                           const std::vector<std::optional<Block>> &labels) const
{
    for (int i = 0; i < d.count; i++) {
        if (!labels[i] || !(judge.word[0] >> 8 & 1u << index_of(*labels[i])))
            continue;
        for (unsigned pos = 0; pos < LOG_BLOCKS; pos++) {
            Block b = d.read(i, LOG_PLACE + (judge.word[0] & 1) * LOG_BLOCKS + pos);
            if (b.kind == Kind::commit && b.state == State::sound && b.log == judge.log &&
                b.addr == LOG + pos && b.inc == judge.inc)
                return true;
        }
    }
    return false;
}

/* For a member whose label is not of the newest incarnation. */
bool FileSystem::member_is_stale(Incarnation own, const Member &member, bool evidence) const
{
    if (own.counter < member.seen.counter)
        return plant != Plant::rolled_back_used;
    if (plant == Plant::stale_member_used)
        return false;
    if (plant == Plant::cut_label_is_stale)
        return true;
    return member.state == Member::absent || evidence;
}

/*
 * Marks the members that are not there as absent, with what is durable on them.
 * Returns false if there are any.
 */
bool FileSystem::table_is_complete(bool evidence, Incarnation newest)
{
    bool complete = true;

    for (int m = 0; m < MAX_DEVICES; m++) {
        if (members[m].state == Member::none)
            continue;
        bool was_live = members[m].state == Member::live;
        members[m].state = live[m] ? Member::live : Member::absent;
        if (live[m])
            continue;
        complete = false;
        logs &= ~(1u << m);
        if (!was_live || plant == Plant::seen_not_advanced)
            continue;
        (evidence ? members[m].seen : members[m].maybe) = newest;
    }
    return complete;
}

Mount FileSystem::judge_members(const std::vector<std::optional<Block>> &labels, const Block &judge,
                                bool degraded)
{
    const bool evidence = log_holds(judge, labels);

    for (int i = 0; i < d.count; i++) {
        if (!labels[i])
            continue;
        int m = plant == Plant::members_by_order ? i : index_of(*labels[i]);
        const Incarnation own = labels[i]->inc;
        if (members[m].state == Member::none || live[m])
            continue;
        bool known = own == judge.inc || own == members[m].seen || own == members[m].maybe ||
                     own.counter < members[m].seen.counter;
        if (!known && joins(*labels[i]) && plant != Plant::joining_label_judges)
            continue;
        if (!known && plant != Plant::split_ignored)
            return Mount::split;
        if (own != judge.inc && member_is_stale(own, members[m], evidence))
            continue;
        live[m] = true;
        dev[m] = i;
        members[m].seen = own;
        members[m].maybe = {};
    }
    bool complete = table_is_complete(evidence, judge.inc);
    return complete || (degraded && logs) ? Mount::ok : Mount::missing;
}

/* The table with the highest counter judges; that of a joining member never. */
Mount FileSystem::judge(bool degraded)
{
    std::vector<std::optional<Block>> labels(d.count);
    const Block *newest = nullptr;
    unsigned sound[MAX_DEVICES];
    bool foreign = false;

    for (int i = 0; i < d.count; i++) {
        if (d.present[i])
            labels[i] = read_label(i, &foreign, &sound[i]);
    }
    for (const std::optional<Block> &label : labels) {
        if (!label || (joins(*label) && plant != Plant::joining_label_judges))
            continue;
        if (!newest || label->inc.counter > newest->inc.counter)
            newest = &*label;
        else if (label->inc.counter == newest->inc.counter && label->inc != newest->inc &&
                 plant != Plant::split_ignored)
            return Mount::split;
    }
    if (!newest)
        return foreign ? Mount::foreign : Mount::missing;
    use_table(*newest);
    Mount result = judge_members(labels, *newest, degraded);
    for (int m = 0; m < MAX_DEVICES; m++)
        believed[m] = live[m] ? sound[dev[m]] : 0;
    return result;
}

Mount FileSystem::mount(bool degraded)
{
    Mount result = judge(degraded);

    if (result != Mount::ok)
        return result;
    return recover();
}

} // namespace model
