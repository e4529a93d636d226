/* SPDX-License-Identifier: BSD-2-Clause */
/* Enumerates what a volatile cache leaves, and judges mounts. */
#include "tests/model/explorer.h"

namespace model
{

static const char *const mount_names[] = {
    "mounted",           "block 0 is foreign", "a member is missing",
    "members are split", "log damaged",        "superblock lost",
    "map lost",          "no room in the log",
};

void Explorer::bad(const std::string &what, const Oracle &oracle)
{
    if (report.empty())
        report = what + "; reported durable: " + std::to_string(oracle.acked) +
                 ", attempted: " + std::to_string(oracle.attempted);
}

/* --- States ----------------------------------------------------------------------------------- */

/* taken[i]: 0 leaves the old block, n takes the nth write, one more is torn. */
void Explorer::visit(const Disks &disks, const Oracle &oracle, int depth,
                     const std::vector<Choice> &choices, const std::vector<unsigned> &taken)
{
    Disks image = disks;

    image.pending.clear();
    image.observer = nullptr;
    image.fault = {};
    image.trace.clear();
    for (size_t i = 0; i < choices.size(); i++) {
        if (taken[i] == 0)
            continue;
        bool torn = taken[i] > choices[i].writes.size();
        const Write &w = *choices[i].writes[torn ? 0 : taken[i] - 1];
        Block block = w.block;
        if (torn)
            block.state = State::torn;
        image.durable[w.device][w.at] = block;
    }
    if (damage && depth == 0)
        damage(image, oracle);
    else
        check(image, oracle, depth);
}

/* Tries no write, all, all but one, one alone, and one torn. */
void Explorer::visit_few(const Disks &disks, const Oracle &oracle, int depth,
                         const std::vector<Choice> &choices)
{
    std::vector<unsigned> none(choices.size(), 0), all;

    for (const Choice &c : choices)
        all.push_back((unsigned)c.writes.size());
    visit(disks, oracle, depth, choices, none);
    if (choices.empty())
        return;
    visit(disks, oracle, depth, choices, all);
    for (size_t i = 0; i < choices.size() && report.empty(); i++) {
        std::vector<unsigned> taken = none;
        taken[i] = all[i];
        visit(disks, oracle, depth, choices, taken);
        taken = all;
        taken[i] = 0;
        visit(disks, oracle, depth, choices, taken);
        taken[i] = all[i] + 1;
        visit(disks, oracle, depth, choices, taken);
    }
}

/* Tries all subsets, with torn blocks if there are not too many. */
void Explorer::visit_all(const Disks &disks, const Oracle &oracle, int depth,
                         const std::vector<Choice> &choices)
{
    const unsigned extra = choices.size() <= 4 ? 2 : 1;
    std::vector<unsigned> taken(choices.size(), 0);

    for (bool more = true; more && report.empty();) {
        visit(disks, oracle, depth, choices, taken);
        more = false;
        for (size_t i = 0; i < taken.size() && !more; i++) {
            more = ++taken[i] < choices[i].writes.size() + extra;
            if (!more)
                taken[i] = 0;
        }
    }
}

void Explorer::crash(const Disks &disks, const Oracle &oracle, int depth)
{
    std::vector<Choice> choices;

    if (!report.empty())
        return;
    for (const Write &w : disks.pending) {
        Choice *same = nullptr;
        for (Choice &c : choices) {
            if (c.writes[0]->device == w.device && c.writes[0]->at == w.at)
                same = &c;
        }
        if (same)
            same->writes.push_back(&w);
        else
            choices.push_back({{&w}});
    }
    if (demands.few || depth > 0 || choices.size() > 10)
        visit_few(disks, oracle, depth, choices);
    else
        visit_all(disks, oracle, depth, choices);
}

bool Explorer::is_new(const Disks &image, const Oracle &oracle, int depth)
{
    uint64_t hash = 14695981039346656037u;
    auto add = [&](uint64_t word) {
        hash = (hash ^ word) * 1099511628211u;
        hash ^= hash >> 29;
    };
    for (int i = 0; i < image.count; i++) {
        /* Independent lanes: a chain of multiplications would take most of the model's time. */
        uint64_t words[(sizeof(Device) + 63) / 64][8] = {}, lanes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        memcpy(words, &image.durable[i], sizeof(Device));
        for (const auto &row : words) {
            for (unsigned k = 0; k < 8; k++) {
                lanes[k] = (lanes[k] ^ row[k]) * 1099511628211u;
                lanes[k] ^= lanes[k] >> 29;
            }
        }
        add(image.present[i]);
        for (uint64_t lane : lanes)
            add(lane);
    }
    add((uint64_t)oracle.acked << 32 | oracle.before << 16 | oracle.attempted << 8 | depth);
    return known.insert(hash).second;
}

/* --- Judgement -------------------------------------------------------------------------------- */

void Explorer::check(const Disks &image, const Oracle &oracle, int depth)
{
    if (!report.empty() || !is_new(image, oracle, depth))
        return;
    images++;
    Disks disks = image;
    Oracle inner = oracle;
    if (depth < demands.recoveries)
        disks.observer = [&] { crash(disks, inner, depth + 1); };
    FileSystem fs(disks, plant, inner, (uint8_t)(depth * 2 + 1));
    Mount result = fs.mount(false);
    if (demands.degraded && (result == Mount::missing || result == Mount::foreign)) {
        FileSystem degraded(disks, plant, inner, (uint8_t)(depth * 2 + 2));
        result = degraded.mount(true);
        judge(degraded, result, image, oracle);
        return;
    }
    judge(fs, result, image, oracle);
    disks.observer = nullptr;
    if (result == Mount::ok && report.empty())
        go_on(fs, disks, &inner);
}

/* Returns true if the newest durable commit has gone, and none came after it. */
bool Explorer::newest_is_lost(const Disks &image, const Oracle &oracle) const
{
    for (const Block &block : image.durable[0]) {
        if (block.kind == Kind::commit && block.tid > oracle.commit.tid)
            return false;
    }
    return image.durable[0][oracle.commit_at] != oracle.commit;
}

void Explorer::judge(FileSystem &fs, Mount result, const Disks &image, const Oracle &oracle)
{
    uint8_t t = 0, least = oracle.acked;
    const bool whole = demands.exact || (demands.before && newest_is_lost(image, oracle));

    if (result != Mount::ok) {
        if (whole)
            bad(std::string("refused: ") + mount_names[(int)result], oracle);
        return;
    }
    if (!fs.state(&t)) {
        if (whole)
            bad("metadata is lost", oracle);
        return;
    }
    /* The newest commit is the one block that nothing else vouches for. */
    if (!demands.exact && image.durable[0][oracle.commit_at] != oracle.commit)
        least = oracle.before;
    if (t < least || t > oracle.attempted)
        bad("the mount shows transaction " + std::to_string(t), oracle);
    for (int m = 0; demands.data && m < MAX_DEVICES; m++) {
        if (!fs.used(m))
            continue;
        const Device &device = image.durable[fs.device(m)];
        if (device[DATA_PLACE].word[0] < t)
            bad("data of member " + std::to_string(m) + " is older than its metadata", oracle);
        for (unsigned i = 0; i < 3 && m < 2 && fs.data_in_chunk_place(); i++) {
            if (device[CHUNK_PLACE + i].kind != Kind::data)
                bad("metadata has overwritten data", oracle);
        }
    }
}

/* What was recovered can be changed and mounted again. */
void Explorer::go_on(FileSystem &fs, Disks &disks, Oracle *oracle)
{
    uint8_t t = 0, again = 0;

    if (!fs.writable() || !fs.state(&t))
        return;
    fs.commit(t + 1);
    fs.unmount();
    FileSystem next(disks, plant, *oracle, 9);
    Mount result = next.mount(true);
    if (result != Mount::ok || !next.state(&again) || again != t + 1)
        bad(std::string("after a recovery and a clean unmount: ") + mount_names[(int)result],
            *oracle);
    for (unsigned i = 0; i < 3 && next.data_in_chunk_place(); i++) {
        if (demands.data && disks.read(next.device(0), CHUNK_PLACE + i).kind != Kind::data)
            bad("recovery has overwritten data", *oracle);
    }
}

} // namespace model
