/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Opens the transport: connects, negotiates, and finds the device and its
 * doorbells.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "blockdev/bdev.h"
#include "blockdev/vfio_user/vfio_user.h"
#include "blockdev/vfio_user/vfio_user_internal.h"
#include "support/clock.h"

#define DEFAULT_MS 10000u

/* Addresses that every server has, above any stray small number. */
#define IOVA_FIRST 0x100000000ull
#define IOVA_LAST  ((1ull << 47) - 1)

/* Configuration space (PCI Local Bus Specification 3.0, 6.1). */
#define PCI_IDS        0x00u
#define PCI_CLASS_REV  0x08u
#define PCI_CLASS_NVME 0x010802u

static int negotiate(struct vfio_user *u, struct reason *why)
{
    struct {
        struct vfio_user_version version;
        char caps[128];
    } proposal = {.version = {.major = VFIO_USER_MAJOR, .minor = VFIO_USER_MINOR}};
    int text = snprintf(proposal.caps, sizeof(proposal.caps),
                        "{\"capabilities\":{\"" VFIO_USER_CAP_MAX_MSG_FDS
                        "\":%u,\"" VFIO_USER_CAP_MAX_DATA_XFER_SIZE "\":%u}}",
                        VFIO_USER_MAX_FDS, VFIO_USER_DEFAULT_DATA_XFER_SIZE);
    unsigned char reply[VFIO_USER_MAX_REPLY];
    struct vfio_user_msg m = {.command = VFIO_USER_VERSION,
                              .payload = &proposal,
                              .len = sizeof(proposal.version) + (size_t)text + 1,
                              .fd = -1,
                              .reply = reply,
                              .reply_max = sizeof(reply)};
    int rc = vfio_user_exchange(u, &m);

    if (rc)
        return vfio_user_explain(&u->conn, m.command, rc, why);
    return vfio_user_parse_version(reply, m.reply_len, &u->t.max_regions, why);
}

static int get_device_info(struct vfio_user *u, struct reason *why)
{
    struct vfio_user_device_info info = {.argsz = sizeof(info)};
    struct vfio_user_msg m = {.command = VFIO_USER_DEVICE_GET_INFO,
                              .payload = &info,
                              .len = sizeof(info),
                              .fd = -1,
                              .reply = &info,
                              .reply_max = sizeof(info)};
    int rc = vfio_user_exchange(u, &m);

    if (rc)
        return vfio_user_explain(&u->conn, m.command, rc, why);
    return vfio_user_parse_device(&info, m.reply_len, &u->can_reset, why);
}

/* On success the caller owns the descriptors. */
static int open_get_region(struct vfio_user *u, uint32_t index, struct vfio_user_region *out,
                           struct fd_message *fds, struct reason *why)
{
    struct vfio_region_info info = {.argsz = VFIO_USER_MAX_REPLY, .index = index};
    unsigned char reply[VFIO_USER_MAX_REPLY];
    struct vfio_user_msg m = {.command = VFIO_USER_DEVICE_GET_REGION_INFO,
                              .payload = &info,
                              .len = sizeof(info),
                              .fd = -1,
                              .reply = reply,
                              .reply_max = sizeof(reply),
                              .fds = fds};
    int rc = vfio_user_exchange(u, &m);

    if (rc)
        return vfio_user_explain(&u->conn, m.command, rc, why);
    rc = vfio_user_parse_region(reply, m.reply_len, index, out, why);
    if (rc)
        fd_message_close(fds);
    return rc;
}

static int read_config(struct vfio_user *u, uint32_t offset, uint32_t *value)
{
    return vfio_user_access(u, VFIO_USER_REGION_READ, VFIO_PCI_CONFIG_REGION_INDEX, offset, value,
                            sizeof(*value));
}

