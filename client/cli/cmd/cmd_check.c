/* SPDX-License-Identifier: BSD-2-Clause */
/* The command `gpunvme check` prints obstacles to a mount. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/data_check.h"
#include "blockdev/nvme/nvme.h"
#include "client/cli/check/cli_check.h"
#include "client/cli/common/cli.h"
#include "client/cli/ctrlr/cli_ctrlr.h"
#include "client/lib/cuda_driver.h"
#include "client/lib/direct.h"

/* --- A drive ------------------------------------------------------------------------------- */

/* Checks Identify data, which the bus does not show. */
static void check_identity(struct check *c, struct cli_ctrlr *ctrlr, uint32_t nsid)
{
    uint8_t page[NVME_IDENTIFY_LEN] __attribute__((aligned(8))) = {0};
    int result = cli_identify_page(ctrlr, NVME_CNS_CTRL, 0, page);
    if (result) {
        check_add(c, CHECK_FAIL, "identify", NULL, "Identify Controller: %s",
                  cli_identify_error(result));
        return;
    }
    check_ctrlr_page(c, page);
    memset(page, 0, sizeof(page));
    result = cli_identify_page(ctrlr, NVME_CNS_NS, nsid, page);
    if (result)
        check_add(c, CHECK_FAIL, "namespace", "gpunvme identify shows which namespaces there are",
                  "namespace %u: %s", nsid, cli_identify_error(result));
    else
        check_ns_page(c, page, nsid, cli_ctrlr_command_set(ctrlr, nsid));
}

static void check_through_kernel(struct check *c, const struct cli_target *t)
{
    struct reason why = {0};
    struct cli_ctrlr ctrlr;
    struct cli_bar bar;

    if (cli_bar_open("", t, &(struct bd_open_opts){0}, &bar, &why) == 0) {
        check_cap(c, cli_bar_read(&bar, 0, 8));
        cli_bar_close(&bar);
    } else {
        check_add(c, CHECK_WARN, "cap", "bound to vfio-pci, its registers can always be read",
                  "registers not looked at: %s", why.text);
    }
    if (cli_ctrlr_open(t, &(struct bd_open_opts){0}, &ctrlr, &why) != 0) {
        check_add(c, CHECK_WARN, "identify", NULL, "not looked at: %s", why.text);
        return;
    }
    check_identity(c, &ctrlr, t->nsid ? t->nsid : 1);
    cli_ctrlr_close(&ctrlr);
}

static void ending_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGQUIT);
}

/*
 * Blocks the signals that would end the command until the scratch area is
 * restored and the result is printed. A pending signal ends the test early.
 */
static void hold_signals(bool hold, sigset_t *before)
{
    sigset_t set;

    if (hold)
        ending_signals(&set);
    else
        sigemptyset(&set);
    pthread_sigmask(SIG_BLOCK, &set, before);
}

static bool check_interrupted(void)
{
    sigset_t pending;

    sigpending(&pending);
    return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
           sigismember(&pending, SIGHUP) == 1 || sigismember(&pending, SIGQUIT) == 1;
}

static const char *data_remedy(const struct cli_options *options, int err)
{
    if (err == -EILSEQ || err == -EPROTO)
        return "report it to the maker of the controller";
    if (options->scratch && err == -EINVAL)
        return "name another --scratch";
    return options->scratch && err == -EROFS ? "leave --scratch out, reads alone are checked then"
                                             : NULL;
}

#define CHECK_DEPTH 64u /* queue entries of the test */

/*
 * Reads in every shape. With a scratch area, also writes in every shape to it, and restores it
 * afterwards. Returns what the functions of data_check.h return.
 */
static int move_data(struct nvme_ctrlr *driver, uint32_t nsid, const struct cli_options *options,
                     struct reason *why)
{
    uint64_t most = nvme_ctrlr_info(driver)->max_transfer;
    struct bd_dev *dev;
    int err = bd_open_namespace(driver, nsid, 1, CHECK_DEPTH, &dev, why);

