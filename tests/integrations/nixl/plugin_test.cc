/* SPDX-License-Identifier: BSD-2-Clause */
// NIXL's plug-in as its agent calls it: registrations, transfers of many descriptors, and what a
// caller does wrong.
#include <backend/backend_plugin.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/client/cufile/places.h"

using namespace places;

namespace
{

constexpr size_t kFile = (2u << 20) + 777, kRoom = 4u << 20;
constexpr auto kPatience = std::chrono::seconds(60);

nixlBackendPlugin *plugin()
{
    static void *library = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return nullptr;
    auto init = reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(library, "nixl_plugin_init"));
    return init ? init() : nullptr;
}

struct Place {
    const char *name;
    Where where;
    Kind kind;
};

class Plugin : public InFolder<Place>
{
  protected:
    void SetUp() override
    {
        InFolder::SetUp();
        if (IsSkipped())
            return;
        ASSERT_NE(plugin(), nullptr) << dlerror();
        nixlBackendInitParams params;
        nixl_b_params_t custom;
        params.localAgent = "test";
        params.type = "GPUNVME";
        params.customParams = &custom;
        engine_ = plugin()->create_engine(&params);
        ASSERT_NE(engine_, nullptr);
        ASSERT_FALSE(engine_->getInitErr());
        for (auto name : {"a", "b"})
            ASSERT_TRUE(make_file(folder_->path(name), bytes_));
        memory_ = std::make_unique<Memory>(GetParam().kind, kRoom);
        kind_ = GetParam().kind == Kind::kHost ? DRAM_SEG : VRAM_SEG;
        ASSERT_EQ(add({reinterpret_cast<uintptr_t>(memory_->at()), kRoom, 0, ""}, kind_, &room_),
                  NIXL_SUCCESS);
    }

    void TearDown() override
    {
        for (auto *section : sections_)
            engine_->deregisterMem(section);
        if (engine_)
            plugin()->destroy_engine(engine_);
        for (int fd : fds_)
            close(fd);
        if (folder_) {
            EXPECT_TRUE(folder_->end());
        }
    }

    nixl_status_t add(const nixlBlobDesc &desc, nixl_mem_t kind, nixlBackendMD **out)
    {
        nixlBackendMD *made = nullptr;
        nixl_status_t status = engine_->registerMem(desc, kind, made), loaded;
        if (status != NIXL_SUCCESS)
            return status;
        sections_.push_back(made);
        loaded = engine_->loadLocalMD(made, *out);
        return loaded;
    }

    nixlBackendMD *file(const std::string &name)
    {
        nixlBackendMD *out = nullptr;
        fds_.push_back(open(folder_->path(name).c_str(), O_RDWR | O_CLOEXEC));
        EXPECT_EQ(add({0, 0, static_cast<uint64_t>(fds_.back()), ""}, FILE_SEG, &out),
                  NIXL_SUCCESS);
        return out;
    }

    // A descriptor of each side.
    void pair(size_t at, size_t n, nixlBackendMD *of, size_t offset)
    {
        local_.addDesc({reinterpret_cast<uintptr_t>(memory_->at(at)), n, 0, room_});
        remote_.addDesc({offset, n, 0, of});
    }

    nixl_status_t prepare(nixl_xfer_op_t operation)
    {
        if (handle_)
            engine_->releaseReqH(handle_);
        handle_ = nullptr;
        return engine_->prepXfer(operation, local_, remote_, "test", handle_, nullptr);
    }

    nixl_status_t post(nixl_xfer_op_t operation)
    {
        auto status = engine_->postXfer(operation, local_, remote_, "test", handle_, nullptr);
        auto until = std::chrono::steady_clock::now() + kPatience;
        while (status == NIXL_IN_PROG && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            status = engine_->checkXfer(handle_);
        }
        return status;
    }

    nixl_status_t run(nixl_xfer_op_t operation)
    {
        auto status = prepare(operation);
        if (status == NIXL_SUCCESS)
            status = post(operation);
        if (handle_)
            engine_->releaseReqH(handle_);
        handle_ = nullptr;
        return status;
    }

    bool holds(size_t at, size_t n, size_t offset)
    {
        return memory_->get(at, n) ==
               std::vector<char>(bytes_.begin() + static_cast<long>(offset),
                                 bytes_.begin() + static_cast<long>(offset + n));
    }

    std::vector<char> bytes_ = some_bytes(kFile, 7);
    std::unique_ptr<Memory> memory_;
    nixlBackendEngine *engine_ = nullptr;
    nixl_mem_t kind_ = DRAM_SEG;
    std::vector<nixlBackendMD *> sections_;
    std::vector<int> fds_;
    nixlBackendMD *room_ = nullptr;
    nixl_meta_dlist_t local_{DRAM_SEG}, remote_{FILE_SEG};
    nixlBackendReqH *handle_ = nullptr;
};

