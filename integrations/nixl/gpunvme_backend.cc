/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * NIXL's plug-in GPUNVME transfers files to and from host and GPU memory with
 * libgpunvme. The reads of one file into one registration are one READV.
 */
#include <backend/backend_plugin.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpunvme/gpunvme.h"

static_assert(NIXL_PLUGIN_API_VERSION == 1, "NIXL's headers are those of another plug-in API");

namespace
{

constexpr size_t kPieceMax = size_t{1} << 30; // gpunvme_piece: below 2^31

void complain(const std::string &object, const char *problem)
{
    fprintf(stderr, "nixl GPUNVME: %s: %s\n", object.c_str(), problem);
}

// Describes a registered file or registered memory.
struct Section : nixlBackendMD {
    Section() : nixlBackendMD(true) {}
    Section(const Section &) = delete;
    Section &operator=(const Section &) = delete;
    ~Section() override
    {
        gpunvme_file_close(file);
        if (registered)
            gpunvme_unregister(io, reinterpret_cast<void *>(addr));
        if (own_fd >= 0)
            close(own_fd);
    }

    struct gpunvme *io = nullptr;
    struct gpunvme_file *file = nullptr; // set for a file
    int own_fd = -1;                     // set for a file registered by path
    uintptr_t addr = 0;                  // set for memory
    size_t len = 0;
    bool registered = false;
};

Section *section(const nixlMetaDesc &desc)
{
    return static_cast<Section *>(desc.metadataP);
}

// Returns the flags of open(2) for a text like "ro,direct", or -1 if it is
// invalid.
int open_flags(const std::string &modes)
{
    static const std::unordered_map<std::string, int> access = {{"ro", O_RDONLY}, {"rw", O_RDWR}},
                                                      more = {{"direct", O_DIRECT},
                                                              {"sync", O_SYNC},
                                                              {"noatime", O_NOATIME},
                                                              {"create", O_CREAT}};
    std::istringstream words(modes);
    std::string word;
    std::getline(words, word, ',');
    auto found = access.find(word);
    if (found == access.end())
        return -1;
    int flags = found->second | O_CLOEXEC;
    while (std::getline(words, word, ',')) {
        found = more.find(word);
        if (found == more.end())
            return -1;
        flags |= found->second;
    }
    return flags;
}

// If the metadata of a file is "MODES:PATH", that path is opened. Otherwise the
// device id is an open descriptor.
nixl_status_t open_file(const nixlBlobDesc &desc, Section *out)
{
    size_t colon = desc.metaInfo.find(':');
    int flags = colon == std::string::npos ? -1 : open_flags(desc.metaInfo.substr(0, colon));
    int fd = static_cast<int>(desc.devId);
    std::string name = "fd " + std::to_string(fd);

    if (flags >= 0) {
        name = desc.metaInfo.substr(colon + 1);
        fd = out->own_fd = open(name.c_str(), flags, 0644);
        if (fd < 0) {
            complain(name, strerror(errno));
            return NIXL_ERR_BACKEND;
        }
    }
    if (gpunvme_file_open(out->io, fd, 0, &out->file)) {
        complain(name, gpunvme_error());
        return NIXL_ERR_BACKEND;
    }
    return NIXL_SUCCESS;
}

// Registers memory early. Otherwise the library registers it at its first
// transfer.
nixl_status_t register_memory(const nixlBlobDesc &desc, Section *out)
{
    out->addr = desc.addr;
    out->len = desc.len;
    int err = gpunvme_register(out->io, reinterpret_cast<void *>(desc.addr), desc.len);
    if (err && err != -EEXIST && err != -EINVAL) {
        complain("memory", gpunvme_error());
        return NIXL_ERR_BACKEND;
    }
    out->registered = !err;
    return NIXL_SUCCESS;
}

class Transfer;

// Holds the descriptors that one call of the library transfers.
struct Part : gpunvme_transfer {
    Part(Transfer *transfer, bool is_write, Section *of_file, Section *of_memory)
        : gpunvme_transfer{}, owner(transfer), file_section(of_file), memory(of_memory)
    {
        write = is_write;
        file = of_file->file;
    }

