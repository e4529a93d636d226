/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvme-sim: the protocol with a well-behaved client; start and end of the
 * process.
 */
#include <fcntl.h>
#include <nvme/types.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

extern "C" {
#include "sim/serve/serve.h"
}
#include "serve_rig.h"

namespace
{

constexpr uint32_t BAR0 = VFIO_PCI_BAR0_REGION_INDEX, CONFIG = VFIO_PCI_CONFIG_REGION_INDEX;
constexpr uint32_t MSIX = VFIO_PCI_BAR4_REGION_INDEX;

struct Serve : ::testing::Test {
    Server server;
};

struct ServeClient : Serve {
    Client c{server.path};
};

TEST_F(Serve, VersionIsNegotiated)
{
    Client c(server.path, false);
    Reply r = c.version(0, 7, "{\"capabilities\":{\"max_msg_fds\":2,\"max_data_xfer_size\":4096}}");
    ASSERT_EQ(r.error(), 0);
    EXPECT_EQ(r.as<struct vfio_user_version>().major, 0);
    EXPECT_EQ(r.as<struct vfio_user_version>().minor, 1);
    ASSERT_GT(r.data.size(), sizeof(struct vfio_user_version));
    EXPECT_EQ(r.data.back(), 0);
    std::string json(r.data.begin() + sizeof(struct vfio_user_version), r.data.end() - 1);
    for (const char *name : {"\"capabilities\"", "\"max_msg_fds\"", "\"max_data_xfer_size\"",
                             "\"max_dma_maps\"", "\"pgsizes\""})
        EXPECT_NE(json.find(name), std::string::npos) << json;
}

TEST_F(Serve, VersionNeedsNoCapabilities)
{
    for (const char *json : {"", "{}", "{\"capabilities\":{}}"}) {
        Client c(server.path, false);
        EXPECT_EQ(c.version(0, 0, json, *json != '\0').as<struct vfio_user_version>().minor, 0);
    }
}

TEST_F(ServeClient, DeviceIsAPciDeviceThatCanBeReset)
{
    struct vfio_user_device_info in = {sizeof(in), 0, 0, 0};
    auto info = c.call(VFIO_USER_DEVICE_GET_INFO, bytes_of(in)).as<struct vfio_user_device_info>();
    EXPECT_EQ(info.argsz, sizeof(info));
    EXPECT_EQ(info.flags, static_cast<uint32_t>(VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET));
    EXPECT_EQ(info.num_regions, static_cast<uint32_t>(VFIO_PCI_NUM_REGIONS));
    EXPECT_EQ(info.num_irqs, static_cast<uint32_t>(VFIO_PCI_NUM_IRQS));
}

TEST_F(ServeClient, DoorbellsOfBar0CanBeMapped)
{
    Reply r = c.region_info(BAR0);
    auto info = r.as<struct vfio_region_info>();
    ASSERT_EQ(info.argsz, 64u);
    EXPECT_EQ(info.size, 0x4000u);
    EXPECT_EQ(info.flags,
              static_cast<uint32_t>(VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE |
                                    VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS));
    auto cap = r.as<struct vfio_region_info_cap_sparse_mmap>(info.cap_offset);
    EXPECT_EQ(cap.header.id, VFIO_REGION_INFO_CAP_SPARSE_MMAP);
    EXPECT_EQ(cap.header.version, 1);
    EXPECT_EQ(cap.header.next, 0u);
    ASSERT_EQ(cap.nr_areas, 1u);
    auto area = r.as<struct vfio_region_sparse_mmap_area>(info.cap_offset + sizeof(cap));
    EXPECT_EQ(area.offset, 0x1000u);
    EXPECT_EQ(area.size, 0x1000u);
    struct stat st;
    ASSERT_EQ(fstat(r.fd, &st), 0);
    EXPECT_GE(static_cast<uint64_t>(st.st_size), info.offset + area.offset + area.size);
    EXPECT_EQ(ftruncate(r.fd, 0), -1);
    close(r.fd);
}

TEST_F(ServeClient, RegionInfoThatDoesNotFitReportsItsSize)
{
    Reply r = c.region_info(BAR0, sizeof(struct vfio_region_info));
    EXPECT_EQ(r.data.size(), sizeof(struct vfio_region_info));
    auto info = r.as<struct vfio_region_info>();
    EXPECT_EQ(info.argsz, 64u);
    EXPECT_EQ(info.cap_offset, 0u);
    EXPECT_FALSE(info.flags & VFIO_REGION_INFO_FLAG_CAPS) << "QEMU refuses it without an offset";
    EXPECT_TRUE(info.flags & VFIO_REGION_INFO_FLAG_MMAP);
    EXPECT_EQ(r.fd, -1);
}

TEST_F(ServeClient, OtherRegionsAreEmpty)
{
    for (uint32_t i = 1; i < VFIO_PCI_NUM_REGIONS; i++) {
        auto info = c.region_info(i).as<struct vfio_region_info>();
        EXPECT_EQ(info.index, i);
        EXPECT_EQ(info.size, i == CONFIG || i == MSIX ? 4096u : 0u);
        EXPECT_EQ(info.flags & VFIO_REGION_INFO_FLAG_MMAP, 0u);
    }
    EXPECT_EQ(c.region_info(VFIO_PCI_NUM_REGIONS).error(), EINVAL);
}

TEST_F(Serve, AClientThatAcceptsNoDescriptorsGetsNone)
{
    Client c(server.path, false);
    ASSERT_EQ(c.version(0, 1, "{\"capabilities\":{\"max_msg_fds\":0}}").error(), 0);
    Reply r = c.region_info(BAR0);
    EXPECT_EQ(r.as<struct vfio_region_info>().flags & VFIO_REGION_INFO_FLAG_MMAP, 0u);
    EXPECT_EQ(r.fd, -1);
}

uint32_t config32(Client &c, uint64_t at)
{
    return c.read(CONFIG, at, 4).as<uint32_t>(sizeof(struct vfio_user_region_access));
}

TEST_F(ServeClient, ConfigurationSpaceIsThatOfAnNvmeController)
{
    EXPECT_EQ(config32(c, 8) >> 8, 0x010802u);
    Reply all = c.read(CONFIG, 0, 4096);
    ASSERT_EQ(all.error(), 0);
    unsigned char *space = all.data.data() + sizeof(struct vfio_user_region_access);
    EXPECT_EQ(space[0xe], 0) << "type 0 header";
    std::vector<int> ids;
    for (unsigned at = space[0x34]; at && ids.size() < 9; at = space[at + 1])
        ids.push_back(space[at]);
    EXPECT_EQ(ids, (std::vector<int>{1, 0x10, 0x11})) << "power management, PCI Express, MSI-X";
    /* The bits of the BAR that stay zero encode its size. */
    ASSERT_EQ(c.write(CONFIG, 0x10, bytes_of(UINT64_MAX)), 0);
    EXPECT_EQ(config32(c, 0x10), 0xffffc004u);
    EXPECT_EQ(config32(c, 0x14), UINT32_MAX);
    /* Read-only fields keep their value. */
    ASSERT_EQ(c.write(CONFIG, 0, bytes_of(UINT64_MAX)), 0);
    EXPECT_EQ(config32(c, 0), 0x00101b36u);
    EXPECT_EQ(config32(c, 4) & 0xffff, 0x0546u);
    EXPECT_EQ(c.write(CONFIG, 4094, bytes_of(uint32_t(0))), EINVAL);
    EXPECT_EQ(c.read(CONFIG, UINT64_MAX, 2).error(), EINVAL);
}

TEST_F(ServeClient, RegistersAcceptFourAndEightBytes)
{
    uint64_t cap = c.read64(NVME_REG_CAP);
    EXPECT_EQ(NVME_CAP_MQES(cap), 255u);
    EXPECT_EQ(NVME_CAP_CQR(cap), 1u);
    EXPECT_EQ(c.read32(NVME_REG_CAP + 4), static_cast<uint32_t>(cap >> 32));
    EXPECT_EQ(c.read32(NVME_REG_VS), 0x20000u);
    for (uint32_t n : {0u, 1u, 2u, 3u, 5u, 12u, 16u, 65536u})
        EXPECT_EQ(c.read(BAR0, 0, n).error(), EINVAL) << n;
    EXPECT_EQ(c.read(BAR0, 2, 4).error(), EINVAL);
    EXPECT_EQ(c.read(BAR0, 0x4000 - 2, 4).error(), EINVAL);
    EXPECT_EQ(c.read(BAR0, UINT64_MAX - 3, 4).error(), EINVAL);
    EXPECT_EQ(c.write(BAR0, 0x14, Bytes(3)), EINVAL);
    EXPECT_EQ(c.write(BAR0, 0x1000, Bytes(8)), EINVAL) << "doorbells have four bytes";
    EXPECT_EQ(c.write32(0x3ffc, 1), EINVAL) << "behind the doorbells there is nothing";
    EXPECT_EQ(c.read32(0x3ffc), 0u);
    for (uint32_t region : {1u, 5u, 6u, 8u, 9u, UINT32_MAX})
        EXPECT_EQ(c.read(region, 0, 4).error(), EINVAL);
}

TEST_F(Serve, OtherInterruptsAreAcceptedAndNeverRaised)
{
    Client c(server.path);
    struct vfio_irq_info q = {sizeof(q), 0, VFIO_PCI_INTX_IRQ_INDEX, 0};
    auto intx = c.call(VFIO_USER_DEVICE_GET_IRQ_INFO, bytes_of(q)).as<struct vfio_irq_info>();
    EXPECT_EQ(intx.count, 1u);
    EXPECT_TRUE(intx.flags & VFIO_IRQ_INFO_EVENTFD);
    q.index = VFIO_PCI_MSIX_IRQ_INDEX;
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_GET_IRQ_INFO, bytes_of(q)).as<struct vfio_irq_info>().count,
              113u);
    q.index = VFIO_PCI_NUM_IRQS;
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_GET_IRQ_INFO, bytes_of(q)).error(), EINVAL);

    size_t before = server.holdings().fds;
    int event = eventfd(0, EFD_CLOEXEC);
    struct vfio_irq_set s = {sizeof(s), VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
                             VFIO_PCI_INTX_IRQ_INDEX, 0, 1};
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s), {event}).error(), 0);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s)).error(), 0);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s), {event, event}).error(), EINVAL);
    s.start = UINT32_MAX;
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s), {event}).error(), EINVAL);
    s = {sizeof(s), VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, 0, 0, 0};
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s)).error(), 0);
    s.flags = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_DATA_BOOL | VFIO_IRQ_SET_ACTION_MASK;
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s)).error(), EINVAL);
    s.flags = VFIO_IRQ_SET_DATA_BOOL | VFIO_IRQ_SET_ACTION_MASK;
    s.count = 1;
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_SET_IRQS, bytes_of(s)).error(), EINVAL) << "no data";
    close(event);
    EXPECT_EQ(server.holdings().fds, before);
}

