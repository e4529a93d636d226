/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A machine's sysfs, proc and dev in a temporary folder, and a thread that plays the kernel in it.
 */
#ifndef TESTS_BLOCKDEV_PCI_PCI_TREE_H
#define TESTS_BLOCKDEV_PCI_PCI_TREE_H

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

constexpr const char *BDF = "0000:c1:00.0"; // of the device that the tests use

class PciTree
{
  public:
    PciTree()
    {
        std::string path = std::filesystem::temp_directory_path() / "pci-tree-XXXXXX";
        top = mkdtemp(path.data());
        text("proc/self/mountinfo", "22 1 0:21 / /proc rw,relatime - proc proc rw\n");
        text("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
        dir("sys/bus/pci/devices");
        dir("dev");
    }

    ~PciTree() { std::filesystem::remove_all(top); }

    const char *root() const { return top.c_str(); }

    void dir(const std::string &path) const
    {
        std::filesystem::create_directories(top + "/" + path);
    }

    void text(const std::string &path, const std::string &content) const
    {
        std::filesystem::create_directories(std::filesystem::path(top + "/" + path).parent_path());
        std::ofstream(top + "/" + path, std::ios::binary) << content;
    }

    void append(const std::string &path, const std::string &content) const
    {
        std::ofstream(top + "/" + path, std::ios::app) << content;
    }

    /* A symbolic link whose target is a path of the tree. */
    void link(const std::string &path, const std::string &target) const
    {
        std::filesystem::create_directories(std::filesystem::path(top + "/" + path).parent_path());
        std::filesystem::remove(top + "/" + path);
        std::filesystem::create_symlink(top + "/" + target, top + "/" + path);
    }

    void remove(const std::string &path) const { std::filesystem::remove_all(top + "/" + path); }

    static std::string device(const std::string &bdf) { return "sys/bus/pci/devices/" + bdf; }

    void pci(const std::string &bdf, const std::string &class_code = "0x010802") const
    {
        text(device(bdf) + "/vendor", "0x144d\n");
        text(device(bdf) + "/device", "0xa80c\n");
        text(device(bdf) + "/subsystem_vendor", "0x144d\n");
        text(device(bdf) + "/subsystem_device", "0xa801\n");
        text(device(bdf) + "/class", class_code + "\n");
        text(device(bdf) + "/resource",
             "0x00000000fea00000 0x00000000fea03fff 0x0000000000140204\n"
             "0x0000000000000000 0x0000000000000000 0x0000000000000000\n");
        text(device(bdf) + "/driver_override", "(null)\n");
    }

    void driver(const std::string &bdf, const std::string &name) const
    {
        dir("sys/bus/pci/drivers/" + name);
        link(device(bdf) + "/driver", "sys/bus/pci/drivers/" + name);
    }

    void group(const std::string &bdf, int number) const
    {
        std::string folder = "sys/kernel/iommu_groups/" + std::to_string(number);
        text(folder + "/type", "DMA-FQ\n");
        link(device(bdf) + "/iommu_group", folder);
        link(folder + "/devices/" + bdf, device(bdf));
    }

    /* The kernel's driver has the device, as controller nvme0 with one disk of the given name. */
    void disk(const std::string &bdf, const std::string &name, const std::string &number) const
    {
        driver(bdf, "nvme");
        text(device(bdf) + "/nvme/nvme0/state", "live\n");
        dir(device(bdf) + "/nvme/nvme0/" + name);
        block(name, number);
    }

    void block(const std::string &name, const std::string &number) const
    {
        text("sys/class/block/" + name + "/dev", number + "\n");
        dir("sys/class/block/" + name + "/holders");
        text("dev/" + name, std::string(1 << 20, 0));
    }

    void partition(const std::string &disk, const std::string &name,
                   const std::string &number) const
    {
        block(name, number);
        text("sys/class/block/" + disk + "/" + name + "/partition", "1\n");
    }

    void mount(const std::string &number, const std::string &point,
               const std::string &source = "/dev/root") const
    {
        append("proc/self/mountinfo",
               "36 22 " + number + " / " + point + " rw shared:1 - ext4 " + source + " rw\n");
    }

    std::string top;
};

/*
 * Plays the kernel for one device: text written to unbind, drivers_probe and driver_override
 * changes the device's driver. `refuses` names a driver that fails to probe.
 */
class FakeKernel
{
  public:
    FakeKernel(const PciTree &t, const std::string &device_bdf, const std::string &usual_driver,
               const std::string &refusing_driver = "")
        : tree(t), bdf(device_bdf), usual(usual_driver), refuses(refusing_driver)
    {
        unbind_fd = fifo("sys/bus/pci/drivers/" + usual + "/unbind");
        vfio_unbind_fd = fifo("sys/bus/pci/drivers/vfio-pci/unbind");
        probe_fd = fifo("sys/bus/pci/drivers_probe");
        thread = std::thread([this] { run(); });
    }

    ~FakeKernel()
    {
        stop = true;
        thread.join();
        close(unbind_fd);
        close(vfio_unbind_fd);
        close(probe_fd);
    }

    std::atomic<int> unbinds{0}, probes{0};
    std::atomic<int> makes_group{-1}; /* IOMMU group that the device gets when it is probed */

  private:
    int fifo(const std::string &path) const
    {
        tree.remove(path);
        tree.dir(std::filesystem::path(path).parent_path());
        mkfifo((tree.top + "/" + path).c_str(), 0600);
        return open((tree.top + "/" + path).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    }

    bool written(int fd) const
    {
        char text[64] = "";

        return read(fd, text, sizeof(text) - 1) > 0 && bdf == text;
    }

    void probe() const
    {
        std::ifstream file(tree.top + "/" + PciTree::device(bdf) + "/driver_override");
        std::string chosen;
        std::getline(file, chosen);
        if (chosen.empty() || chosen == "(null)")
            chosen = usual;
        if (makes_group >= 0)
            tree.group(bdf, makes_group);
        if (chosen != refuses)
            tree.driver(bdf, chosen);
    }

    void run()
    {
        struct pollfd fds[] = {
            {unbind_fd, POLLIN, 0}, {vfio_unbind_fd, POLLIN, 0}, {probe_fd, POLLIN, 0}};

        while (!stop) {
            poll(fds, 3, 10);
            if (written(unbind_fd) || written(vfio_unbind_fd)) {
                tree.remove(PciTree::device(bdf) + "/driver");
                unbinds++;
            }
            if (written(probe_fd)) {
                probe();
                probes++;
            }
        }
    }

    const PciTree &tree;
    std::string bdf, usual, refuses;
    int unbind_fd, vfio_unbind_fd, probe_fd;
    std::atomic<bool> stop{false};
    std::thread thread;
};

#endif