TEST_P(Plugin, ReportsItsCapabilities)
{
    EXPECT_EQ(plugin()->api_version, 1);
    EXPECT_STREQ(plugin()->get_plugin_name(), "GPUNVME");
    EXPECT_TRUE(engine_->supportsLocal());
    EXPECT_FALSE(engine_->supportsRemote() || engine_->supportsNotif());
    EXPECT_EQ(engine_->getSupportedMems(), plugin()->get_backend_mems());
    EXPECT_EQ(engine_->connect("test"), NIXL_SUCCESS);
    EXPECT_EQ(engine_->disconnect("test"), NIXL_SUCCESS);
}

TEST_P(Plugin, ReadsManyDescriptorsOfSeveralFiles)
{
    nixlBackendMD *files[] = {file("a"), file("b")};
    for (size_t i = 0; i < 200; i++)
        pair(i * 9000, 1 + i * 41, files[i % 2], (i * 7919) % (kFile - 9000));
    ASSERT_EQ(run(NIXL_READ), NIXL_SUCCESS);
    for (size_t i = 0; i < 200; i++)
        EXPECT_TRUE(holds(i * 9000, 1 + i * 41, (i * 7919) % (kFile - 9000))) << i;
}

TEST_P(Plugin, AdjacentBlocksArriveInTheirPlaces)
{
    nixlBackendMD *of = file("a");
    for (size_t at = 0; at < kFile; at += 65536)
        pair(at, std::min<size_t>(65536, kFile - at), of, at);
    pair(3u << 20, 4096, of, 4096);
    ASSERT_EQ(run(NIXL_READ), NIXL_SUCCESS);
    EXPECT_TRUE(holds(0, kFile, 0));
    EXPECT_TRUE(holds(3u << 20, 4096, 4096));
}

TEST_P(Plugin, WritesManyDescriptors)
{
    auto fresh = some_bytes(kRoom, 8);
    memory_->put(0, fresh);
    nixlBackendMD *of = file("a");
    auto expected = bytes_;
    for (size_t i = 0; i < 40; i++) {
        size_t at = i * 50001, offset = (39 - i) * 40000;
        pair(at, 40000, of, offset);
        std::copy_n(fresh.begin() + static_cast<long>(at), 40000,
                    expected.begin() + static_cast<long>(offset));
    }
    ASSERT_EQ(run(NIXL_WRITE), NIXL_SUCCESS);
    EXPECT_TRUE(file_bytes(folder_->path("a")) == expected);
}

// A descriptor without bytes moves none, alone or among others.
TEST_P(Plugin, EmptyDescriptorsMoveNothing)
{
    nixlBackendMD *of = file("a");
    memory_->put(0, some_bytes(kRoom, 8));
    auto memory = memory_->get(0, kRoom);
    pair(0, 0, of, 0);
    ASSERT_EQ(run(NIXL_WRITE), NIXL_SUCCESS);
    ASSERT_EQ(run(NIXL_READ), NIXL_SUCCESS);
    EXPECT_TRUE(file_bytes(folder_->path("a")) == bytes_);
    EXPECT_TRUE(memory_->get(0, kRoom) == memory);
    pair(4096, 1000, of, 77);
    ASSERT_EQ(run(NIXL_READ), NIXL_SUCCESS);
    EXPECT_TRUE(holds(4096, 1000, 77));
}

TEST_P(Plugin, APreparedTransferRunsAgain)
{
    nixlBackendMD *of = file("a");
    pair(0, 100000, of, 1);
    pair(200000, 100000, of, 500000);
    ASSERT_EQ(prepare(NIXL_READ), NIXL_SUCCESS);
    for (int round = 0; round < 3; round++) {
        memory_->put(0, std::vector<char>(300000));
        ASSERT_EQ(post(NIXL_READ), NIXL_SUCCESS) << round;
        EXPECT_TRUE(holds(0, 100000, 1)) << round;
        EXPECT_TRUE(holds(200000, 100000, 500000)) << round;
    }
    engine_->releaseReqH(handle_);
}

TEST_P(Plugin, ReleaseWaitsForTheTransfer)
{
    pair(0, kFile, file("a"), 0);
    ASSERT_EQ(prepare(NIXL_READ), NIXL_SUCCESS);
    auto status = engine_->postXfer(NIXL_READ, local_, remote_, "test", handle_, nullptr);
    ASSERT_TRUE(status == NIXL_IN_PROG || status == NIXL_SUCCESS);
    engine_->releaseReqH(handle_);
    EXPECT_TRUE(holds(0, kFile, 0));
}

TEST_P(Plugin, FilesAreRegisteredByTheirPath)
{
    nixlBackendMD *made = nullptr, *none = nullptr;
    ASSERT_EQ(add({0, 0, 5000, "rw,create:" + folder_->path("fresh")}, FILE_SEG, &made),
              NIXL_SUCCESS);
    auto fresh = some_bytes(10000, 3);
    memory_->put(0, fresh);
    pair(0, 10000, made, 0);
    ASSERT_EQ(run(NIXL_WRITE), NIXL_SUCCESS);
    EXPECT_TRUE(file_bytes(folder_->path("fresh")) == fresh);
    EXPECT_EQ(add({0, 0, 5001, "ro:" + folder_->path("missing")}, FILE_SEG, &none),
              NIXL_ERR_BACKEND);
    // Not modes of a path, and no descriptor either.
    EXPECT_EQ(add({0, 0, 5002, "ro,sideways:" + folder_->path("a")}, FILE_SEG, &none),
              NIXL_ERR_BACKEND);
}