/* Requests of other clients (QEMU) for features that this device lacks. */
TEST_F(ServeClient, UnsupportedRequestsAreRefused)
{
    for (uint16_t command : {0, 6, 11, 12, 14, 15, 16, 17, 18, 999, 65535})
        EXPECT_EQ(c.call(command, Bytes(64)).error(), ENOTSUP) << command;
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), 0);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET, Bytes(1)).error(), EINVAL);
}

TEST_F(ServeClient, NoReplySuppressesTheReply)
{
    uint32_t aqa = 0x000f000f;
    struct vfio_user_region_access a = {NVME_REG_AQA, BAR0, 4};
    Bytes payload = bytes_of(a), value = bytes_of(aqa);
    payload.insert(payload.end(), value.begin(), value.end());
    c.send(message(VFIO_USER_REGION_WRITE, payload, 1, VFIO_USER_NO_REPLY));
    c.send(message(999, payload, 2, VFIO_USER_NO_REPLY));
    EXPECT_EQ(c.read32(NVME_REG_AQA), aqa) << "the next reply is that of the read";
}

TEST_F(ServeClient, PipelinedCommandsAreAnsweredInOrder)
{
    struct vfio_user_region_access a = {NVME_REG_VS, BAR0, 4};
    Bytes all;
    for (uint16_t id = 0; id < 50; id++) {
        Bytes one = message(VFIO_USER_REGION_READ, bytes_of(a), id);
        all.insert(all.end(), one.begin(), one.end());
    }
    c.send(all);
    for (uint16_t id = 0; id < 50; id++)
        EXPECT_EQ(c.receive().head.id, id);
}