    // A write has exactly one descriptor. A read appends one to the last piece
    // if they are adjacent.
    void add(const nixlMetaDesc &local, const nixlMetaDesc &remote)
    {
        uint64_t offset = local.addr - memory->addr;
        if (!list.empty()) {
            auto &last = list.back();
            if (last.file_offset + last.len == remote.addr &&
                last.buffer_offset + last.len == offset && last.len + local.len <= kPieceMax) {
                last.len += static_cast<uint32_t>(local.len);
                return;
            }
        }
        for (size_t at = 0; at < local.len; at += kPieceMax) {
            size_t n = std::min(kPieceMax, local.len - at);
            list.push_back({remote.addr + at, offset + at, static_cast<uint32_t>(n), 0});
        }
    }

    // Submits a single piece as a plain read or write, so that the library can
    // choose the path.
    void arrange()
    {
        bool one = list.size() == 1;
        addr = reinterpret_cast<void *>(memory->addr + (one ? list[0].buffer_offset : 0));
        len = one ? list[0].len : memory->len;
        file_offset = one ? list[0].file_offset : 0;
        pieces = one ? nullptr : list.data();
        n_pieces = one ? 0 : list.size();
    }

    // Returns true if all bytes were moved.
    bool complete() const
    {
        if (!pieces)
            return bytes == static_cast<ssize_t>(len);
        return bytes == 0 && std::all_of(list.begin(), list.end(), [](const gpunvme_piece &p) {
                   return p.result >= 0 && static_cast<uint32_t>(p.result) == p.len;
               });
    }

    void complain_about() const
    {
        ssize_t failed = bytes;
        for (const auto &p : list)
            failed = pieces && failed >= 0 && p.result < 0 ? p.result : failed;
        complain(write ? "write" : "read",
                 failed < 0 ? strerror(static_cast<int>(-failed)) : "past the end of the file");
    }

    Transfer *owner;
    Section *file_section, *memory;
    std::vector<gpunvme_piece> list;
};

class Transfer : public nixlBackendReqH
{
  public:
    ~Transfer() override
    {
        std::unique_lock<std::mutex> held(lock_);
        changed_.wait(held, [this] { return !under_way_; });
    }

    void add(nixl_xfer_op_t operation, const nixlMetaDesc &local, const nixlMetaDesc &remote)
    {
        Section *file = section(remote), *memory = section(local);
        if (!local.len) // a part without pieces would be a transfer of the whole memory
            return;
        auto part = parts_.end();
        if (operation == NIXL_READ)
            part = std::find_if(parts_.begin(), parts_.end(), [&](const Part &p) {
                return p.file_section == file && p.memory == memory;
            });
        if (part == parts_.end())
            part = parts_.emplace(parts_.end(), this, operation == NIXL_WRITE, file, memory);
        part->add(local, remote);
    }

    nixl_status_t post()
    {
        std::unique_lock<std::mutex> held(lock_);
        if (under_way_)
            return NIXL_ERR_REPOST_ACTIVE;
        status_ = NIXL_SUCCESS;
        for (auto &part : parts_) {
            part.arrange();
            part.done = done;
            gpunvme_transfer *transfer = &part;
            if (gpunvme_submit(&transfer, 1) != 1) {
                complain("transfer", gpunvme_error());
                status_ = NIXL_ERR_BACKEND;
                break;
            }
            under_way_++;
        }
        return under_way_ ? NIXL_IN_PROG : status_;
    }

    nixl_status_t check()
    {
        std::lock_guard<std::mutex> held(lock_);
        return under_way_ ? NIXL_IN_PROG : status_;
    }

  private:
    static void done(gpunvme_transfer *r)
    {
        auto *part = static_cast<Part *>(r);
        Transfer *t = part->owner;
        bool complete = part->complete();
        if (!complete)
            part->complain_about();
        // Another thread may free the transfer as soon as the lock is released.
        std::lock_guard<std::mutex> held(t->lock_);
        if (!complete)
            t->status_ = NIXL_ERR_BACKEND;
        t->under_way_--;
        t->changed_.notify_all();
    }

    std::list<Part> parts_; // the library keeps pointers to them
    std::mutex lock_;       // protects the rest
    std::condition_variable changed_;
    size_t under_way_ = 0;
    nixl_status_t status_ = NIXL_ERR_NOT_POSTED;
};

bool within(const nixlMetaDesc &desc)
{
    const Section *s = section(desc);
    return desc.addr >= s->addr && desc.len <= s->len && desc.addr - s->addr <= s->len - desc.len;
}

bool fits(const nixlMetaDesc &local, const nixlMetaDesc &remote)
{
    return local.metadataP && remote.metadataP && section(remote)->file && !section(local)->file &&
           local.len == remote.len && within(local);
}

class Engine : public nixlBackendEngine
{
  public:
    explicit Engine(const nixlBackendInitParams *params) : nixlBackendEngine(params)
    {
        initErr = gpunvme_open(nullptr, &io_) != 0;
        if (initErr)
            complain(localAgent, gpunvme_error());
    }

