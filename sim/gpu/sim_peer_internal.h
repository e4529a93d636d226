/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared by the files of peers: sim_peer.c has peers and their windows,
 * sim_peer_window.c the copies posted to them.
 */
#ifndef SIM_GPU_SIM_PEER_INTERNAL_H
#define SIM_GPU_SIM_PEER_INTERNAL_H

#include <pthread.h>

#include "sim/gpu/sim_peer_window.h"

/* Of a submission, cut to powers of two. */
#define SIM_PEER_FRAGMENTS (2 * SIM_PEER_WINDOW_COPIES)

enum { SIM_PEER_FREE, SIM_PEER_LIVE, SIM_PEER_DROPPED };

struct sim_peer {
    struct sim_peer_windows *windows;
    /* Atomic. Under the lock of one channel only: from live to dropped. */
    uint32_t state;
    uint32_t generation; /* number of peers that have used this entry */
    struct sim_peer_options opts;
    struct sim_mailbox_head *head;
    int fd;
    struct sim_poster *posters; /* one for each channel, used under its lock */
};

/* State of a peer as a channel has observed it. */
struct sim_peer_standing {
    uint64_t full_since;  /* time from which it has had no room, ns; 0: it has room */
    uint64_t still_since; /* time from which it has made no progress, ns; 0: not checked */
    uint32_t total;       /* of its poster, at that time */
    bool passed_over;
};

struct sim_peer_channel {
    pthread_mutex_t lock;
    unsigned hint; /* index of the peer window used last */
    uint8_t owner[SIM_PEER_WINDOW_COPIES];
    struct sim_gather moved[SIM_PEER_WINDOW_COPIES];  /* in addresses of the peer */
    struct sim_gather sorted[SIM_PEER_WINDOW_COPIES]; /* copies in the order of their owners */
    /* Fragments to post, grouped by peer. */
    struct sim_gather fragments[SIM_PEER_FRAGMENTS];
    unsigned n_fragments;
    unsigned part_fragments[SIM_PEERS]; /* of each part */
    struct sim_peer_standing standing[SIM_PEERS];
    bool by_engine; /* the plan leaves copies of a peer here */
} SIM_OWN_LINES;

struct sim_peer_window_entry {
    struct sim_peer_window window;
    uint8_t peer;
};

/* Peers and windows change under the locks of all channels, taken in order. */
struct sim_peer_windows {
    unsigned n_channels;
    struct sim_peer_channel *channels;
    struct sim_peer peers[SIM_PEERS];
    struct sim_peer_window_entry windows[SIM_PEER_WINDOWS];
    unsigned n_windows; /* atomic */
};

static inline uint32_t sim_peer_state(const struct sim_peer *m)
{
    return __atomic_load_n(&m->state, __ATOMIC_ACQUIRE);
}

static inline unsigned sim_peer_index(const struct sim_peer *m)
{
    return (unsigned)(m - m->windows->peers);
}

#endif