    if (err)
        return err;
    err = options->scratch
              ? data_check_scratch(dev, options->scratch_start, most, check_interrupted, why)
              : data_check_device(dev, 0, most, true, why);
    bd_close(dev);
    return err;
}

/* Only reads without a scratch area: the drive may hold any data. */
static void cmd_check_check_data(struct check *c, struct nvme_ctrlr *driver, uint32_t nsid,
                                 const struct cli_options *options)
{
    struct reason why = {0};
    int err = move_data(driver, nsid, options, &why);

    if (err)
        check_add(c, CHECK_FAIL, "data", data_remedy(options, err), "%s",
                  why.text[0] ? why.text : strerror(-err));
    else if (options->scratch)
        check_add(c, CHECK_OK, "data", NULL,
                  "commands of every length read and write what those of single pages do");
    else
        check_add(c, CHECK_OK, "data",
                  why.text[0]
                      ? "--scratch=OFFSET writes pages that differ, and puts back what was there"
                      : NULL,
                  "commands of every length return what reads of single pages return%s%s",
                  why.text[0] ? ", but " : "", why.text);
}

#define NO_GPU "no GPU can be used, see cuda"

/* Maps the doorbells for a mount's default device, as the mount does. */
static void check_by_gpu(struct check *c, struct cuda_driver *cuda, const struct nvme_transport *t)
{
    void *doorbells = (void *)(uintptr_t)t->doorbells;
    struct cuda_device_info gpu;
    uint64_t mapped;
    bool known = cuda_driver_devices(cuda) > 0 && cuda_driver_describe(cuda, 0, &gpu) == 0;
    struct check_executor x = {
        .gpu = known ? gpu.name : NULL, .no_gpu = NO_GPU, .mmio = t->doorbells_are_mmio};

    if (known) {
        enum cuda_host_kind kind = x.mmio ? CUDA_HOST_REGISTERS : CUDA_HOST_MEMORY;
        x.rings = cuda_driver_map(cuda, 0, doorbells, t->doorbells_len, kind, &mapped) == 0;
    }
    if (x.rings)
        cuda_driver_unpin(cuda, 0, doorbells);
    check_tier(c, &x);
}

static void check_executor(struct check *c, const struct nvme_transport *t, bool noiommu)
{
    struct check_executor none = {
        .noiommu = noiommu,
        .no_gpu = direct_has_kernels() ? NO_GPU : "these programs were built without CUDA"};
    struct cuda_driver *cuda;

    if (noiommu || !direct_has_kernels() || cuda_driver_open(&cuda) != 0) {
        check_tier(c, &none);
        return;
    }
    check_by_gpu(c, cuda, t);
    cuda_driver_close(cuda);
}

/* An open through VFIO fails while the drive has another user. */
static void check_through_driver(struct check *c, const struct cli_target *t,
                                 const struct cli_options *options)
{
    struct reason why = {0};
    struct cli_ctrlr ctrlr;
    struct nvme_dma_budget regions;
    const struct bd_open_opts opts = cli_open_opts(options);
    int err = cli_ctrlr_open(t, &opts, &ctrlr, &why);

    if (err) {
        check_add(c, err == -EBUSY ? CHECK_WARN : CHECK_FAIL, "controller",
                  err == -EBUSY ? "check it when its user has ended"
                                : "mend what is said there, then check again: nothing was tested",
                  "not looked at: %s", why.text);
        return;
    }
    struct nvme_transport *transport = nvme_ctrlr_transport(ctrlr.driver);
    check_cap(c, transport->ops->read(transport, 0, 8));
    check_executor(c, transport, options->noiommu && t->driver == CLI_DRIVER_VFIO);
    nvme_dma_regions(ctrlr.driver, &regions);
    check_regions(c, regions.limit);
    check_quirks(c, nvme_ctrlr_info(ctrlr.driver)->quirks);
    check_identity(c, &ctrlr, t->nsid ? t->nsid : 1);
    if (options->data)
        cmd_check_check_data(c, ctrlr.driver, t->nsid ? t->nsid : 1, options);
    cli_ctrlr_close(&ctrlr);
}