TEST_P(Plugin, EndsOfFilesAreErrors)
{
    nixlBackendMD *of = file("a");
    pair(0, 4096, of, kFile - 100);
    EXPECT_EQ(run(NIXL_READ), NIXL_ERR_BACKEND);
    pair(8192, 4096, of, 0);
    EXPECT_EQ(run(NIXL_READ), NIXL_ERR_BACKEND) << "one piece of two is short";
}

TEST_P(Plugin, WritesOfReadOnlyFilesFail)
{
    nixlBackendMD *of = nullptr;
    ASSERT_EQ(add({0, 0, 1, "ro:" + folder_->path("a")}, FILE_SEG, &of), NIXL_SUCCESS);
    pair(0, 4096, of, 0);
    pair(4096, 4096, of, 8192);
    EXPECT_EQ(run(NIXL_WRITE), NIXL_ERR_BACKEND);
    EXPECT_EQ(run(NIXL_READ), NIXL_SUCCESS);
}

TEST_P(Plugin, MismatchedListsAreRefused)
{
    EXPECT_EQ(prepare(NIXL_READ), NIXL_ERR_INVALID_PARAM) << "no descriptors";
    nixlBackendMD *of = file("a");
    pair(kRoom - 100, 101, of, 0);
    EXPECT_EQ(prepare(NIXL_READ), NIXL_ERR_INVALID_PARAM) << "past the registration";
    local_.clear();
    EXPECT_EQ(prepare(NIXL_READ), NIXL_ERR_INVALID_PARAM) << "counts differ";
    remote_.clear();
    pair(0, 100, of, 0);
    remote_[0].len = 99;
    EXPECT_EQ(prepare(NIXL_READ), NIXL_ERR_INVALID_PARAM) << "lengths differ";
    remote_[0] = {0, 100, 0, room_};
    EXPECT_EQ(prepare(NIXL_READ), NIXL_ERR_INVALID_PARAM) << "memory as the file";
    remote_[0] = {0, 100, 0, nullptr};
    EXPECT_EQ(prepare(NIXL_READ), NIXL_ERR_INVALID_PARAM) << "nothing registered";
    local_[0].addr = ~uintptr_t{0} - 10;
    remote_[0] = {0, 100, 0, of};
    EXPECT_EQ(prepare(NIXL_READ), NIXL_ERR_INVALID_PARAM) << "an address that wraps";
}

TEST_P(Plugin, InvalidRegistrationsAreRefused)
{
    nixlBackendMD *none = nullptr;
    EXPECT_EQ(add({0, 0, 4711, ""}, FILE_SEG, &none), NIXL_ERR_BACKEND);
    EXPECT_EQ(add({0, 4096, 0, ""}, OBJ_SEG, &none), NIXL_ERR_NOT_SUPPORTED);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    EXPECT_EQ(add({0, 0, static_cast<uint64_t>(ends[0]), ""}, FILE_SEG, &none), NIXL_ERR_BACKEND);
    close(ends[0]);
    close(ends[1]);
}

TEST_P(Plugin, TheSameMemoryMayBeRegisteredTwice)
{
    nixlBackendMD *again = nullptr;
    ASSERT_EQ(add({reinterpret_cast<uintptr_t>(memory_->at(4096)), 8192, 0, ""}, kind_, &again),
              NIXL_SUCCESS);
    nixlBackendMD *of = file("b");
    pair(0, 4096, of, 0);
    pair(4096, 8192, of, 12345);
    local_[1].metadataP = again;
    ASSERT_EQ(run(NIXL_READ), NIXL_SUCCESS);
    EXPECT_TRUE(holds(0, 4096, 0));
    EXPECT_TRUE(holds(4096, 8192, 12345));
}

TEST_P(Plugin, FilesAreQueriedByName)
{
    nixl_reg_dlist_t names{FILE_SEG};
    for (const auto &name : {folder_->path("a"), folder_->path("missing"), std::string()})
        names.addDesc({0, 0, 0, name});
    std::vector<nixl_query_resp_t> found;
    ASSERT_EQ(engine_->queryMem(names, found), NIXL_SUCCESS);
    ASSERT_EQ(found.size(), 3u);
    ASSERT_TRUE(found[0].has_value());
    EXPECT_EQ(found[0]->at("size"), std::to_string(kFile));
    EXPECT_FALSE(found[1].has_value() || found[2].has_value());
}

const Place places_[] = {{"mount_host", Where::kMount, Kind::kHost},
                         {"mount_device", Where::kMount, Kind::kDevice},
                         {"mount_vmm", Where::kMount, Kind::kVmm},
                         {"tmpfs_host", Where::kTmpfs, Kind::kHost},
                         {"tmpfs_device", Where::kTmpfs, Kind::kDevice}};
INSTANTIATE_TEST_SUITE_P(Places, Plugin, ::testing::ValuesIn(places_),
                         [](const auto &place) { return place.param.name; });

} // namespace