static int set_up_config(struct vfio_user *u, struct reason *why)
{
    struct vfio_user_region config;
    struct fd_message fds;
    uint32_t ids = 0, class_rev = 0;
    int rc = open_get_region(u, VFIO_PCI_CONFIG_REGION_INDEX, &config, &fds, why);

    if (rc)
        return rc;
    fd_message_close(&fds);
    rc = read_config(u, PCI_IDS, &ids);
    if (rc == 0)
        rc = read_config(u, PCI_CLASS_REV, &class_rev);
    if (rc)
        return vfio_user_explain(&u->conn, VFIO_USER_REGION_READ, rc, why);
    u->t.pci_vendor = (uint16_t)ids;
    u->t.pci_device = (uint16_t)(ids >> 16);
    if (class_rev >> 8 != PCI_CLASS_NVME)
        return reason_set(why, -ENOTSUP,
                          "the device of the server is no NVMe controller (PCI class %06x)",
                          class_rev >> 8);
    rc = vfio_user_command_on(u);
    return rc ? vfio_user_explain(&u->conn, VFIO_USER_REGION_WRITE, rc, why) : 0;
}

/*
 * Keeps the descriptor for other processes if no process can truncate the file
 * under this mapping. Without the descriptor, other processes cannot map the
 * doorbells. All other functions still work.
 */
static void hand_on_doorbells(struct vfio_user *u, const struct vfio_user_doorbells *d, int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals >= 0 && seals & F_SEAL_SHRINK)
        u->t.doorbells_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    u->t.doorbells_fd_offset = d->file_offset;
}

/*
 * Maps the doorbells, ordinary memory for the CPU. A GPU can store to it too if
 * the file lives in memory (tmpfs, memfd): cudaHostRegister() pins such pages
 * and refuses those of a file on a disk.
 */
static int open_map_doorbells(struct vfio_user *u, const struct vfio_user_doorbells *d, int fd,
                              struct reason *why)
{
    struct stat st;

    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return reason_set(why, -ENOTSUP, "the doorbells of the server are no shared memory");
    /* A store beyond the end of the file would raise SIGBUS. */
    if ((uint64_t)st.st_size < d->file_offset + d->len)
        return reason_set(why, -EPROTO, "the file of the doorbells ends before them");
    void *p = mmap(NULL, d->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)d->file_offset);
    if (p == MAP_FAILED)
        return reason_set(why, -ENOTSUP, "the doorbells of the server cannot be mapped: %s",
                          strerror(errno));
    u->t.doorbells = p;
    u->t.doorbells_len = d->len;
    hand_on_doorbells(u, d, fd);
    return 0;
}

static int set_up_bar0(struct vfio_user *u, struct reason *why)
{
    struct vfio_user_region bar0;
    struct vfio_user_doorbells d;
    struct fd_message fds;
    int rc = open_get_region(u, VFIO_PCI_BAR0_REGION_INDEX, &bar0, &fds, why);

    if (rc)
        return rc;
    rc = vfio_user_find_doorbells(&bar0, &d, why);
    if (rc == 0 && fds.n == 0)
        rc = reason_set(why, -EPROTO, "the server sends no descriptor with its doorbells");
    /* There is one descriptor per area, or one for all of them. */
    if (rc == 0)
        rc = open_map_doorbells(u, &d, fds.fd[d.area < fds.n ? d.area : 0], why);
    fd_message_close(&fds);
    return rc;
}

/*
 * Creates a descriptor that becomes readable only when the connection ends,
 * from either side. The socket itself becomes readable with every reply.
 */
static int watch_end(struct vfio_user *u, struct reason *why)
{
    struct epoll_event ev = {.events = EPOLLRDHUP};

    u->t.removal_fd = epoll_create1(EPOLL_CLOEXEC);
    if (u->t.removal_fd >= 0 && epoll_ctl(u->t.removal_fd, EPOLL_CTL_ADD, u->conn.fd, &ev) == 0)
        return 0;
    return reason_set(why, -errno, "epoll: %s", strerror(errno));
}

