/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The media of a namespace: an image file or memory. Private to the simulator.
 */
#ifndef SIM_SIM_MEDIA_H
#define SIM_SIM_MEDIA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_ns;
struct sim_ns_config;

/* Opens the media. Returns 0 or -errno. */
int sim_media_open(struct sim_ns *ns, const struct sim_ns_config *cfg);
void sim_media_close(struct sim_ns *ns);
/* Copy from or to an offset. Return a status: the disk may fail. */
uint16_t sim_media_read(const struct sim_ns *ns, uint64_t offset, void *to, size_t len);
uint16_t sim_media_write(const struct sim_ns *ns, uint64_t offset, const void *from, size_t len);
uint16_t sim_media_zero(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
/* Returns whether the image file has become shorter. */
bool sim_media_is_shrunk(const struct sim_ns *ns);
/*
 * Grows the namespace if the image file has grown, within the room that was
 * mapped for it. Called by the thread of admin commands.
 */
void sim_media_refresh(struct sim_ns *ns);

/*
 * The tail of an image detects that its file was truncated and extended again:
 * its last bytes, or the last bytes that held data, are then zeros.
 */
#define SIM_TAIL_PLACES 2u
struct sim_tail {
    /* Protects the other fields, and the tail between begin and end. */
    pthread_mutex_t lock;
    bool watched;
    uint64_t data_at; /* byte offset of the last page that had data when the media was opened */
    bool filled[SIM_TAIL_PLACES]; /* the place was not all zeros at the last check */
    bool lost;                    /* it was all zeros later, without a write in between */
};

/* Called when the media has been opened. */
void sim_tail_open(struct sim_ns *ns);
/*
 * Called before LBAs of the namespace are written. Returns true if the write
 * overlaps the tail; checks then wait until the same thread calls
 * sim_tail_end().
 */
bool sim_tail_begin(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
void sim_tail_end(struct sim_ns *ns);
/*
 * Called before a DMA engine writes. Since the end of that write is unknown,
 * the tail is no longer checked.
 */
void sim_tail_leave(struct sim_ns *ns, uint64_t lba, uint64_t lbas);
/* True if the image was truncated and extended since the last write. */
bool sim_tail_is_lost(struct sim_ns *ns);

#endif
