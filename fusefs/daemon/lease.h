/*
 * Leases: queue pairs and extents that applications use without the daemon (the direct path).
 *
 * A lease is known by a random id and usable with its random key by the user who took it. It
 * belongs to an open file description and ends with it.
 *
 * When blocks may be reused. A leased queue reads whatever it is told to, so nothing but its holder
 * or its end keeps it away from blocks that were freed. Therefore the pins of an extent lease end
 * only by its holder's LEASE_END or close, which promise that his commands have ended, and where
 * both leases are of one file that closes, or the mount ends, after the queues have been deleted.
 * A holder who breaks the promise reads what he could have read anyway; nobody else reads anything.
 *
 * When a queue may be given to others. Its holder stores to doorbells until he has seen that the
 * lease is revoked. The ids of a revoked lease's queues are kept for GPUNVME_LEASE_GRACE_MS, also
 * when a reset has ended the queues: a late store hits a queue that does not exist.
 */
#ifndef FUSEFS_DAEMON_LEASE_H
#define FUSEFS_DAEMON_LEASE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/gpunvme_ioctl.h"
#include "fusefs/daemon/daemon.h"

struct leases;
struct fuse_req;

/* At a time in all, and of one user: each holds a descriptor and a page of memory. */
#define LEASES_MAX     4096u
#define LEASES_OF_USER 2048u

/*
 * Segments of the files whose extents are leased, likewise, a segment as often as it is leased.
 * Each takes up to 96 bytes for the map, the pin and what the holder shares. A lease counts for as
 * many as it may come to while it is being made: LEASE_SEGMENTS_FEW, then LEASE_SEGMENTS_MORE times
 * as many, and so on; so others that are made meanwhile find what is left.
 */
#define LEASE_SEGMENTS_MAX     (4u << 20)
#define LEASE_SEGMENTS_OF_USER (2u << 20)
#define LEASE_SEGMENTS_FEW     (64u << 10)
#define LEASE_SEGMENTS_MORE    2u

/* The stack is open. */
int leases_open(struct daemon *d, struct leases **out);
/* Every state becomes REVOKED, at the end of the session: no request arrives any more. */
void leases_revoke_all(struct leases *t);
/* Ends what leases_release() took. No file is open any more. */
void leases_close(struct leases *t);

/* May the caller lease (mount option direct=)? 0 or -EPERM. The request is not answered yet. */
int leases_allow(const struct options *opts, struct fuse_req *req);
/* Queue pairs that may be leased at once. */
unsigned leases_queues(const struct leases *t);

/*
 * Both fill in what arg has as out; file owns the lease. They send admin commands or wait for
 * writers of the file. -EINVAL (flags, numbers), -ENOTSUP (no NVMe controller of this mount, or one
 * with physical addresses), -EMFILE (too many leases), -EBUSY (all queue pairs, or segments, are
 * leased), -EDQUOT (by this user: his share of segments), -EAGAIN (the controller was reset
 * meanwhile), -EBADF (not open for reading), -EISDIR, -ENOMEM, -EIO.
 */
int leases_add_queues(struct leases *t, struct open_file *file, uid_t uid,
                      struct gpunvme_ioc_queue_lease *arg);
int leases_add_extents(struct leases *t, struct open_file *file, uid_t uid,
                       struct gpunvme_ioc_extent_lease *arg);
/* When it returns, the queues are deleted. -ENOENT (no such id), -EACCES (key or user). */
int leases_end(struct leases *t, uint64_t id, uint64_t key, uid_t uid);
/*
 * The ioctl of the same name: copier_route() (copier.h). -ENOENT, -EACCES; when the lease's holder
 * has asked for a copier in vain: -EDQUOT (he has COPIERS_OF_USER), -EBUSY (the mount has no more).
 */
int leases_copier(struct leases *t, uid_t uid, const struct gpunvme_ioc_copier *arg);
/*
 * The file is closed. False: it never had leases, nothing happens. True: a thread of the table's
 * ends them, which may take admin commands, and calls file_end() afterwards.
 */
bool leases_release(struct leases *t, struct open_file *file);

/* For the socket: struct fdsocket_answers, the context is the table. */
int leases_answer(void *context, const struct gpunvme_ask *ask, uid_t uid,
                  struct gpunvme_told *told, int fds[2]);

#endif
