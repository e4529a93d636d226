/* SPDX-License-Identifier: BSD-2-Clause */
// Streams of steps and records by kind, over mounts and other files, host and device memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "gpunvme/gpunvme_records.h"
#include "gpunvme/gpunvme_stream.h"
#include "tests/client/cufile/places.h"

using namespace places;

namespace
{

constexpr size_t kFile = 6u << 20, kStep = 300000, kAlign = GPUNVME_STREAM_ALIGN;

struct Way {
    const char *name;
    Where where;
    Kind kind;
};

class Plans : public InFolder<Way>
{
  protected:
    void SetUp() override
    {
        if (!begin(bytes_))
            return;
        fd_ = open(folder_->path("file").c_str(), O_RDONLY | O_CLOEXEC);
        ASSERT_GE(fd_, 0) << strerror(errno);
        ASSERT_EQ(gpunvme_io_open(nullptr, &io_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_io_file_open(io_, fd_, &file_), 0) << gpunvme_error();
        if (GetParam().kind == Kind::kDevice) {
            ASSERT_EQ(cuda().stream_create(&stream_, 0), 0);
        }
    }

    void TearDown() override
    {
        gpunvme_io_close(io_);
        if (stream_)
            cuda().stream_destroy(stream_);
        if (fd_ >= 0)
            close(fd_);
        if (folder_) {
            EXPECT_TRUE(folder_->end());
        }
    }

    // Steps of two ranges of this file, of different lengths.
    void make_plan(size_t steps)
    {
        ranges_.clear();
        plan_.clear();
        for (size_t i = 0; i < steps; i++) {
            ranges_.push_back({file_, (i * 700001) % (kFile - kStep), 1000 + i * 7919 % 200000});
            ranges_.push_back({file_, (i * 500009) % (kFile - kStep), 1 + i * 104729 % 90000});
        }
        for (size_t i = 0; i < steps; i++)
            plan_.push_back({&ranges_[2 * i], 2});
    }

    void start(size_t room, const struct gpunvme_stream_options *options = nullptr)
    {
        ring_ = std::make_unique<Memory>(GetParam().kind, room);
        ASSERT_EQ(gpunvme_stream_open(io_, plan_.data(), plan_.size(), ring_->at(), room, options,
                                      &steps_),
                  0)
            << gpunvme_error();
    }

    bool holds(size_t step, const void *addr)
    {
        size_t at = static_cast<size_t>(static_cast<const char *>(addr) - ring_->at());
        for (size_t i = 0; i < 2; i++) {
            const struct gpunvme_range &r = ranges_[2 * step + i];
            auto first = bytes_.begin() + static_cast<long>(r.offset);
            if (ring_->get(at, r.len) != std::vector<char>(first, first + static_cast<long>(r.len)))
                return false;
            at += (r.len + kAlign - 1) / kAlign * kAlign;
        }
        return true;
    }

    std::vector<char> bytes_ = some_bytes(kFile, 7);
    std::unique_ptr<Memory> ring_;
    std::vector<struct gpunvme_range> ranges_;
    std::vector<struct gpunvme_step> plan_;
    struct gpunvme_io *io_ = nullptr;
    struct gpunvme_io_file *file_ = nullptr;
    struct gpunvme_stream *steps_ = nullptr;
    fake_stream stream_ = nullptr;
    int fd_ = -1;
};

TEST_P(Plans, EveryStepHasItsBytes)
{
    make_plan(60);
    for (size_t room : {size_t{300} << 10, size_t{700} << 10, size_t{4} << 20}) {
        start(room);
        void *addr = nullptr;
        for (size_t i = 0; i < plan_.size(); i++) {
            ASSERT_GT(gpunvme_stream_next(steps_, stream_, &addr), 0) << gpunvme_error();
            ASSERT_TRUE(holds(i, addr)) << "step " << i << ", ring of " << room;
        }
        EXPECT_EQ(gpunvme_stream_next(steps_, stream_, &addr), 0);
        gpunvme_stream_close(steps_);
    }
}

TEST_P(Plans, LoopsBeginAgainAndMayBeClosedAnywhere)
{
    make_plan(5);
    struct gpunvme_stream_options options = {4, 1, 0};
    start(size_t{900} << 10, &options);
    for (size_t i = 0; i < 33; i++) {
        void *addr = nullptr;
        ASSERT_GT(gpunvme_stream_next(steps_, stream_, &addr), 0) << gpunvme_error();
        ASSERT_TRUE(holds(i % 5, addr)) << i;
    }
    gpunvme_stream_close(steps_);
}

// What streams still use is not read over, however long that takes.
TEST_P(Plans, MemoryComesBackWhenTheStreamHasPassed)
{
    if (GetParam().kind != Kind::kDevice)
        GTEST_SKIP() << "host memory has no stream";
    make_plan(4);
    start(size_t{600} << 10); // two steps
    std::atomic<bool> open{false}, third{false};
    void *first = nullptr, *second = nullptr;
    ASSERT_GT(gpunvme_stream_next(steps_, stream_, &first), 0);
    cuda().launch(
        stream_,
        [](void *p) {
            while (!*static_cast<std::atomic<bool> *>(p))
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        &open);
    ASSERT_GT(gpunvme_stream_next(steps_, stream_, &second), 0);
    for (auto &step : ranges_)
        step.len = 250000; // not the stream's copy of the plan
    std::thread later([&] {
        void *addr = nullptr;
        while (gpunvme_stream_next(steps_, stream_, &addr) > 0)
            third = true;
    });
    make_plan(4);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_TRUE(holds(0, first));
    EXPECT_TRUE(holds(1, second));
    open = true;
    later.join();
    EXPECT_TRUE(third);
    gpunvme_stream_close(steps_);
}

TEST_P(Plans, AStepThatCannotBeReadIsToldAndPassed)
{
    make_plan(4);
    ranges_[3].offset = kFile - 10;
    ranges_[3].len = 5000;
    start(size_t{900} << 10);
    void *addr = nullptr;
    ASSERT_GT(gpunvme_stream_next(steps_, stream_, &addr), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_stream_next(steps_, stream_, &addr), -EIO);
    EXPECT_NE(std::string(gpunvme_error()).find("4990 bytes early"), std::string::npos);
    ASSERT_GT(gpunvme_stream_next(steps_, stream_, &addr), 0) << gpunvme_error();
    EXPECT_TRUE(holds(2, addr));
    gpunvme_stream_close(steps_);
}

TEST_P(Plans, PlansThatMakeNoSense)
{
    make_plan(3);
    ring_ = std::make_unique<Memory>(GetParam().kind, 1 << 20);
    auto open = [&](size_t steps, size_t room, uint32_t readers, uint32_t loop) {
        struct gpunvme_stream_options options = {readers, loop, 0};
        return gpunvme_stream_open(io_, plan_.data(), steps, ring_->at(), room, &options, &steps_);
    };
    EXPECT_EQ(open(0, 1 << 20, 0, 0), -EINVAL);
    EXPECT_EQ(open(3, kAlign, 0, 0), -EINVAL);
    EXPECT_EQ(open(3, 1 << 20, 65, 0), -EINVAL);
    EXPECT_EQ(open(3, 1 << 20, 0, 2), -EINVAL);
    ranges_[2].len = 0;
    EXPECT_EQ(open(3, 1 << 20, 0, 0), -EINVAL);
    plan_[1].n = 0;
    EXPECT_EQ(open(3, 1 << 20, 0, 0), -EINVAL);
    gpunvme_stream_close(nullptr);
}

// --- Records
// ---------------------------------------------------------------------------------------

TEST_P(Plans, GathersRecordsByNumber)
{
    struct gpunvme_records records = {file_, 123, 5000, 1001};
    Memory memory(GetParam().kind, 3 << 20);
    std::vector<int64_t> index;
    for (size_t i = 0; i < 2000; i++)
        index.push_back(static_cast<int64_t>(i * 7919 % 5000));
    Memory list(GetParam().kind, index.size() * 8);
    const char *raw = reinterpret_cast<const char *>(index.data());
    list.put(0, std::vector<char>(raw, raw + index.size() * 8));
    ASSERT_EQ(gpunvme_records_gather(&records, reinterpret_cast<const int64_t *>(list.at()), 2000,
                                     memory.at(), nullptr),
              0)
        << gpunvme_error();
    for (size_t i = 0; i < index.size(); i++) {
        auto first = bytes_.begin() + 123 + index[i] * 1001;
        ASSERT_EQ(memory.get(i * 1001, 1001), std::vector<char>(first, first + 1001)) << i;
    }
    int64_t wrong[] = {0, 5000}, negative[] = {-1};
    EXPECT_EQ(gpunvme_records_gather(&records, wrong, 2, memory.at(), nullptr), -ERANGE);
    EXPECT_EQ(gpunvme_records_gather(&records, negative, 1, memory.at(), nullptr), -ERANGE);
    EXPECT_EQ(gpunvme_records_gather(&records, wrong, 0, memory.at(), nullptr), 0);
    records.count = 1 << 20;
    wrong[1] = kFile / 1001;
    EXPECT_EQ(gpunvme_records_gather(&records, wrong, 2, memory.at(), nullptr), -EIO);
}

void write_text(const std::string &path, const std::string &text)
{
    std::ofstream(path) << text;
}

TEST_P(Plans, ReadsByKind)
{
    std::string path = folder_->path("catalogue.json");
    write_text(path, R"({"version": 1, "kinds": {
        "image": {"file": "file", "offset": 4096, "size": 12288, "count": 50},
        "label": {"file": "file", "offset": 0, "size": 8, "count": 512}}})");
    struct gpunvme_catalogue *c = nullptr;
    ASSERT_EQ(gpunvme_catalogue_open(io_, path.c_str(), &c), 0) << gpunvme_error();
    EXPECT_STREQ(gpunvme_catalogue_kind(c, 0), "image");
    EXPECT_STREQ(gpunvme_catalogue_kind(c, 1), "label");
    EXPECT_EQ(gpunvme_catalogue_kind(c, 2), nullptr);
    Memory memory(GetParam().kind, 1 << 20);
    ASSERT_EQ(gpunvme_read_kind(c, "image", 3, 47, memory.at()), 0) << gpunvme_error();
    auto first = bytes_.begin() + 4096 + 3 * 12288;
    EXPECT_EQ(memory.get(0, 47 * 12288), std::vector<char>(first, first + 47 * 12288));
    EXPECT_EQ(gpunvme_read_kind(c, "image", 3, 48, memory.at()), -ERANGE);
    EXPECT_EQ(gpunvme_read_kind(c, "image", UINT64_MAX, 2, memory.at()), -ERANGE);
    EXPECT_EQ(gpunvme_read_kind(c, "sound", 0, 1, memory.at()), -ENOENT);
    gpunvme_catalogue_close(c);
}

TEST_P(Plans, CataloguesThatAreWrong)
{
    const char *wrong[] = {
        "",
        "{",
        "[]",
        R"({"version": 2, "kinds": {}})",
        R"({"version": 1, "kinds": []})",
        R"({"version": 1, "kinds": {"a": 3}})",
        R"({"version": 1, "kinds": {"a": {"file": 1, "offset": 0, "size": 1, "count": 1}}})",
        R"({"version": 1, "kinds": {"a": {"file": "none", "offset": 0, "size": 1, "count": 1}}})",
        R"({"version": 1, "kinds": {"a": {"file": "file", "offset": -1, "size": 1, "count": 1}}})",
        R"({"version": 1, "kinds": {"a": {"file": "file", "offset": 0, "size": 0, "count": 1}}})",
        R"({"version": 1, "kinds": {"a": {"file": "file", "offset": 0, "size": 2, "count": 1e9}}})",
        R"({"version": 1, "kinds": {"a": {"file": "file", "offset": 0, "size": 9,
            "count": 9223372036854775807}}})",
        R"({"version": 1, "kinds": {"b": {"file": "file", "offset": 0, "size": 1, "count": 1},
            "a": {"file": "file", "offset": 9999999, "size": 1, "count": 1}}})"};
    std::string path = folder_->path("catalogue.json");
    for (const char *text : wrong) {
        struct gpunvme_catalogue *c = nullptr;
        write_text(path, text);
        EXPECT_LT(gpunvme_catalogue_open(io_, path.c_str(), &c), 0) << text;
        EXPECT_EQ(std::string(gpunvme_error()).rfind(path, 0), 0u) << gpunvme_error();
        EXPECT_EQ(c, nullptr);
    }
    struct gpunvme_catalogue *c = nullptr;
    EXPECT_EQ(gpunvme_catalogue_open(io_, folder_->path("none").c_str(), &c), -ENOENT);
}

INSTANTIATE_TEST_SUITE_P(Ways, Plans,
                         ::testing::Values(Way{"mount_host", Where::kMount, Kind::kHost},
                                           Way{"mount_device", Where::kMount, Kind::kDevice},
                                           Way{"tmpfs_host", Where::kTmpfs, Kind::kHost},
                                           Way{"tmpfs_device", Where::kTmpfs, Kind::kDevice}),
                         [](const auto &info) { return info.param.name; });

} // namespace