TEST_F(Serve, ASecondClientIsRefused)
{
    Client first(server.path);
    Client second(server.path, false);
    EXPECT_TRUE(second.receive().closed);
    EXPECT_EQ(first.read32(NVME_REG_VS), 0x20000u);
}

TEST(ServeWait, ASecondClientWaitsForItsTurn)
{
    Server server({"--second-client=wait"});
    auto first = std::make_unique<Client>(server.path);
    Client second(server.path, false);
    struct vfio_user_version v = {0, 1};
    second.send(message(VFIO_USER_VERSION, bytes_of(v)));
    char byte;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(recv(second.sock, &byte, 1, MSG_PEEK | MSG_DONTWAIT), -1) << "not answered";
    EXPECT_EQ(first->read32(NVME_REG_VS), 0x20000u);
    first.reset();
    EXPECT_EQ(second.receive().error(), 0);
    EXPECT_EQ(second.read32(NVME_REG_VS), 0x20000u);
}

TEST_F(ServeClient, EndsProperlyWithAClientConnected)
{
    EnabledDriver d(c);
    EXPECT_EQ(server.stop(SIGINT), 0);
    EXPECT_NE(access(server.path.c_str(), F_OK), 0) << "the socket is gone";
}

TEST_F(Serve, OnlyTheOwnerMayUseTheSocket)
{
    struct stat st;
    ASSERT_EQ(stat(server.path.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
}

/* Runs the program with a bad command line: exit status and stderr. */
std::pair<int, std::string> run(const std::string &args)
{
    std::string command = std::string(GPUNVME_SIM) + " " + args + " 2>&1", text;
    FILE *p = popen(command.c_str(), "r");
    for (int ch; (ch = fgetc(p)) != EOF;)
        text += static_cast<char>(ch);
    int status = pclose(p);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

TEST_F(Serve, ReplacesASocketWithoutAListener)
{
    auto [rc, text] = run(server.path);
    EXPECT_EQ(rc, 1);
    EXPECT_NE(text.find("Address already in use"), std::string::npos) << text;
    server.stop(SIGKILL);
    ASSERT_EQ(access(server.path.c_str(), F_OK), 0);
    auto [timeout_rc, said] = run("--strict " + server.path + " & sleep 0.3; kill $!; wait $!");
    EXPECT_NE(said.find("listening on " + server.path), std::string::npos) << said;
}

TEST(ServeCommandLine, ReportsItsErrors)
{
    const struct {
        const char *args, *words;
        int rc;
    } cases[] = {
        {"", "SOCKET", 2},
        {"--lba=100 s", "--lba", 2},
        {"--mdts=5000 s", "--mdts", 2},
        {"--size=12X s", "--size", 2},
        {"--max-depth=99999 s", "--max-depth", 2},
        {"--second-client=eat s", "--second-client", 2},
        {"--fault=explode s", "explode", 2},
        {"--fault=lose,op=nothing s", "op=nothing", 2},
        {"--image=/nonexistent/image s", "/nonexistent/image: cannot be opened: No such file", 1},
        {"/nonexistent/folder/socket", "cannot listen there: No such file", 1},
        {"/etc/passwd", "/etc/passwd: cannot listen there: File exists", 1},
    };
    for (const auto &c : cases) {
        auto [rc, text] = run(c.args);
        EXPECT_EQ(rc, c.rc) << c.args;
        EXPECT_NE(text.find(c.words), std::string::npos) << text;
    }
    auto [rc, text] = run(std::string(200, 'x'));
    EXPECT_EQ(rc, 1);
    EXPECT_NE(text.find("too long"), std::string::npos) << text;
}

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

// --- A controller: I/O, faults, resets, successive clients ---------------------------------------

struct Drive : ::testing::Test {
    /* Enables a controller, writes, reads back, disables it. */
    static void exercise(Client &c, bool mapped = true)
    {
        Driver d(c, mapped);
        ASSERT_EQ(c.bus_master(), 0);
        ASSERT_EQ(d.enable(), NVME_CSTS_READY);
        ASSERT_EQ(d.identify(), 0);
        EXPECT_EQ(memcmp(d.memory + Driver::DATA + 4, "SIM0001", 7), 0);
        d.create_io_queue();
        memset(d.memory + Driver::DATA, 0x5a, 4096);
        for (uint64_t lba = 0; lba < 40; lba++)
            ASSERT_EQ(d.rw(NVME_IO_WRITE, lba), 0);
        memset(d.memory + Driver::DATA, 0, 4096);
        ASSERT_EQ(d.rw(NVME_IO_READ, 39), 0);
        EXPECT_EQ(d.memory[Driver::DATA + 4095], 0x5a);
        EXPECT_EQ(d.disable(), 0u);
        EXPECT_EQ(c.unmap(Driver::IOVA, Driver::BYTES), 0);
    }
};

TEST_F(Drive, WorksThroughMappedDoorbells)
{
    Server server({"--strict"});
    Client c(server.path);
    exercise(c);
}

TEST_F(Drive, WorksWithMessagesOnly)
{
    Server server({"--strict", "--no-mmap"});
    Client c(server.path);
    Reply r = c.region_info(BAR0);
    EXPECT_EQ(r.as<struct vfio_region_info>().flags & VFIO_REGION_INFO_FLAG_MMAP, 0u);
    EXPECT_EQ(r.fd, -1);
    exercise(c, false);
}

TEST_F(Drive, OptionsReachTheController)
{
    Server server({"--strict", "--threads=2", "--latency-us=200", "--max-depth=16", "--no-sgl",
                   "--namespaces=3", "--size=1M", "--mdts=8K", "--ready-ms=20", "--reorder",
                   "--seed=3", "--no-volatile-cache", "--io-queues=2"});
    Client c(server.path);
    EXPECT_EQ(NVME_CAP_MQES(c.read64(NVME_REG_CAP)), 15u);
    exercise(c);
    Driver d(c);
    ASSERT_EQ(d.enable(), NVME_CSTS_READY);
    ASSERT_EQ(d.identify(), 0);
    unsigned char *id = d.memory + Driver::DATA;
    EXPECT_EQ(id[77], 1) << "MDTS: two pages";
    EXPECT_EQ(id[516], 3) << "namespaces";
    EXPECT_EQ(id[525], 0) << "no volatile cache";
    EXPECT_EQ(id[536], 0) << "no SGLs";
    d.disable();
}

TEST_F(Drive, ImageKeepsWrittenData)
{
    std::string image = ::testing::TempDir() + "gpunvme-serve-" + std::to_string(getpid());
    std::ofstream(image) << std::string(1 << 20, '\0');
    {
        Server server({"--strict", "--image=" + image, "--lba=4096"});
        Client c(server.path);
        exercise(c);
    }
    std::ifstream in(image, std::ios::binary);
    std::string data((std::istreambuf_iterator<char>(in)), {});
    ASSERT_EQ(data.size(), 1u << 20);
    EXPECT_EQ(data.substr(0, 40 * 4096), std::string(40 * 4096, 0x5a));
    unlink(image.c_str());
}

TEST_F(Drive, WithoutBusMasteringTheControllerFails)
{
    Server server({"--strict"});
    {
        Client c(server.path);
        Driver d(c);
        EXPECT_EQ(d.enable(), NVME_CSTS_FATAL);
        EXPECT_EQ(d.disable(), 0u) << "CC.EN to 0 heals";
        ASSERT_EQ(c.bus_master(), 0);
        EXPECT_EQ(d.enable(), NVME_CSTS_READY);
        EXPECT_EQ(d.identify(), 0);
        ASSERT_EQ(c.bus_master(false), 0);
        EXPECT_TRUE(c.read32(NVME_REG_CSTS) & NVME_CSTS_FATAL);
        EXPECT_TRUE(c.read32(NVME_REG_CC) & NVME_CC_ENABLE);
        EXPECT_EQ(d.disable(), 0u);
    }
    EXPECT_EQ(server.stop(), 3);
    EXPECT_NE(server.err().find("CC.EN set while bus mastering is off"), std::string::npos);
}

TEST_F(Drive, StrictReportsTheRecordedMistakes)
{
    Server server({"--strict"});
    {
        Client c(server.path);
        EnabledDriver d(c);
        d.doorbell(6, 1);
        for (int i = 0; i < 10; i++) { /* an idle thread sweeps all doorbells */
            EXPECT_EQ(d.identify(), 0);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
        d.disable();
    }
    EXPECT_EQ(server.stop(), 3);
    EXPECT_NE(server.err().find("DB_INVALID_QUEUE"), std::string::npos) << server.err();
}

TEST_F(Drive, DeviceResetDisablesAndKeepsTheMap)
{
    Server server({"--strict", "--fault=hang,op=identify,times=1"});
    Client c(server.path);
    EnabledDriver d(c);
    EXPECT_EQ(d.identify(50), 0xffff);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), 0);
    EXPECT_EQ(c.read32(NVME_REG_CC), 0u);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), 0u);
    ASSERT_EQ(d.enable(), NVME_CSTS_READY);
    EXPECT_EQ(d.identify(), 0);
    d.disable();
}