/* Uses the current driver, even if the device string names another. */
static void check_controller(struct check *c, const struct cli_target *named,
                             const struct cli_options *options)
{
    struct reason why;
    struct cli_target now = *named;

    if (named->bdf[0] && cli_target_find("", named->bdf, &now, &why) != 0)
        return;
    now.nsid = named->nsid;
    if (options->data && (now.driver == CLI_DRIVER_KERNEL || now.driver == CLI_DRIVER_NONE))
        check_add(c, CHECK_WARN, "data", "bind it to vfio-pci: gpunvme bind",
                  "not looked at: only drives of VFIO and vfio-user are read");
    if (now.driver == CLI_DRIVER_KERNEL || now.driver == CLI_DRIVER_NONE)
        check_tier(c, &(struct check_executor){.kernel = true});
    if (now.driver == CLI_DRIVER_KERNEL)
        check_through_kernel(c, &now);
    else if (now.driver != CLI_DRIVER_NONE)
        check_through_driver(c, &now, options);
}

static void check_drive(struct check *c, const struct cli_target *t,
                        const struct cli_options *options)
{
    struct pci_device pci = {.class_code = PCI_CLASS_NVME};

    if (t->bdf[0] && pci_read("", t->bdf, &pci) != 0) {
        check_add(c, CHECK_FAIL, "pci", "gpunvme list shows the drives", "no PCI device at %s",
                  t->bdf);
        return;
    }
    if (t->bdf[0])
        check_pci(c, "", &pci);
    if (pci_is_nvme(&pci))
        check_controller(c, t, options);
}

/* Reports every drive on the bus in one line. */
static void check_drives(struct check *c)
{
    struct pci_device *all;
    size_t n;
    int err = pci_list("", pci_is_nvme, &all, &n);

    if (err || n == 0)
        check_add(c, CHECK_WARN, "drives", "an image file or a vfio-user server can stand for one",
                  err ? "drives cannot be listed: %s" : "no NVMe drive on the PCI bus%s",
                  err ? strerror(-err) : "");
    for (size_t i = 0; !err && i < n; i++)
        check_add(c, CHECK_OK, "drive", NULL, "%s, %s%s%s (gpunvme check %s)", all[i].bdf,
                  all[i].driver[0] ? "driven by " : "no driver", all[i].driver,
                  all[i].kernel_name[0] ? " of the kernel" : "", all[i].bdf);
    free(all);
}

/* Prints and frees the findings. Returns the exit status. */
static int check_report(struct check *c, const struct cli_options *options)
{
    int failed = c->worst == CHECK_FAIL;
    struct cli_out out;

    cli_out_begin(&out, options->json, stdout);
    check_print(c, &out);
    cli_out_end(&out);
    check_free(c);
    return failed;
}

static int cmd_check_check(const struct cli_options *options, const char *object)
{
    struct reason why = {0};
    struct check c = {0};
    struct cli_target target;
    sigset_t before;

    if (object && cli_target_find("", object, &target, &why) != 0)
        return cli_error(object, "%s", why.text);
    check_machine(&c, "");
    check_gpu(&c, "");
    check_cuda(&c);
    if (!object) {
        check_drives(&c);
        return check_report(&c, options);
    }
    hold_signals(options->scratch, &before);
    check_drive(&c, &target, options);
    int status = check_report(&c, options);
    fflush(stdout);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static int report_cufile(const struct cli_options *options, const char *path)
{
    struct check c = {0};

    check_cufile(&c, "", path);
    return check_report(&c, options);
}

int cli_check(const struct cli_options *options, char **operands, int n)
{
    const char *object = n ? operands[0] : NULL;

    if ((options->scratch && !options->data) || (options->data && options->cufile)) {
        cli_error("check", options->cufile ? "--cufile and --data are checks of their own"
                                           : "--scratch belongs to --data, see gpunvme --help");
        return 2;
    }
    if (options->data && !object) {
        cli_error("check", "--data needs a device, see gpunvme --help");
        return 2;
    }
    return options->cufile ? report_cufile(options, object) : cmd_check_check(options, object);
}
