/* SPDX-License-Identifier: BSD-2-Clause */
// Whose fault a failed read of the self-test is: the controller's, or the host's.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "blockdev/data_check.h"
#include "blockdev/nvme/nvme_spec.h"

namespace
{

constexpr size_t kBytes = 1 << 20, kLba = 512;

// A device of zeros, whose transfers of `longest` bytes and more end with an error.
struct Device {
    bd_dev dev{};
    size_t longest = SIZE_MAX;
    int error = 0;
    uint16_t status = 0;
};

int submit(bd_dev *dev, bd_io *ios, size_t n)
{
    auto *d = reinterpret_cast<Device *>(dev);
    int err = 0;

    for (size_t i = 0; i < n; i++) {
        if (ios[i].len >= d->longest) {
            ios[i].error = d->error;
            ios[i].nvme_status = d->status;
        } else {
            memset(ios[i].buf, 0, ios[i].len);
        }
        err = err ? err : ios[i].error;
    }
    return err;
}

void *no_dma_alloc(bd_dev *, size_t)
{
    return nullptr;
}

class DataCheck : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ops_.submit = submit;
        ops_.dma_alloc = no_dma_alloc;
        d_.dev.ops = &ops_;
        d_.dev.info.bytes = kBytes;
        d_.dev.info.lba_size = kLba;
    }
    int check(size_t longest, int error, uint16_t status)
    {
        d_.longest = longest;
        d_.error = error;
        d_.status = status;
        return data_check_device(&d_.dev, 0, kBytes, true, why_, sizeof(why_));
    }
    bool says(const char *text) const
    {
        return std::string(why_).find(text) != std::string::npos;
    }

    bd_ops ops_{};
    Device d_;
    char why_[256] = "";
};

TEST_F(DataCheck, ADeviceThatReadsCorrectlyPasses)
{
    EXPECT_EQ(check(SIZE_MAX, 0, 0), 0) << why_;
}

TEST_F(DataCheck, ARefusalStatusIsTheControllersFault)
{
    for (size_t longest : {PAGE_BYTES, 2 * PAGE_BYTES}) {
        EXPECT_EQ(check(longest, -EINVAL, NVME_ERR_INVALID_FIELD), -EPROTO) << longest;
        EXPECT_TRUE(says("is refused by the controller")) << why_;
    }
}

TEST_F(DataCheck, AnErrorWithoutAStatusIsTheHostsFault)
{
    for (size_t longest : {PAGE_BYTES, 2 * PAGE_BYTES}) {
        EXPECT_EQ(check(longest, -EINVAL, 0), -EINVAL) << longest;
        EXPECT_TRUE(says("fails: Invalid argument")) << why_;
    }
}

TEST_F(DataCheck, OtherStatusesAreNoRefusal)
{
    EXPECT_EQ(check(2 * PAGE_BYTES, -EIO, 0x281), -EIO);
    EXPECT_TRUE(says("fails: ")) << why_;
}

// An executor has one errno for all statuses.
TEST_F(DataCheck, TheStatusTakesPrecedenceOverTheErrno)
{
    EXPECT_EQ(data_check_error(-EIO, NVME_ERR_INVALID_FIELD), -EPROTO);
    EXPECT_EQ(data_check_error(-EINVAL, 0), -EINVAL);
    EXPECT_EQ(data_check_error(0, 0), 0);
}

} // namespace
