/*
 * How much host memory is pinned for a GPU, on machines without one: the linker puts this in the
 * place of gq_engine_info() (--wrap), and the executor says that it is CUDA.
 */
#include <errno.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "cuda/gq.h"
#include "tests/daemon/rig.h"

extern "C" void __real_gq_engine_info(const gq_engine *e, gq_info *out);

extern "C" void __wrap_gq_engine_info(const gq_engine *e, gq_info *out)
{
    __real_gq_engine_info(e, out);
    out->executor = GQ_EXECUTOR_CUDA;
}

namespace
{

// Half of the machine's memory, of holes: what is pinned counts, touched or not.
TEST(Pinned, IsHalfOfTheMachinesMemoryAtMost)
{
    const rig_config config = {};
    rig *r = nullptr;
    rig_buffer whole = {}, first = {}, second = {}, more = {}, list = {};
    uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    uint64_t half = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page / 2;
    uint64_t quarter = half / 2 / page * page;

    ASSERT_EQ(rig_open(&config, &r), 0);
    EXPECT_EQ(rig_register(r, half + 1, 0, &whole), -ENOMEM);
    EXPECT_EQ(rig_register(r, quarter, 0, &first), 0);
    EXPECT_EQ(rig_register(r, half - quarter, 0, &second), 0);
    EXPECT_EQ(rig_register(r, 1, 0, &more), -ENOMEM);
    rig_forget(&more);
    EXPECT_EQ(rig_register_list(r, page, 0, &list), 0) << "is not pinned";
    EXPECT_EQ(rig_unregister(r, &list, 0), 0);
    EXPECT_EQ(rig_unregister(r, &first, 0), 0);
    EXPECT_EQ(rig_register(r, 1, 0, &more), 0);
    EXPECT_EQ(rig_buffers(r), 2u);
    for (rig_buffer *b : {&whole, &first, &second, &more, &list})
        rig_forget(b);
    EXPECT_EQ(rig_close(r), 0);
}

} // namespace
