/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the option --fault of gpunvme-sim.
#include <cerrno>

#include <gtest/gtest.h>
#include <nvme/types.h>

#include "blockdev/nvme/nvme_spec.h"
extern "C" {
#include "sim/serve/serve.h"
}

namespace
{

TEST(FaultSpec, IsParsedIntoItsFields)
{
    struct sim_fault f;
    struct reason why = {};
    ASSERT_EQ(
        serve_fault_parse("late,op=read,qid=2,lba=0x10+8,skip=3,times=4,one-in=5,ms=250", &f, &why),
        0)
        << why.text;
    EXPECT_EQ(f.kind, SIM_FAULT_LATE);
    EXPECT_TRUE(f.match_opcode);
    EXPECT_EQ(f.opcode, NVME_IO_READ);
    EXPECT_FALSE(f.admin);
    EXPECT_EQ(f.qid, 2);
    EXPECT_EQ(f.first_lba, 16u);
    EXPECT_EQ(f.lbas, 8u);
    EXPECT_EQ(f.skip, 3u);
    EXPECT_EQ(f.times, 4u);
    EXPECT_EQ(f.one_in, 5u);
    EXPECT_EQ(f.delay_ns, 250000000u);
    ASSERT_EQ(serve_fault_parse("hang", &f, &why), 0);
    EXPECT_EQ(f.delay_ns, 0u);
    EXPECT_FALSE(f.match_opcode);
    ASSERT_EQ(serve_fault_parse("lose,op=abort", &f, &why), 0);
    EXPECT_TRUE(f.admin);
    EXPECT_EQ(f.opcode, NVME_ADMIN_ABORT);
    ASSERT_EQ(serve_fault_parse("lose,admin,op=0x0d", &f, &why), 0);
    EXPECT_TRUE(f.admin);
    EXPECT_EQ(f.opcode, 13);
    for (const char *bad :
         {"", ",", "lose,,op=read", "lose,op", "lose,op=256", "lose,admin=1", "late", "status",
          "repeat", "repeat,admin,ms=1", "status,status=0x8000", "lose,lba=1+0", "lose,lba=+1",
          "lose,lba=1+x", "lose,times=-1", "lose,times=99999999999", "lose,qid=70000",
          "lose,what=1", "lose,op=identify,lba=1"}) {
        why.text[0] = '\0';
        EXPECT_EQ(serve_fault_parse(bad, &f, &why), -EINVAL) << bad;
        EXPECT_NE(why.text[0], '\0') << bad;
    }
}

} // namespace
