/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/cuda/gq_rig.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <unistd.h>

#include "tests/e2e/content.h"

Bytes random_bytes(size_t n, uint64_t seed)
{
    Bytes out(n);

    content_fill(seed, 0, out.data(), n);
    return out;
}

Memory::Memory(gq_executor_kind kind, size_t len)
{
    if (!test_mem_alloc(kind == GQ_EXECUTOR_CUDA, len, &mem_))
        throw std::bad_alloc();
    fill(0xa5);
}

Memory::~Memory()
{
    test_mem_free(&mem_);
}

gq_mem Memory::part(size_t offset, size_t len) const
{
    gq_mem m = {};

    m.kind = mem_.is_cuda ? GQ_MEM_CUDA : GQ_MEM_HOST;
    m.addr = (char *)mem_.addr + offset;
    m.fd = -1;
    m.len = len;
    return m;
}

void Memory::fill(uint8_t value)
{
    if (mem_.is_cuda)
        write(0, Bytes(mem_.len, value));
    else
        memset(mem_.addr, value, mem_.len);
}

void Memory::write(size_t offset, const Bytes &data)
{
    test_mem_write(&mem_, offset, data.data(), data.size());
}

Bytes Memory::read(size_t offset, size_t len) const
{
    Bytes out(len);

    test_mem_read(&mem_, offset, out.data(), len);
    return out;
}

bool Memory::holds(size_t offset, const uint8_t *want, size_t len) const
{
    const char *here = static_cast<const char *>(mem_.addr) + offset;

    return memcmp(mem_.is_cuda ? static_cast<const void *>(read(offset, len).data()) : here, want,
                  len) == 0;
}

bool Memory::holds(size_t offset, const Bytes &want) const
{
    return holds(offset, want.data(), want.size());
}

/* Made once for each size, because pages that a sanitizer's allocator maps are expensive. */
static const Bytes &media_of(size_t bytes)
{
    static std::map<size_t, Bytes> made;
    auto found = made.find(bytes);

    return found != made.end() ? found->second
                               : made.emplace(bytes, random_bytes(bytes, 1)).first->second;
}

static std::string write_image(const Bytes &media)
{
    const char *dir = getenv("TMPDIR");
    std::string path = std::string(dir ? dir : "/tmp") + "/gq-test-XXXXXX";
    int fd = mkstemp(path.data());

    EXPECT_GE(fd, 0);
    EXPECT_EQ(write(fd, media.data(), media.size()), (ssize_t)media.size());
    ::close(fd);
    return path;
}

Rig::Rig(const Executor &executor, uint32_t lba_size, size_t bytes)
    : x(executor), media(media_of(bytes))
{
    cfg.namespaces = 1;
    cfg.no_prp_chains = true;
    cfg.no_device_memory = x.staged;
    cfg.doorbell_stride = SIM_STRIDE_LINES;
    cfg.ns[0].lba_size = lba_size;
    opts.executor = x.kind;
    opts.cpu_lanes = x.lanes;
    opts.doorbells = x.doorbells;
    opts.cpu_device_memory = x.staged;
    opts.queues = 4;
    opts.depth = 32;
    opts.max_buffers = 16;
}

Rig::~Rig()
{
    close();
}

/* Without its parts a test cannot go on. */
static void must(int err, const char *what)
{
    if (err)
        throw std::runtime_error(std::string(what) + ": " + strerror(-err));
}

/* As VFIO: device memory cannot be mapped. The simulator's table, but for that. */
static const nvme_transport_ops *without_peers(const nvme_transport_ops *ops)
{
    static nvme_transport_ops table;
    static int (*map)(nvme_transport *, const nvme_mem *, uint64_t *);

    map = ops->map;
    table = *ops;
    table.map = [](nvme_transport *t, const nvme_mem *mem, uint64_t *iova) {
        return mem->addr ? map(t, mem, iova) : -EFAULT;
    };
    return &table;
}

void Rig::open()
{
    nvme_transport *t = nullptr;
    struct reason why = {};

    image_ = write_image(media);
    if (lends)
        cfg.io_queues = 1;
    cfg.ns[0].path = image_.c_str();
    int err = sim_create(&cfg, &s, &t);
    unlink(image_.c_str()); /* the simulator has it open; nothing is left if the test dies */
    must(err, "sim_create");
    gpu = sim_cuda_dma_new();
    must(sim_set_dma_engine(s, dma ? dma : sim_cuda_dma_table(gpu)), "sim_set_dma_engine");
    if (no_peer)
        t->ops = without_peers(t->ops);
    if (with)
        t->ops = with(t->ops);
    t->doorbells_are_mmio = is_drive;
    t->copies_device_memory = !is_drive;
    driver.why = &why;
    err = nvme_ctrlr_open(t, &driver, &c);
    if (err)
        t->ops->close(t);
    must(err, why.text);
    if (lends)
        must(bd_nvme_open(c, 1, 1, 16, &device), "bd_nvme_open");
    opts.lender = device;
    must(gq_engine_open(c, 1, &opts, &e), "gq_engine_open");
}

void Rig::close()
{
    if (e)
        gq_engine_close(e);
    if (device)
        bd_close(device);
    if (c)
        nvme_ctrlr_close(c);
    if (s) {
        char text[1024];
        sim_violations_text(s, text, sizeof(text));
        EXPECT_EQ(sim_violations(s), 0u) << text;
        sim_free(s);
        sim_cuda_dma_free(gpu);
    }
    e = nullptr;
    device = nullptr;
    c = nullptr;
    s = nullptr;
}

gq_buffer *Rig::add(const Memory &m, size_t offset, size_t len)
{
    gq_mem mem = m.part(offset, len);
    gq_buffer *b = nullptr;

    EXPECT_EQ(gq_buffer_register(e, &mem, &b), 0);
    EXPECT_TRUE(!b || gq_buffer_is_reachable(b) != x.staged);
    return b;
}

int Rig::move(gq_op op, gq_buffer *b, uint64_t buffer_offset, const std::vector<Extent> &extents,
              uint64_t skip, uint64_t len)
{
    std::vector<gq_file_extent> map;
    gq_request r = req;

    r.end = 0;
    for (const Extent &x : extents) {
        map.push_back({r.end, x.lba});
        r.end += x.bytes;
    }
    r.op = op;
    r.buffer = b;
    r.buffer_offset = buffer_offset;
    r.extents = map.data();
    r.n_extents = map.size();
    r.file_offset = skip;
    r.len = len;
    return gq_transfer(e, &r, &result);
}

Bytes Rig::peek(uint64_t offset, size_t len)
{
    Bytes out(len);

    EXPECT_EQ(sim_peek(s, 1, offset, out.data(), len), 0);
    return out;
}

void Rig::fault(sim_fault f)
{
    ASSERT_EQ(sim_add_fault(s, &f), 0);
}

gq_stats Rig::stats()
{
    gq_stats st;

    gq_engine_stats(e, &st);
    return st;
}

uint64_t Rig::sent()
{
    sim_stats st;

    sim_get_stats(s, &st);
    return st.reads;
}

void GqTest::SetUp()
{
    struct reason why = {};

    if (GetParam().kind == GQ_EXECUTOR_CUDA && gq_probe(0, &why) != 0)
        GTEST_SKIP() << "no CUDA device: " << why.text;
}
