/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Blocks and drives of the model. A block has the fields on which the rules of
 * the format depend; a drive has a volatile cache and can fail.
 */
#ifndef TESTS_MODEL_DISKS_H
#define TESTS_MODEL_DISKS_H

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace model
{

enum class Kind : uint8_t { none, label, super, map, entries, meta, data, descriptor, commit };

/* Tells what a device has done to a block. A flipped block differs in one bit. */
enum class State : uint8_t { sound, flipped, torn };

struct Incarnation {
    uint8_t counter = 0, id = 0;

    bool operator==(const Incarnation &other) const
    {
        return counter == other.counter && id == other.id;
    }
    bool operator!=(const Incarnation &other) const
    {
        return !(*this == other);
    }
};

struct Block {
    Kind kind = Kind::none;
    State state = State::sound;
    uint8_t addr = 0; /* logical address, one of Addr */
    uint8_t log = 0;  /* log id of records and labels */
    Incarnation inc;  /* of records and labels */
    uint8_t tid = 0;
    uint8_t tail = 0, tail_pos = 0; /* of a commit */
    uint8_t reserved[3] = {};
    uint32_t word[8] = {}; /* contents, by kind: file_system.h */

    bool operator==(const Block &other) const
    {
        return memcmp(this, &other, sizeof(*this)) == 0;
    }
    bool operator!=(const Block &other) const
    {
        return !(*this == other);
    }
};
static_assert(sizeof(Block) == 44, "a block has no padding, so it can be compared and hashed");

/* Returns the checksum of what was written. It is never 0. */
inline uint32_t crc(const Block &block)
{
    Block clear = block;
    uint32_t words[sizeof(Block) / 4], hash = 2166136261u;

    clear.state = State::sound;
    memcpy(words, &clear, sizeof(words));
    for (uint32_t word : words)
        hash = (hash ^ word) * 16777619u ^ hash >> 15;
    return hash ? hash : 1;
}

/* Blocks of a log, of which a device has two places, and the places of others. */
constexpr unsigned LOG_BLOCKS = 21;
enum Place : uint8_t {
    LABEL_PLACE = 0, /* and 1 */
    SUPER_PLACE = 2,
    MAP_PLACE = 3,
    CHUNK_PLACE = 4, /* two places of three blocks */
    DATA_PLACE = 10,
    LOG_PLACE = 11, /* two places */
    DEVICE_BLOCKS = LOG_PLACE + 2 * LOG_BLOCKS,
};

constexpr int MAX_DEVICES = 3;
using Device = std::array<Block, DEVICE_BLOCKS>;

struct Write {
    int device;
    unsigned at;
    Block block;
};

struct Traced {
    int device;
    unsigned at;
    bool verified;
};

/* The write that a device acknowledges and does not do. */
struct Fault {
    enum Kind { none, lost, torn, misdirected } kind = none;
    unsigned number = 0; /* of the write, from 1 on */
    unsigned victim = 0; /* block that a misdirected write overwrites */
};

class Disks
{
  public:
    explicit Disks(int devices) : count(devices)
    {
        for (bool &there : present)
            there = devices-- > 0;
    }

    Block read(int device, unsigned at) const
    {
        for (size_t i = pending.size(); i-- > 0;) {
            if (pending[i].device == device && pending[i].at == at)
                return pending[i].block;
        }
        return durable[device][at];
    }

    void write(int device, unsigned at, Block block)
    {
        trace.push_back({device, at, verified});
        if (++writes == fault.number) {
            if (fault.kind == Fault::lost)
                return;
            if (fault.kind == Fault::torn)
                block.state = State::torn;
            if (fault.kind == Fault::misdirected)
                at = fault.victim;
        }
        pending.push_back({device, at, block});
    }

    /* The observer sees the state in which most writes are still volatile. */
    void flush(int device)
    {
        if (observer)
            observer();
        size_t left = 0;
        for (const Write &w : pending) {
            if (w.device == device)
                durable[w.device][w.at] = w.block;
            else
                pending[left++] = w;
        }
        pending.resize(left);
    }

    int count;
    bool present[MAX_DEVICES];
    std::array<Device, MAX_DEVICES> durable;
    std::vector<Write> pending;
    Fault fault;
    unsigned writes = 0;
    bool verified = false; /* the writer reads back what it writes now */
    std::vector<Traced> trace;
    std::function<void()> observer;
};

} // namespace model

#endif