TEST_F(Drive, DeviceResetRecoversAStuckController)
{
    Server server({"--stuck"});
    Client c(server.path);
    Driver d(c);
    c.bus_master();
    c.write32(NVME_REG_CC, NVME_CC_ENABLE);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), 0u);
    c.write32(NVME_REG_CC, 0);
    ASSERT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), 0);
    EXPECT_EQ(d.enable(), NVME_CSTS_READY);
    /* The same by a signal. */
    kill(server.pid, SIGUSR1);
    c.read32(NVME_REG_VS); /* two messages: the signal is handled between them at the latest */
    c.write32(NVME_REG_CC, 0);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

TEST_F(Drive, AMissingResetIsReportedAndRefused)
{
    Server server({"--no-reset"});
    Client c(server.path);
    struct vfio_user_device_info in = {sizeof(in), 0, 0, 0};
    Reply r = c.call(VFIO_USER_DEVICE_GET_INFO, bytes_of(in));
    EXPECT_EQ(r.as<struct vfio_user_device_info>().flags & VFIO_DEVICE_FLAGS_RESET, 0u);
    EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), ENOTSUP);
    EnabledDriver d(c);
    uint16_t control = 0x8000; /* Initiate Function Level Reset */
    EXPECT_EQ(c.write(VFIO_PCI_CONFIG_REGION_INDEX, 0x58, bytes_of(control)), 0);
    EXPECT_EQ(c.read32(NVME_REG_CSTS), NVME_CSTS_READY);
}

