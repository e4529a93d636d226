/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finds out which driver has a PCI device, and hands it from one driver to
 * another.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "blockdev/pci/pci.h"
#include "blockdev/pci/pci_sysfs.h"
#include "support/clock.h"
#include "support/wait.h"

#define VFIO_DRIVER "vfio-pci"
#define IDLE_DRIVER "pci-stub" /* holds a device and does nothing with it, so VFIO allows it */
#define BIND_MS     1000       /* the kernel usually binds before write() returns */
#define POLL_MS     5

#define NO_IOMMU                                                               \
    "no IOMMU guards it: switch VT-d or AMD-Vi on in the BIOS, and boot with " \
    "intel_iommu=on on Intel"

#define DEVICES        "%s/sys/bus/pci/devices/"
#define NOIOMMU_SWITCH "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode"

/* --- Permission for VFIO --------------------------------------------------------------------- */

/*
 * Returns true if the neighbour's driver never touches the device's memory:
 * none, vfio-pci, pci-stub, or a bridge's.
 */
static bool leaves_alone(const char *root, const struct pci_device *mate)
{
    return !mate->driver[0] || strcmp(mate->driver, VFIO_DRIVER) == 0 ||
           strcmp(mate->driver, IDLE_DRIVER) == 0 || mate->class_code >> 8 == 0x0604 ||
           pci_sysfs_exists(DEVICES "%s/vfio-dev", root, mate->bdf);
}

/*
 * An IOMMU group is given away as a whole, because its members can reach each
 * other's memory.
 */
static int bind_check_group(const char *root, const struct pci_device *p, struct reason *why)
{
    struct sysfs_names names;
    struct pci_device mate;
    int rc = pci_sysfs_names(&names, "%s/sys/kernel/iommu_groups/%d/devices", root, p->iommu_group);

    if (rc)
        return reason_set(why, rc, "IOMMU group %d cannot be read: %s", p->iommu_group,
                          strerror(-rc));
    for (int i = 0; !rc && i < names.n; i++) {
        if (pci_read(root, names.entries[i]->d_name, &mate) || strcmp(mate.bdf, p->bdf) == 0 ||
            leaves_alone(root, &mate))
            continue;
        rc = reason_set(why, -EXDEV,
                        "shares IOMMU group %d with %s, which %s drives: bind that to " VFIO_DRIVER
                        " too, or use a slot with a group of its own",
                        p->iommu_group, mate.bdf, mate.driver);
    }
    pci_sysfs_names_free(&names);
    return rc;
}

static int bind_check_driver(const char *root, const struct pci_device *p, struct reason *why)
{
    if (strcmp(p->driver, VFIO_DRIVER) == 0 ||
        (p->driver[0] && pci_sysfs_exists(DEVICES "%s/vfio-dev", root, p->bdf)))
        return 0;
    if (!pci_sysfs_exists("%s/sys/bus/pci/drivers/" VFIO_DRIVER, root))
        return reason_set(why, -ENOTSUP, "VFIO is not loaded: run modprobe " VFIO_DRIVER);
    if (p->driver[0])
        return reason_set(why, -EBUSY, "%s drives it: hand it over with gpunvme bind %s", p->driver,
                          p->bdf);
    return reason_set(why, -EBUSY, "no driver has it: hand it to VFIO with gpunvme bind %s",
                      p->bdf);
}

/*
 * Without an IOMMU vfio-pci takes nothing unless the administrator has switched
 * this mode on.
 */
static bool noiommu_is_on(const char *root)
{
    char unsafe[SYSFS_NAME];

    pci_sysfs_text(unsafe, sizeof(unsafe), "%s" NOIOMMU_SWITCH, root);
    return unsafe[0] == 'Y';
}

static int check_noiommu_mode(const char *root, const char *bdf, struct reason *why)
{
    if (noiommu_is_on(root) || !pci_sysfs_exists("%s/sys/bus/pci/drivers/" VFIO_DRIVER, root))
        return 0;
    if (!pci_sysfs_exists("%s" NOIOMMU_SWITCH, root))
        return reason_set(why, -ENOTSUP,
                          "no IOMMU guards it, and this kernel has no noiommu mode of VFIO "
                          "(CONFIG_VFIO_NOIOMMU)");
    return reason_set(
        why, -ENOTSUP,
        "VFIO's noiommu mode is off: echo 1 > " NOIOMMU_SWITCH ", then gpunvme bind %s", bdf);
}

int pci_check_noiommu(const char *root, const struct pci_device *p, struct reason *why)
{
    if (p->iommu_group >= 0)
        return reason_set(why, -EINVAL, "an IOMMU guards it (group %d): leave noiommu out",
                          p->iommu_group);
    int rc = check_noiommu_mode(root, p->bdf, why);
    return rc ? rc : bind_check_driver(root, p, why);
}

int pci_check_vfio(const char *root, const struct pci_device *p, struct reason *why)
{
    if (p->iommu_group < 0)
        return reason_set(why, -ENOTSUP, NO_IOMMU);
    int rc = bind_check_driver(root, p, why);
    return rc ? rc : bind_check_group(root, p, why);
}

/* --- Handing over ---------------------------------------------------------------------------- */

static int explain_write(int rc, const char *what, struct reason *why)
{
    if (rc == -EACCES || rc == -EPERM || rc == -EROFS)
        return reason_set(why, rc == -EROFS ? rc : -EACCES, "cannot %s: needs root%s", what,
                          rc == -EROFS ? " outside a container" : "");
    return rc ? reason_set(why, rc, "cannot %s: %s", what, strerror(-rc)) : 0;
}

