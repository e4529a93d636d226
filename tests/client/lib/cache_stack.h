/* SPDX-License-Identifier: BSD-2-Clause */
// A cache of the file of a Stack (direct_stack.h), as warps use it.
#ifndef TESTS_CLIENT_LIB_CACHE_STACK_H
#define TESTS_CLIENT_LIB_CACHE_STACK_H

#include <errno.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/client/lib/cache_rig.h"
#include "tests/client/lib/direct_stack.h"

namespace cache_stack
{

using direct_stack::kPage, direct_stack::kPages, direct_stack::Stack;

constexpr uint64_t kLines = direct_stack::kPage; // place of the lines in the memory
constexpr uint32_t kSlots = 32;

// A cache of the file of a Stack, in the memory that its drive reaches.
class Cached
{
  public:
    // The lines begin at byte `at` of the memory.
    Cached(Stack &s, uint32_t line_shift, uint32_t set_shift, uint32_t ways, size_t at = kLines)
        : stack_(s), words_((size_t{ways} << set_shift) + GD_CACHE_LOOKS),
          locks_(size_t{1} << set_shift), recent_(words_.size()), counts_(GD_CACHE_COUNTERS)
    {
        auto memory = reinterpret_cast<uint64_t>(s.pages.data());
        size_t lines = size_t{ways} << set_shift << line_shift;
        cache_.file = &s.file;
        cache_.words = words_.data();
        cache_.locks = locks_.data();
        cache_.slots = slots_;
        cache_.recent = recent_.data();
        cache_.counts = counts_.data();
        cache_.lines = memory + at;
        cache_.slots_at = memory + at + lines;
        cache_.generation = 1;
        cache_.line_shift = line_shift;
        cache_.set_shift = set_shift;
        cache_.ways = ways;
        cache_.n_slots = kSlots;
        EXPECT_LE(at + lines + (kSlots << line_shift), kPages * kPage);
    }

    // Returns the result, or -EBADMSG if a byte is wrong.
    int64_t read(uint64_t n, uint64_t offset)
    {
        std::vector<uint8_t> to(n + 1, 0x5a);
        int64_t got = cache_rig_read(&cache_, to.data(), n, offset);
        if (got > 0 && !stack_.are_on_media(to.data(), static_cast<uint64_t>(got), offset))
            return -EBADMSG;
        return to[n] == 0x5a ? got : -EBADMSG;
    }

    // Reads elements at the offsets. Returns the number of those that are right.
    unsigned elements(uint32_t size, const std::vector<uint64_t> &offsets, int *err = nullptr)
    {
        std::vector<uint8_t> to(CACHE_LANES * size);
        struct cache_element e[CACHE_LANES];
        unsigned right = 0;
        for (size_t i = 0; i < CACHE_LANES; i++)
            e[i] = {reinterpret_cast<uint64_t>(&to[i * size]), offsets[i], 1};
        cache_rig_elements(&cache_, size, e);
        for (size_t i = 0; i < CACHE_LANES; i++) {
            right += e[i].err == 0 && stack_.are_on_media(&to[i * size], size, offsets[i]);
            if (err && e[i].err)
                *err = e[i].err;
        }
        return right;
    }

    // Returns the number of words in a state.
    unsigned words_in(uint32_t state) const
    {
        unsigned n = 0;
        for (size_t i = 0; i < size_t{cache_.ways} << cache_.set_shift; i++)
            n += (words_[i] & GD_CACHE_STATE) == state;
        return n;
    }

    // No group reads a line, claims one, or uses a slot.
    void expect_idle_words(uint32_t slots = 0) const
    {
        for (uint64_t word : words_)
            EXPECT_EQ(word & GD_CACHE_PINS, 0u);
        for (uint32_t lock : locks_)
            EXPECT_EQ(lock & GD_TAKEN, 0u);
        EXPECT_EQ(words_in(GD_CACHE_FILLING), 0u);
        EXPECT_EQ(__builtin_popcount(slots_[0]), static_cast<int>(slots));
    }

    uint64_t sum(uint64_t gd_cache_counts::*member) const
    {
        uint64_t sum = 0;
        for (const gd_cache_counts &c : counts_)
            sum += c.*member;
        return sum;
    }
    uint64_t hits() const { return sum(&gd_cache_counts::hits); }
    uint64_t misses() const { return sum(&gd_cache_counts::misses); }
    uint64_t bypasses() const { return sum(&gd_cache_counts::bypasses); }

    uint64_t line() const { return uint64_t{1} << cache_.line_shift; }

    // Returns true if the bytes of a line that is held are those of the file.
    bool is_right(const cache_rig_line &l) const
    {
        return l.bytes && stack_.are_on_media(l.bytes, l.len, l.offset);
    }

    gpunvme_device_cache &cache() { return cache_; }

  private:
    Stack &stack_;
    std::vector<uint64_t> words_;
    std::vector<uint32_t> locks_, recent_;
    std::vector<gd_cache_counts> counts_;
    uint32_t slots_[kSlots / 32] = {};
    gpunvme_device_cache cache_ = {};
};

} // namespace cache_stack

#endif