int vfio_user_start(int socket, unsigned timeout_ms, struct nvme_transport **out,
                    struct reason *why)
{
    struct vfio_user *u = calloc(1, sizeof(*u));
    int rc;

    if (!u) {
        close(socket);
        return reason_set(why, -ENOMEM, "out of memory");
    }
    u->t.ops = &vfio_user_ops;
    u->t.maps_files = true;
    u->t.remote = true;
    u->t.removal_fd = -1;
    u->t.doorbells_fd = -1;
    u->conn = (struct vfio_user_conn){.fd = socket, .timeout_ms = timeout_ms};
    pthread_mutex_init(&u->lock, NULL);
    nvme_iova_init(&u->iova);
    rc = nvme_iova_allow(&u->iova, IOVA_FIRST, IOVA_LAST);
    if (rc)
        rc = reason_set(why, rc, "out of memory");
    if (rc == 0)
        rc = watch_end(u, why);
    if (rc == 0)
        rc = negotiate(u, why);
    if (rc == 0)
        rc = get_device_info(u, why);
    if (rc == 0)
        rc = set_up_config(u, why);
    if (rc == 0)
        rc = set_up_bar0(u, why);
    if (rc) {
        vfio_user_close(&u->t);
        return rc;
    }
    u->conn.silence_ms = VFIO_USER_SILENCE_MS;
    *out = &u->t;
    return 0;
}

/* connect() waits while the server's queue of clients is full. */
static int connect_within(int fd, const struct sockaddr_un *addr, unsigned timeout_ms)
{
    uint64_t deadline = deadline_after_ms(timeout_ms);

    for (;;) {
        uint64_t now = now_ns();
        uint64_t us = now < deadline ? (deadline - now) / 1000 + 1 : 0;
        struct timeval left = {.tv_sec = (time_t)(us / 1000000),
                               .tv_usec = (suseconds_t)(us % 1000000)};

        if (us == 0)
            return -ETIMEDOUT;
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left)))
            return -errno;
        if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0)
            return 0;
        if (errno != EINTR && errno != EAGAIN)
            return -errno;
    }
}

static int explain_connect(const char *path, int rc, unsigned timeout_ms, struct reason *why)
{
    struct stat st;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return reason_set(why, rc, "a folder; name the socket in it (SPDK calls it cntrl)");
    if (rc == -ECONNREFUSED)
        return reason_set(why, rc, "no server listens on it");
    if (rc == -ETIMEDOUT)
        return reason_set(why, rc,
                          "the server takes no connection within %u ms: it is busy "
                          "with other clients, end one of them",
                          timeout_ms);
    return reason_set(why, rc, "cannot connect: %s", strerror(-rc));
}

/* A server has one client at a time, so the connection is a lock. */
static uint64_t vfio_user_lock_id(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? bd_lock_id(BD_LOCK_SOCKET, st.st_dev, st.st_ino) : 0;
}

int vfio_user_open(const char *path, const struct bd_open_opts *opts, struct nvme_transport **out,
                   struct reason *why)
{
    unsigned timeout_ms = opts->deadline_ms ? opts->deadline_ms : DEFAULT_MS;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int rc, fd;

    if (strlen(path) >= sizeof(addr.sun_path))
        return reason_set(why, -ENAMETOOLONG, "a socket's path has at most %zu bytes",
                          sizeof(addr.sun_path) - 1);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return reason_set(why, -errno, "cannot make a socket: %s", strerror(errno));
    rc = connect_within(fd, &addr, timeout_ms);
    if (rc) {
        close(fd);
        return explain_connect(path, rc, timeout_ms, why);
    }
    rc = bd_call_opened(opts, why);
    if (rc) {
        close(fd);
        return rc;
    }
    rc = vfio_user_start(fd, timeout_ms, out, why);
    if (rc == 0)
        (*out)->lock = vfio_user_lock_id(path);
    if (rc == 0 && opts->silence_ms)
        ((struct vfio_user *)*out)->conn.silence_ms = opts->silence_ms;
    return rc;
}