    ~Engine() override { gpunvme_close(io_); }

    bool supportsRemote() const override { return false; }

    bool supportsLocal() const override { return true; }

    bool supportsNotif() const override { return false; }

    nixl_mem_list_t getSupportedMems() const override { return {DRAM_SEG, VRAM_SEG, FILE_SEG}; }

    nixl_status_t registerMem(const nixlBlobDesc &desc, const nixl_mem_t &kind,
                              nixlBackendMD *&out) override
    {
        if (kind != DRAM_SEG && kind != VRAM_SEG && kind != FILE_SEG)
            return NIXL_ERR_NOT_SUPPORTED;
        auto fresh = std::make_unique<Section>();
        fresh->io = io_;
        nixl_status_t status =
            kind == FILE_SEG ? open_file(desc, fresh.get()) : register_memory(desc, fresh.get());
        if (status == NIXL_SUCCESS)
            out = fresh.release();
        return status;
    }

    nixl_status_t deregisterMem(nixlBackendMD *meta) override
    {
        delete meta;
        return NIXL_SUCCESS;
    }

    nixl_status_t connect(const std::string &) override { return NIXL_SUCCESS; }

    nixl_status_t disconnect(const std::string &) override { return NIXL_SUCCESS; }

    nixl_status_t loadLocalMD(nixlBackendMD *input, nixlBackendMD *&output) override
    {
        output = input;
        return NIXL_SUCCESS;
    }

    nixl_status_t unloadMD(nixlBackendMD *) override { return NIXL_SUCCESS; }

    nixl_status_t prepXfer(const nixl_xfer_op_t &operation, const nixl_meta_dlist_t &local,
                           const nixl_meta_dlist_t &remote, const std::string &,
                           nixlBackendReqH *&handle, const nixl_opt_b_args_t *) const override
    {
        if (local.isEmpty() || local.descCount() != remote.descCount() ||
            local.getType() == FILE_SEG || remote.getType() != FILE_SEG)
            return NIXL_ERR_INVALID_PARAM;
        auto transfer = std::make_unique<Transfer>();
        for (int i = 0; i < local.descCount(); i++) {
            if (!fits(local[i], remote[i]))
                return NIXL_ERR_INVALID_PARAM;
            transfer->add(operation, local[i], remote[i]);
        }
        handle = transfer.release();
        return NIXL_SUCCESS;
    }

    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &,
                           const nixl_meta_dlist_t &, const std::string &, nixlBackendReqH *&handle,
                           const nixl_opt_b_args_t *) const override
    {
        return static_cast<Transfer *>(handle)->post();
    }

    nixl_status_t checkXfer(nixlBackendReqH *handle) const override
    {
        return static_cast<Transfer *>(handle)->check();
    }

    // Waits for a transfer in flight, for as long as the library's deadlines
    // allow.
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override
    {
        delete handle;
        return NIXL_SUCCESS;
    }

    // Returns size, mode and modification time of each named file, or nothing
    // if it does not exist.
    nixl_status_t queryMem(const nixl_reg_dlist_t &descs,
                           std::vector<nixl_query_resp_t> &resp) const override
    {
        resp.clear();
        for (const auto &desc : descs) {
            struct stat st;
            if (desc.metaInfo.empty() || stat(desc.metaInfo.c_str(), &st))
                resp.emplace_back(std::nullopt);
            else
                resp.emplace_back(nixl_b_params_t{{"size", std::to_string(st.st_size)},
                                                  {"mode", std::to_string(st.st_mode)},
                                                  {"mtime", std::to_string(st.st_mtime)}});
        }
        return NIXL_SUCCESS;
    }

  private:
    struct gpunvme *io_ = nullptr;
};

} // namespace

extern "C" NIXL_PLUGIN_EXPORT nixlBackendPlugin *nixl_plugin_init()
{
    return nixlBackendPluginCreator<Engine>::create(
        NIXL_PLUGIN_API_VERSION, "GPUNVME", GPUNVME_VERSION, {}, {DRAM_SEG, VRAM_SEG, FILE_SEG});
}

extern "C" NIXL_PLUGIN_EXPORT void nixl_plugin_fini()
{
}
