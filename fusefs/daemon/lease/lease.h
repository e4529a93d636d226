/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Leases queue pairs and extents, which applications use without the daemon (the
 * direct path).
 *
 * A lease is named by a random id and used with its random key, by the user
 * that took it. It belongs to an open file description and ends with it.
 *
 * Reuse of blocks: a leased queue can read any LBA, so a freed block is
 * protected only by the holder or by the end of the queue. The pins of an
 * extent lease are therefore released by the holder's LEASE_END or close, which
 * promise that its commands have completed. If the queue lease and the extent
 * lease belong to one file description that closes, and at unmount, the queues
 * are deleted first. A holder that breaks the promise reads data that it could
 * have read anyway; the access of other users does not change.
 *
 * Reuse of queues: a holder stores to doorbells until it has seen the
 * revocation. The ids of a revoked lease's queues are reserved for
 * GPUNVME_LEASE_GRACE_MS, even if a reset has deleted the queues, so a late
 * store addresses a queue that does not exist.
 */
#ifndef FUSEFS_DAEMON_LEASE_LEASE_H
#define FUSEFS_DAEMON_LEASE_LEASE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fusefs/daemon/state/daemon.h"
#include "gpunvme/gpunvme_ioctl.h"

struct leases;
struct fuse_req;

/*
 * Maximum number of leases, each of which holds a descriptor and a page of
 * memory. Users share leases and queue pairs by ledger.h, and
 * 1/LEASES_ROOT_PART of both is reserved for root.
 */
#define LEASES_MAX       4096u
#define LEASES_ROOT_PART 8u

/*
 * Limit of segments of leased files. Users share them by the rules of ledger.h,
 * and 1/LEASES_ROOT_PART of them is reserved for root. A segment counts once
 * per lease, and takes up to 96 bytes for the map, the pin and the page shared
 * with the holder. During its creation a lease is charged for the segments that
 * it may reach: first LEASE_SEGMENTS_FEW, then LEASE_SEGMENTS_MORE times as
 * many, and so on. Concurrent creations see only the rest.
 */
#define LEASE_SEGMENTS_MAX  (4u << 20)
#define LEASE_SEGMENTS_FEW  (64u << 10)
#define LEASE_SEGMENTS_MORE 2u
/* So many checksums in the page use as much memory as a segment. */
#define LEASE_SUMS_A_SEGMENT 24u

/* Opens the table. Precondition: the stack is open. */
int leases_open(struct daemon *d, struct leases **out);
/*
 * Sets the state of every lease to REVOKED. Called at the end of the session,
 * when no request arrives.
 */
void leases_revoke_all(struct leases *t);
/*
 * Revokes the leases of a file's extents. Called on a mount with
 * writeback_cache after the file was opened for writing and before the reply to
 * that open, because a holder would not see data that is still in the kernel.
 * No lease of the file is created until the file is closed.
 */
void leases_revoke_file(struct leases *t, const struct ffs_inode *inode);
/*
 * Ends the leases passed to leases_release(), then frees t. Precondition: no
 * file is open.
 */
void leases_close(struct leases *t);

/*
 * Checks the caller against the mount option direct=. Returns 0 or -EPERM. req
 * must be unreplied.
 */
int leases_allow(const struct options *opts, struct fuse_req *req);
/* Stores up to max leased queue pairs and returns how many. */
unsigned leases_list(struct leases *t, struct gpunvme_queue *out, unsigned max);
/*
 * Returns the number of counted commands on leased queue pairs since the mount.
 */
uint64_t leases_commands(struct leases *t);
/* Returns the number of queue pairs that may be leased at the same time. */
unsigned leases_queues(const struct leases *t);

/*
 * Fill in the out fields of arg; file owns the lease. They send admin commands
 * or wait for writers of the file. They return -EINVAL (flags, numbers),
 * -ENOTSUP (the mount has no NVMe controller, or one with physical addresses),
 * -EMFILE (too many leases), -EBUSY (all queue pairs, or all segments, are
 * leased), -EDQUOT (this user's share of segments), -EAGAIN (the controller was
 * reset meanwhile), -EBADF (not open for reading), -ETXTBSY (open for writing
 * on a mount with writeback_cache), -EISDIR, -ENOMEM or -EIO.
 */
int leases_add_queues(struct leases *t, struct open_file *file, uid_t uid,
                      struct gpunvme_ioc_queue_lease *arg);
int leases_add_extents(struct leases *t, struct open_file *file, uid_t uid,
                       struct gpunvme_ioc_extent_lease *arg);
/*
 * Ends a lease; its queues have been deleted when it returns. Returns -ENOENT
 * (no such id) or -EACCES (wrong key or user).
 */
int leases_end(struct leases *t, uint64_t id, uint64_t key, uid_t uid);
/*
 * Ends the leases of a file at its RELEASE. Returns false, without effect, if
 * the file never had any. Returns true if the table's thread will end the
 * leases, which may take admin commands, and then call file_end().
 */
bool leases_release(struct leases *t, struct open_file *file);

/* Implements struct fdsocket_handler.serve; context is the table. */
int leases_serve(void *context, const struct gpunvme_request *request, uid_t uid,
                 struct gpunvme_reply *reply, int fds[2]);

#endif
