#ifndef FUSEFS_DAEMON_JOIN_H
#define FUSEFS_DAEMON_JOIN_H

#include <pthread.h>
#include <stdint.h>

/* until_ns: as nvme_now_ns() counts, for nobody sets that clock. 0 or -ETIMEDOUT: not joined. */
int join_until(pthread_t thread, uint64_t until_ns);

#endif