TEST_F(Drive, AfterRemovalItReadsAllOnesUntilTheNextClient)
{
    Server server({"--strict"});
    {
        Client c(server.path);
        EnabledDriver d(c);
        kill(server.pid, SIGUSR2);
        c.read32(NVME_REG_VS);
        EXPECT_EQ(c.read32(NVME_REG_CSTS), UINT32_MAX);
        EXPECT_EQ(c.read64(NVME_REG_CAP), UINT64_MAX);
        d.doorbell(0, 1);
        EXPECT_EQ(c.call(VFIO_USER_DEVICE_RESET).error(), EIO);
        EXPECT_EQ(c.unmap(Driver::IOVA, Driver::BYTES), 0);
    }
    /*
     * A reset request to a removed drive is refused and is no mistake of the
     * protocol.
     */
    Client again(server.path);
    exercise(again);
}

TEST_F(Drive, FaultsAreInjected)
{
    Server server({"--strict", "--fault=status,op=read,lba=7+2,status=0x281,times=1",
                   "--fault=lose,op=write,lba=9,times=1"});
    Client c(server.path);
    EnabledDriver d(c);
    d.create_io_queue();
    EXPECT_EQ(d.rw(NVME_IO_READ, 6), 0);
    EXPECT_EQ(d.rw(NVME_IO_READ, 8), NVME_ERR_UNRECOVERED_READ);
    EXPECT_EQ(d.rw(NVME_IO_READ, 8), 0);
    EXPECT_EQ(d.rw(NVME_IO_WRITE, 9, 50), 0xffff);
    EXPECT_EQ(d.rw(NVME_IO_WRITE, 9), 0);
    d.disable();
}

