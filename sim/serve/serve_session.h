/*
 * One client's conversation with the controller: what each message of the protocol does. It starts
 * with VFIO_USER_VERSION and knows no sockets.
 */
#ifndef SIM_SERVE_SERVE_SESSION_H
#define SIM_SERVE_SERVE_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "sim/serve/serve_message.h"
#include "sim/serve/serve_pci.h"
#include "sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct session {
    struct sim *sim;
    struct nvme_transport *t;
    bool no_mmap; /* offers no mappable doorbells */
    bool no_reset;

    bool greeted; /* the version is agreed on */
    unsigned peer_fds;
    struct pci_config pci;
    uint64_t bar0_bytes;
    /*
     * Bus mastering was off when the controller was enabled, or went off since: it cannot reach
     * memory, and shows CSTS.CFS until CC.EN is 0.
     */
    bool cut_off;
    uint32_t cut_off_cc;   /* CC as the driver sees it then */
    unsigned mistakes;     /* what the client did wrong, over all messages */
    char last_mistake[96]; /* in words */
};

/* sim and t, no_mmap and no_reset are set by the caller; everything else starts anew. */
void session_start(struct session *s);
/*
 * Does what a whole message asks. Fills the answer; descriptors of the message stay its own. False
 * when the conversation cannot go on, once the answer has been sent.
 */
bool session_handle(struct session *s, const struct message *m, struct reply *r);
/* The driver's mistakes that the simulator cannot see. */
void session_mistake(struct session *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* region.c: one access to a region, len bytes at an offset. 0 or an errno. */
int region_read(struct session *s, const struct vfio_user_region_access *a, void *to);
int region_write(struct session *s, const struct vfio_user_region_access *a, const void *from);
/* Bytes of a region; 0: it is not there. */
uint64_t region_bytes(const struct session *s, uint32_t index);

/* version.c: 0 or an errno. */
int version_agree(struct session *s, const struct message *m, struct reply *r);

#ifdef __cplusplus
}
#endif

#endif
