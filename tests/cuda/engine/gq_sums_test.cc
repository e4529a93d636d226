/* SPDX-License-Identifier: BSD-2-Clause */
// Checksums by the executor, against the definition.
#include <errno.h>

#include "tests/cuda/gq_rig.h"

namespace
{

class GqSums : public GqTest
{
};

uint32_t crc32c(const uint8_t *data, size_t len)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < len; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

TEST(Crc, TheDefinitionOfTheTestIsRfc3720s)
{
    EXPECT_EQ(crc32c(reinterpret_cast<const uint8_t *>("123456789"), 9), 0xe3069283u);
}

TEST_P(GqSums, AreThoseOfTheBytes)
{
    constexpr size_t kRoom = 3u << 20, kMany = 20000; // more than a launch takes
    Rig rig(GetParam());
    rig.open();
    Memory m(rig.x.kind, kRoom);
    Bytes data = random_bytes(kRoom, 5);
    m.write(0, data);
    for (size_t start : {size_t{0}, size_t{4096}, size_t{12}, size_t{4097}}) {
        gq_buffer *b = rig.add(m, start, kRoom - start);
        ASSERT_TRUE(b);
        std::vector<uint64_t> at(kMany);
        std::vector<uint32_t> sums(kMany);
        for (size_t i = 0; i < kMany; i++)
            at[i] = i * 4096 % (kRoom - start - 4096) + i / 1000;
        at.back() = kRoom - start - GQ_SUM_BYTES;
        ASSERT_EQ(gq_buffer_sums(b, at.data(), kMany, sums.data()), 0);
        for (size_t i = 0; i < kMany; i += i % 1000 < 5 || i > kMany - 5 ? 1 : 95)
            ASSERT_EQ(sums[i], crc32c(&data[start + at[i]], GQ_SUM_BYTES))
                << i << " from " << start;
        at[7] = kRoom - start - GQ_SUM_BYTES + 1;
        EXPECT_EQ(gq_buffer_sums(b, at.data(), kMany, sums.data()), -EINVAL);
        gq_buffer_unregister(b);
    }
}

GQ_FOR_EXECUTORS(GqSums);

} // namespace
