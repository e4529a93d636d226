/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks GPUs, NVIDIA's kernel modules and the CUDA driver. */
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blockdev/pci/pci_sysfs.h"
#include "client/cli/check/cli_check.h"
#include "client/lib/cuda_driver.h"
#include "gpunvme/gpunvme.h"

/*
 * Modules from 550.54 on cannot map registers of another device for the GPU on
 * newer kernels. These are the first fixed versions of each branch.
 */
#define DOORBELLS_LOST 550u
static const unsigned doorbells_back[][2] = {{570, 133}, {575, 51}, {580, 65}};

/*
 * Finds the version, such as 570.133.20, in a line "NVRM version: NVIDIA UNIX
 * Open Kernel Module for x86_64  570.133.20 ...".
 */
static bool find_version(const char *line, unsigned *major, unsigned *minor)
{
    for (const char *c = line; *c; c++) {
        char *end;
        if (!isdigit((unsigned char)*c) || (c != line && c[-1] != ' '))
            continue;
        *major = (unsigned)strtoul(c, &end, 10);
        if (*end == '.' && isdigit((unsigned char)end[1])) {
            *minor = (unsigned)strtoul(end + 1, NULL, 10);
            return true;
        }
    }
    return false;
}

static bool can_ring_doorbells(unsigned major, unsigned minor)
{
    const size_t n = sizeof(doorbells_back) / sizeof(doorbells_back[0]);

    for (size_t i = 0; i < n; i++) {
        if (major == doorbells_back[i][0])
            return minor >= doorbells_back[i][1];
    }
    return major < DOORBELLS_LOST || major > doorbells_back[n - 1][0];
}

/* Other users than root need an option of the module. */
static bool may_map_registers(const char *root)
{
    char path[PATH_MAX], line[512];
    bool may = geteuid() == 0;

    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/params", root);
    FILE *f = may ? NULL : fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        may |= strstr(line, "PeerMappingOverride=1") != NULL;
    if (f)
        fclose(f);
    return may;
}

static void check_doorbells(struct check *c, const char *root, bool version_can)
{
    if (!version_can)
        check_add(c, CHECK_WARN, "doorbells",
                  "take a driver from 570.133, 575.51 or 580.65 on (docs/hardware.md)",
                  "this driver may not map a drive's doorbells for the GPU: the CPU rings them");
    else if (!may_map_registers(root))
        check_add(
            c, CHECK_WARN, "doorbells",
            "options nvidia NVreg_RegistryDwords=\"PeerMappingOverride=1\" in /etc/modprobe.d",
            "only root may map a drive's doorbells for the GPU: the CPU rings them");
    else
        check_add(c, CHECK_OK, "doorbells", NULL,
                  "this driver can map a drive's doorbells for the GPU; the mount tries");
}

/*
 * From this version on, drivers are said to map dma-bufs of GPUs that have
 * memory of their own.
 */
#define MAPS_MAJOR 610u
#define MAPS_MINOR 43u

/*
 * Returns the known reason why drives do not reach GPU memory, or NULL. *advice
 * is the remedy.
 */
static const char *p2p_obstacle(const char *root, bool open, unsigned major, unsigned minor,
                                const char **advice)
{
    *advice = "take the open kernel modules";
    if (!open)
        return "closed kernel modules do not export GPU memory as a dma-buf";
    *advice = "take a driver from 610.43 on (docs/hardware.md)";
    if (major < MAPS_MAJOR || (major == MAPS_MAJOR && minor < MAPS_MINOR))
        return "this driver exports GPU memory as a dma-buf, but does not map it";
    *advice = "take a kernel with CONFIG_VFIO_CONTAINER and CONFIG_VFIO_IOMMU_TYPE1";
    if (pci_sysfs_exists("%s/sys/bus/pci/drivers/vfio-pci", root) &&
        !pci_sysfs_exists("%s/dev/vfio/vfio", root))
        return "VFIO's group interface is missing (/dev/vfio/vfio), and iommufd pins pages";
    return NULL;
}

