/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The media of a namespace: an image file or memory. Private to the simulator.
 */
#ifndef SIM_SIM_MEDIA_H
#define SIM_SIM_MEDIA_H

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

#endif
