/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The table of registered buffers determines which user may use a buffer and
 * when its memory is released.
 *
 * A buffer is named by a random id and used with its random key, by the user
 * that registered it. It belongs to an open file description and leaves the
 * table when that is closed. Its memory is released when the transfers that use
 * it have ended. Removal cancels these transfers, and their deadlines bound the
 * wait.
 */
#ifndef FUSEFS_DAEMON_STATE_BUFFERS_H
#define FUSEFS_DAEMON_STATE_BUFFERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "cuda/gq.h"
#include "fusefs/daemon/start/bounce_engine.h"
#include "fusefs/daemon/start/mount_gpus.h"

struct buffers;
struct buffer;

/*
 * Opens a table. If gpus is NULL, only the bounce path uses the buffers.
 * Buffers for which `bounce` has no engine are mapped into this process.
 * `bounce` must outlive the table.
 */
int buffers_open(unsigned max, struct gpus *gpus, struct bounce_engine *bounce,
                 struct buffers **out);
/* Precondition: no transfer runs. Removes the remaining buffers and frees t. */
void buffers_close(struct buffers *t);

/*
 * Registers memory. The caller still owns mem.fd. The executor of the GPU with
 * this UUID serves the buffer, or, if the UUID is zero, that of the first GPU
 * that is not lost. NULL selects the bounce path, for host memory. The executor
 * stages data of memory that the drive cannot reach.
 * Returns -EXDEV or -ENODEV (gpus_take()), -EMFILE (the user's share of max
 * buffers, of which each segment takes one), -ENOMEM (the user's share of
 * bytes, or of bytes in host memory), -EOPNOTSUPP (a kind of memory that the executor
 * does not support), or an error of gq_buffer_register(). Users share all three by the rules of
 * ledger.h. With mem.is_list the memory is for READV lists, which this process
 * and the executor can reach, but the drive cannot. The client may write to it
 * at any time.
 */
int buffers_add(struct buffers *t, const struct gq_mem *mem, const uint8_t gpu[16], uid_t uid,
                const void *owner, uint64_t *id, uint64_t *key);
/*
 * Waits for the transfers that use the buffer and removes it. No command
 * reaches the memory after the return. Returns -ENOENT (no such id) or -EACCES
 * (wrong key or user).
 */
int buffers_remove(struct buffers *t, uint64_t id, uint64_t key, uid_t uid);
/* Removes all buffers of one open file description. */
void buffers_release(struct buffers *t, const void *owner);
/*
 * Cancels every transfer that uses a buffer; later uses fail with -EINTR.
 * Called when the mount ends.
 */
void buffers_cancel_all(struct buffers *t);
/*
 * Returns the number of registered buffers, including removed ones that still
 * wait for their transfers.
 */
unsigned buffers_count(struct buffers *t);

/*
 * A transfer's use of a buffer. `cancel` is the transfer's own flag, which the
 * table sets, too. A use must end before its thread waits for any FUSE request:
 * removal of a buffer waits for its uses, and runs in threads that serve those
 * requests.
 */
struct buffer_use {
    struct buffer *buffer;
    _Atomic uint32_t *cancel;
    LIST_ENTRY(buffer_use) entry; /* protected by the table's lock */
};

enum buffer_kind { BUFFER_DATA, BUFFER_LIST };

/*
 * Returns the errors of buffers_remove(), -EINVAL (a buffer of the other kind)
 * or -EINTR (all uses are cancelled).
 */
int buffer_use_begin(struct buffers *t, uint64_t id, uint64_t key, uid_t uid, enum buffer_kind kind,
                     _Atomic uint32_t *cancel, struct buffer_use *use);
void buffer_use_end(struct buffers *t, struct buffer_use *use);

uint64_t buffer_length(const struct buffer *b);
/*
 * Return the buffer and the engine for gq_transfer(), or NULL without an engine
 * that reaches it.
 */
struct gq_buffer *buffer_gq(const struct buffer *b);
struct gq_engine *buffer_engine(const struct buffer *b);
/* Returns true if the buffer belongs to the bounce path, also with an engine. */
bool buffer_bounces(const struct buffer *b);
/* Returns the first byte of a list. */
void *buffer_list(const struct buffer *b);
/*
 * Stores the list for gq_readv() into a data buffer of the same table. The
 * first call for another GPU than the list's registers the list there, too,
 * until it is removed. Returns an error of gq_buffer_register().
 */
int buffer_gq_list(struct buffer *list, const struct buffer *data, struct gq_buffer **out);
/*
 * Copy between the buffer and host memory. The range must lie inside the
 * buffer.
 */
int buffer_put(struct buffer *b, uint64_t offset, const void *src, size_t len);
int buffer_get(struct buffer *b, uint64_t offset, void *dst, size_t len);

#endif