static void check_p2p(struct check *c, const char *root, bool open, unsigned major, unsigned minor)
{
    const char *advice, *obstacle = p2p_obstacle(root, open, major, minor, &advice);

    if (obstacle)
        check_add(c, CHECK_WARN, "p2p", advice, "%s: data in GPU memory is staged (tier 1)",
                  obstacle);
    else
        check_add(c, CHECK_OK, "p2p", NULL,
                  "nothing known keeps a drive from GPU memory (tier 2); the mount tries");
}

static void check_modules(struct check *c, const char *root)
{
    char line[256];
    unsigned major = 0, minor = 0;

    if (pci_sysfs_text(line, sizeof(line), "%s/proc/driver/nvidia/version", root) != 0) {
        check_add(c, CHECK_WARN, "nvidia_modules",
                  "install NVIDIA's driver; without it the CPU runs the queues",
                  "NVIDIA's kernel modules are not loaded");
        return;
    }
    bool open = strstr(line, "Open Kernel Module") != NULL;
    bool known = find_version(line, &major, &minor);
    if (known)
        check_that(c, open, CHECK_WARN, "nvidia_modules",
                   "the open modules also export GPU memory as a dma-buf",
                   "%s kernel modules, version %u.%u", open ? "open" : "closed", major, minor);
    else
        check_add(c, CHECK_WARN, "nvidia_modules", NULL, "version not understood: %s", line);
    if (!known)
        return;
    check_doorbells(c, root, can_ring_doorbells(major, minor));
    check_p2p(c, root, open, major, minor);
}

/* Without Resizable BAR a GPU shows 256 MiB, and its driver needs part of them. */
#define P2P_WINDOW (1ull << 30)

static void check_gpu_device(struct check *c, const struct pci_device *gpu)
{
    bool driven = strcmp(gpu->driver, "nvidia") == 0;
    char node[32] = "";

    if (gpu->numa_node >= 0)
        snprintf(node, sizeof(node), ", NUMA node %d", gpu->numa_node);
    check_that(c, driven, CHECK_WARN, "gpu", "load NVIDIA's modules: modprobe nvidia",
               "%s, %s, window of %llu MiB%s", gpu->bdf, gpu->driver[0] ? gpu->driver : "no driver",
               (unsigned long long)(gpu->largest_bar >> 20), node);
    if (driven && gpu->largest_bar < P2P_WINDOW)
        check_add(c, CHECK_WARN, "p2p_window", "turn Resizable BAR on in the firmware",
                  "%s: the window is too small to show a drive much GPU memory", gpu->bdf);
}

void check_gpu(struct check *c, const char *root)
{
    struct pci_device *gpus;
    size_t n;

    (void)pci_list(root, pci_is_gpu, &gpus, &n);
    for (size_t i = 0; i < n; i++)
        check_gpu_device(c, &gpus[i]);
    free(gpus);
    if (n == 0 && !pci_sysfs_exists("%s/proc/driver/nvidia/version", root))
        check_add(c, CHECK_WARN, "gpu", "everything works on the CPU executor, for tests",
                  "no NVIDIA GPU on the PCI bus");
    else
        check_modules(c, root);
}

void check_cuda(struct check *c)
{
    struct cuda_driver *cuda;

    if (cuda_driver_open(&cuda) != 0) {
        check_add(c, CHECK_WARN, "cuda", "a mount takes the CPU executor, or -o gpu=require fails",
                  "%s", gpunvme_error());
        return;
    }
    int n = cuda_driver_devices(cuda);
    for (int i = 0; i < n; i++) {
        struct cuda_device_info info;
        if (cuda_driver_describe(cuda, i, &info) == 0)
            check_add(c, CHECK_OK, "cuda", NULL, "device %d: %s at %s, CUDA %d.%d", i, info.name,
                      info.bus_id, info.version / 1000, info.version % 1000 / 10);
        else
            check_add(c, CHECK_WARN, "cuda", NULL, "device %d: %s", i, gpunvme_error());
    }
    cuda_driver_close(cuda);
}