static int wait_for_driver(const char *root, const char *bdf)
{
    uint64_t deadline = deadline_after_ms(BIND_MS);
    char now[SYSFS_NAME];

    for (;;) {
        pci_sysfs_link(now, sizeof(now), DEVICES "%s/driver", root, bdf);
        if (strcmp(now, VFIO_DRIVER) == 0)
            return 0;
        if (now_ns() > deadline)
            return -ETIMEDOUT;
        wait_ms(POLL_MS);
    }
}

/*
 * Returns true if a program has the device open through VFIO. Unbinding would
 * then block until it closes the device. A group can be opened only once, and
 * not while its device is open, so opening the group tests for that.
 */
static bool vfio_in_use(const char *root, const struct pci_device *p)
{
    char path[PATH_MAX], group[SYSFS_NAME];
    int fd;

    if (strcmp(p->driver, VFIO_DRIVER) != 0)
        return false;
    pci_sysfs_link(group, sizeof(group), DEVICES "%s/iommu_group", root, p->bdf);
    snprintf(path, sizeof(path), "%s/dev/vfio/%s%s", root, p->iommu_group < 0 ? "noiommu-" : "",
             group);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == EBUSY;
    close(fd);
    return false;
}

static int check_release(const char *root, const struct pci_device *p, struct reason *why)
{
    return vfio_in_use(root, p)
               ? reason_set(why, -EBUSY, "a program uses it through VFIO: end that first")
               : 0;
}

/* Unbinds the device from its current driver. */
static int bind_release(const char *root, const struct pci_device *p, struct reason *why)
{
    int rc = check_release(root, p, why);

    if (rc || !p->driver[0])
        return rc;
    rc = pci_sysfs_write(p->bdf, DEVICES "%s/driver/unbind", root, p->bdf);
    if (rc == -ENODEV || rc == -ENOENT) /* another process was faster */
        rc = 0;
    return explain_write(rc, "take it from its driver", why);
}

static int set_override(const char *root, const char *bdf, const char *driver)
{
    return pci_sysfs_write(driver, DEVICES "%s/driver_override", root, bdf);
}

static int bind_probe(const char *root, const char *bdf)
{
    return pci_sysfs_write(bdf, "%s/sys/bus/pci/drivers_probe", root);
}

static int bind_hand_over(const char *root, const struct pci_device *p, struct reason *why)
{
    int rc = bind_release(root, p, why);

    if (rc)
        return rc;
    rc = bind_probe(root, p->bdf);
    if (rc == -EACCES || rc == -EPERM || rc == -EROFS)
        return explain_write(rc, "give it to a driver", why);
    if (wait_for_driver(root, p->bdf) == 0)
        return 0;
    return reason_set(why, rc ? rc : -ETIMEDOUT,
                      VFIO_DRIVER " did not take it: dmesg may say why. It was given back to the "
                                  "kernel");
}

/*
 * Returns true if the device may get an IOMMU group from its first driver:
 * virtio-iommu and Arm's SMMU make it then. A device that had a driver has got
 * one, or never will.
 */
static bool group_may_come(const char *root, const struct pci_device *p)
{
    struct sysfs_names iommus;
    bool any;

    if (p->driver[0] || pci_sysfs_names(&iommus, "%s/sys/class/iommu", root))
        return false;
    any = iommus.n > 0;
    pci_sysfs_names_free(&iommus);
    return any;
}

/* Replaces the reason of a refusal if it was that no IOMMU guards the device. */
static int explain_refusal(const char *root, const char *bdf, int rc, struct reason *why)
{
    struct pci_device p;

    if (pci_read(root, bdf, &p) || p.iommu_group >= 0 || noiommu_is_on(root))
        return rc;
    return reason_set(why, -ENOTSUP, NO_IOMMU);
}

static int check_bind(const char *root, const struct pci_device *p, struct reason *why)
{
    if (!pci_sysfs_exists("%s/sys/bus/pci/drivers/" VFIO_DRIVER, root))
        return reason_set(why, -ENOENT,
                          "the driver " VFIO_DRIVER " is not loaded: run modprobe " VFIO_DRIVER);
    if (p->iommu_group < 0 && !noiommu_is_on(root) && !group_may_come(root, p))
        return reason_set(why, -ENOTSUP, NO_IOMMU);
    return check_release(root, p, why);
}

int pci_bind(const char *root, const struct pci_device *p, bool dry, struct reason *why)
{
    int rc = strcmp(p->driver, VFIO_DRIVER) == 0 ? 0 : check_bind(root, p, why);

    if (rc || dry || strcmp(p->driver, VFIO_DRIVER) == 0)
        return rc;
    rc = explain_write(set_override(root, p->bdf, VFIO_DRIVER), "choose its driver", why);
    if (rc)
        return rc;
    rc = bind_hand_over(root, p, why);
    if (rc) {
        rc = explain_refusal(root, p->bdf, rc, why);
        set_override(root, p->bdf, "\n");
        bind_probe(root, p->bdf);
    }
    return rc;
}

int pci_unbind(const char *root, const struct pci_device *p, bool dry, struct reason *why)
{
    char chosen[SYSFS_NAME];
    int rc;

    pci_sysfs_text(chosen, sizeof(chosen), DEVICES "%s/driver_override", root, p->bdf);
    if (strcmp(p->driver, VFIO_DRIVER) != 0 && strcmp(chosen, VFIO_DRIVER) != 0)
        return 0;
    rc = dry ? check_release(root, p, why) : bind_release(root, p, why);
    if (rc || dry)
        return rc;
    rc = set_override(root, p->bdf, "\n");
    if (!rc)
        rc = bind_probe(root, p->bdf);
    /* The device stays without a driver if none is loaded that matches. */
    return rc == -EINVAL || rc == -ENODEV ? 0 : explain_write(rc, "give it back", why);
}
