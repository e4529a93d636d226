/*
 * The table of registered buffers: who may use which, and when the memory may go.
 *
 * A buffer is known by a random id and usable with its random key by the user who registered it.
 * It belongs to an open file description and leaves the table with it. Its memory is let go when
 * the transfers that use it have ended: they are cancelled, and their deadlines bound the wait.
 */
#ifndef FUSEFS_DAEMON_BUFFERS_H
#define FUSEFS_DAEMON_BUFFERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cuda/gq.h"

struct buffers;
struct buffer;

/* engine NULL: buffers are mapped into this process and only the bounce path uses them. */
int buffers_open(unsigned max, struct gq_engine *engine, struct buffers **out);
/* No transfer may be running. Ends the buffers still there. */
void buffers_close(struct buffers *t);

/*
 * Registers memory; mem.fd stays the caller's. With mem.copies_will_do, memory that the drive
 * cannot reach becomes a buffer for the bounce path, which is said in the log, once. -EMFILE when
 * max are registered, or half of that by this user, -ENOMEM when they would cost too much memory,
 * all together or this user's; -EOPNOTSUPP for a kind the executor does not take, otherwise as
 * gq_buffer_register().
 */
int buffers_add(struct buffers *t, const struct gq_mem *mem, uid_t uid, const void *owner,
                uint64_t *id, uint64_t *key);
/*
 * The same for memory that holds lists: this process and the executor reach it, the drive does not.
 * The client writes to it whenever it likes.
 */
int buffers_add_list(struct buffers *t, const struct gq_mem *mem, uid_t uid, const void *owner,
                     uint64_t *id, uint64_t *key);
/* -ENOENT (no such id), -EACCES (key or user). Nothing reaches the memory when it returns. */
int buffers_remove(struct buffers *t, uint64_t id, uint64_t key, uid_t uid);
/* All buffers of one open file description. */
void buffers_release(struct buffers *t, const void *owner);
/* Cancels every transfer that uses a buffer, and those to come: the mount ends. */
void buffers_cancel_all(struct buffers *t);
/* Registered now, those that wait for their transfers included. */
unsigned buffers_count(struct buffers *t);

/*
 * A transfer's hold on a buffer. cancel is the transfer's own flag; the table sets it too. The
 * transfer must let go before anything that waits for a FUSE request: ending a buffer waits for
 * its transfers, and happens in threads that serve those requests.
 */
struct buffer_use {
    struct buffer *buffer;
    _Atomic uint32_t *cancel;
    struct buffer_use *next; /* protected by the table's lock */
    struct buffer_use **link;
};

enum buffer_kind { BUFFER_DATA, BUFFER_LIST };

/* Errors as buffers_remove(); -EINVAL: a buffer of the other kind; -EINTR: all are cancelled. */
int buffer_use_begin(struct buffers *t, uint64_t id, uint64_t key, uid_t uid, enum buffer_kind kind,
                     _Atomic uint32_t *cancel, struct buffer_use *use);
void buffer_use_end(struct buffers *t, struct buffer_use *use);

uint64_t buffer_len(const struct buffer *b);
/* For gq_transfer(); NULL without an engine, and when the drive cannot reach the memory. */
struct gq_buffer *buffer_gq(const struct buffer *b);
/* A list's first byte; and the list for gq_readv(), NULL without an engine. */
void *buffer_list(const struct buffer *b);
struct gq_buffer *buffer_gq_list(const struct buffer *b);
/* Copies between the buffer and host memory. The range must lie inside the buffer. */
int buffer_put(struct buffer *b, uint64_t offset, const void *src, size_t len);
int buffer_get(struct buffer *b, uint64_t offset, void *dst, size_t len);

#endif