/*
 * A client is killed with commands in flight: the next one gets a controller in
 * the state after power-on.
 */
TEST_F(Drive, AKilledClientLeavesNothing)
{
    Server server({"--strict", "--latency-us=20000"});
    Holdings before = {};
    {
        Client c(server.path);
        before = server.holdings();
    }
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        Client c(server.path);
        Driver d(c);
        c.bus_master();
        bool ok = d.enable() == NVME_CSTS_READY;
        d.create_io_queue();
        d.rw(NVME_IO_READ, 0, 0); /* in flight */
        char byte = ok;
        if (::write(ready[1], &byte, 1) == 1)
            pause();
        _exit(1);
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(ready[0]);
    close(ready[1]);
    Client c(server.path);
    EXPECT_EQ(c.read32(NVME_REG_CC), 0u);
    EXPECT_EQ(c.read32(NVME_REG_AQA), 0u);
    EXPECT_EQ(c.read32(NVME_REG_DOORBELLS), 0u);
    Holdings after = server.holdings();
    EXPECT_EQ(after.fds, before.fds);
    EXPECT_EQ(after.maps, before.maps);
    exercise(c);
}

/*
 * A former client can store to doorbells that it has mapped: they belong to no
 * queue.
 */
TEST_F(Drive, OldDoorbellsHaveNoEffect)
{
    Server server({"--strict"});
    auto first = std::make_unique<Client>(server.path);
    Driver d(*first);
    first.reset();
    Client c(server.path);
    for (unsigned i = 0; i < 32; i++)
        d.doorbells[i] = 5;
    exercise(c);
    EXPECT_EQ(c.read32(NVME_REG_DOORBELLS + 8), 0u);
}

} // namespace
