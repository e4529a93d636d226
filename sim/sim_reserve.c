/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements reservations (BASE 7.2 to 7.5 and 8.19). All controllers of a
 * namespace, also those of other processes, keep one state in a file that they
 * map. They change it under a lock of the file, and count the changes in it.
 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <nvme/types.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/sim_admin.h"

#define RESERVE_HOSTS 16u /* registered with a namespace at most */
#define REPORT_BYTES  (64 + RESERVE_HOSTS * sizeof(struct nvme_registered_ctrl_ext))
#define ACTION(cdw10) ((cdw10)&7u)
#define RTYPE(cdw10)  ((cdw10) >> 8 & 0xffu)
#define CPTPL(cdw10)  ((cdw10) >> 30)

/* A lock of these bytes of the file means that a controller exists, or changes the file. */
enum { LOCK_EXISTS, LOCK_CHANGES };

struct reserve_host {
    uint64_t key;
    uint8_t id[SIM_HOST_ID];
    bool used;
};

/* Each namespace has this state in the file. */
struct sim_reserve {
    _Atomic uint32_t changes; /* counted after each change */
    uint32_t generation;      /* of the report */
    uint8_t type;             /* 0: not reserved */
    bool persists;            /* through a power loss */
    uint8_t holder;           /* index in hosts; of all registrants, any of them */
    struct reserve_host hosts[RESERVE_HOSTS];
};

static_assert(offsetof(struct nvme_resv_status, regctl_eds) == 64, "entries at byte 64");

/* A view is the count of changes << VIEW_SHIFT | type << 2 | registered << 1 | holds. */
#define VIEW_SHIFT   8u
#define VIEW_NONE    UINT64_MAX
#define VIEW_HOLDS   1u
#define VIEW_MEMBER  2u
#define VIEW_TYPE(v) ((unsigned)(v) >> 2 & 7u)

static int reserve_lock_byte(int fd, int byte, short type, bool wait)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &lock);
}

static void reserve_lock(struct sim_reservations *r)
{
    pthread_mutex_lock(&r->lock);
    reserve_lock_byte(r->fd, LOCK_CHANGES, F_WRLCK, true);
}

static void reserve_unlock(struct sim_reservations *r)
{
    reserve_lock_byte(r->fd, LOCK_CHANGES, F_UNLCK, true);
    pthread_mutex_unlock(&r->lock);
}

/* --- The file -------------------------------------------------------------------------------- */

/* The first controller that opens the file acts as the power-on of the namespaces. */
static void reserve_power_on(struct sim_reservations *r)
{
    if (reserve_lock_byte(r->fd, LOCK_EXISTS, F_WRLCK, false) == 0) {
        for (unsigned i = 0; i < SIM_MAX_NAMESPACES; i++)
            if (!r->shared[i].persists)
                r->shared[i] = (struct sim_reserve){.changes = r->shared[i].changes + 1};
    }
    reserve_lock_byte(r->fd, LOCK_EXISTS, F_RDLCK, true);
}

int sim_reserve_open(struct sim *s)
{
    struct sim_reservations *r = &s->reservations;
    size_t len = SIM_MAX_NAMESPACES * sizeof(*r->shared);

    if (!s->cfg.reservations)
        return 0;
    r->fd = open(s->cfg.reservations, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (r->fd < 0 || ftruncate(r->fd, (off_t)len) != 0)
        return -errno;
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    pthread_mutex_init(&r->lock, NULL);
    r->shared = p;
    reserve_power_on(r);
    sim_reserve_host_changed(s);
    return 0;
}

void sim_reserve_close(struct sim *s)
{
    struct sim_reservations *r = &s->reservations;

    if (r->shared) {
        munmap(r->shared, SIM_MAX_NAMESPACES * sizeof(*r->shared));
        pthread_mutex_destroy(&r->lock);
    }
    if (r->fd >= 0)
        close(r->fd);
}

/* --- Who may do what ------------------------------------------------------------------------- */

static struct reserve_host *reserve_find(struct sim *s, struct sim_reserve *n)
{
    for (unsigned i = 0; i < RESERVE_HOSTS; i++)
        if (n->hosts[i].used && memcmp(n->hosts[i].id, s->features.host, SIM_HOST_ID) == 0)
            return &n->hosts[i];
    return NULL;
}

static bool reserve_of_all(const struct sim_reserve *n)
{
    return n->type == NVME_RESERVATION_RTYPE_WEAR || n->type == NVME_RESERVATION_RTYPE_EAAR;
}

static bool reserve_holds(const struct sim_reserve *n, const struct reserve_host *h)
{
    return n->type && h && (reserve_of_all(n) || h == &n->hosts[n->holder % RESERVE_HOSTS]);
}

static uint64_t reserve_view(struct sim *s, unsigned i)
{
    struct sim_reservations *r = &s->reservations;
    struct sim_reserve *n = &r->shared[i];

    reserve_lock(r);
    const struct reserve_host *me = reserve_find(s, n);
    uint64_t view = (uint64_t)atomic_load(&n->changes) << VIEW_SHIFT | (n->type & 7u) << 2 |
                    (me ? VIEW_MEMBER : 0) | (reserve_holds(n, me) ? VIEW_HOLDS : 0);
    reserve_unlock(r);
    atomic_store(&r->view[i], view);
    return view;
}

static bool reserve_permits_one(struct sim *s, unsigned i, bool read)
{
    uint64_t view = atomic_load(&s->reservations.view[i]);

    if (view == VIEW_NONE ||
        (uint32_t)(view >> VIEW_SHIFT) != atomic_load(&s->reservations.shared[i].changes))
        view = reserve_view(s, i);
    switch (VIEW_TYPE(view)) {
    case 0:
        return true;
    case NVME_RESERVATION_RTYPE_WE:
        return read || view & VIEW_HOLDS;
    case NVME_RESERVATION_RTYPE_EA:
        return view & VIEW_HOLDS;
    case NVME_RESERVATION_RTYPE_WERO:
    case NVME_RESERVATION_RTYPE_WEAR:
        return read || view & VIEW_MEMBER;
    default:
        return view & VIEW_MEMBER;
    }
}

bool sim_reserve_permits(struct sim *s, const struct nvme_sqe *sqe)
{
    bool all = sqe->nsid == SIM_NSID_ALL, permitted = true;

    if (!s->reservations.shared || sim_reserve_has(sqe->opcode))
        return true;
    for (unsigned i = 0; i < s->cfg.namespaces; i++)
        if (all || sqe->nsid == i + 1)
            permitted &= reserve_permits_one(s, i, sqe->opcode == NVME_IO_READ);
    return permitted;
}

/* --- Commands -------------------------------------------------------------------------------- */

/* This struct has a reservation command and its keys. */
struct reserve_command {
    struct sim *s;
    struct sim_reserve *n;
    struct reserve_host *me; /* NULL: not registered */
    uint32_t cdw10;
    uint64_t current, other; /* CRKEY, and NRKEY or PRKEY */
};

static bool reserve_knows_key(const struct reserve_command *c)
{
    return c->me && (c->cdw10 & NVME_RESV_ANY_KEY || c->me->key == c->current);
}

/* A reservation ends with its last holder. */
static void reserve_remove(struct sim_reserve *n, struct reserve_host *h)
{
    bool held = reserve_holds(n, h), last = true;

    h->used = false;
    for (unsigned i = 0; i < RESERVE_HOSTS; i++)
        last &= !n->hosts[i].used;
    if (held && (!reserve_of_all(n) || last))
        n->type = 0;
}

static uint16_t reserve_add_host(struct reserve_command *c)
{
    struct reserve_host *h = c->n->hosts;

    if (c->me)
        return c->me->key == c->other ? NVME_OK : NVME_ERR_RESERVATION;
    while (h < c->n->hosts + RESERVE_HOSTS && h->used)
        h++;
    if (h == c->n->hosts + RESERVE_HOSTS)
        return NVME_ERR_RESERVATION;
    *h = (struct reserve_host){.used = true, .key = c->other};
    memcpy(h->id, c->s->features.host, SIM_HOST_ID);
    return NVME_OK;
}

static uint16_t reserve_register_key(struct reserve_command *c)
{
    uint16_t st = NVME_OK;

    switch (ACTION(c->cdw10)) {
    case NVME_RESV_REGISTER_KEY:
        st = reserve_add_host(c);
        break;
    case NVME_RESV_UNREGISTER:
        if (!reserve_knows_key(c))
            return NVME_ERR_RESERVATION;
        reserve_remove(c->n, c->me);
        break;
    case NVME_RESV_REPLACE_KEY:
        if (!reserve_knows_key(c))
            return NVME_ERR_RESERVATION;
        c->me->key = c->other;
        break;
    default:
        return NVME_ERR_INVALID_FIELD;
    }
    if (st == NVME_OK && CPTPL(c->cdw10))
        c->n->persists = CPTPL(c->cdw10) == NVME_RESERVATION_CPTPL_PERSIST;
    c->n->generation += st == NVME_OK;
    return st;
}

static void reserve_set_holder(struct reserve_command *c)
{
    c->n->type = (uint8_t)RTYPE(c->cdw10);
    c->n->holder = (uint8_t)(c->me - c->n->hosts);
}

static uint16_t reserve_acquire_free(struct reserve_command *c)
{
    if (c->n->type && !(reserve_holds(c->n, c->me) && c->n->type == RTYPE(c->cdw10)))
        return NVME_ERR_RESERVATION;
    if (!c->n->type)
        reserve_set_holder(c);
    return NVME_OK;
}

/* Aborts nothing, because commands that were permitted have been executed. */
static uint16_t reserve_preempt(struct reserve_command *c)
{
    struct sim_reserve *n = c->n;
    bool any = n->type && reserve_of_all(n) && !c->other, takes = any || !n->type;
    unsigned found = 0;

    if (!c->other && !any)
        return NVME_ERR_INVALID_FIELD;
    for (unsigned i = 0; i < RESERVE_HOSTS; i++) {
        struct reserve_host *h = &n->hosts[i];
        if (!h->used || (!any && h->key != c->other))
            continue;
        found++;
        takes |= reserve_holds(n, h) && !reserve_of_all(n);
        if (h != c->me)
            h->used = false;
    }
    if (!found)
        return NVME_ERR_RESERVATION;
    if (takes)
        reserve_set_holder(c);
    n->generation++;
    return NVME_OK;
}

static uint16_t reserve_acquire(struct reserve_command *c)
{
    uint32_t type = RTYPE(c->cdw10);

    if (c->cdw10 & NVME_RESV_ANY_KEY || type < NVME_RESERVATION_RTYPE_WE ||
        type > NVME_RESERVATION_RTYPE_EAAR)
        return NVME_ERR_INVALID_FIELD;
    if (!reserve_knows_key(c))
        return NVME_ERR_RESERVATION;
    switch (ACTION(c->cdw10)) {
    case NVME_RESV_ACQUIRE:
        return reserve_acquire_free(c);
    case NVME_RESV_PREEMPT:
    case NVME_RESV_PREEMPT_ABORT:
        return reserve_preempt(c);
    default:
        return NVME_ERR_INVALID_FIELD;
    }
}

static uint16_t reserve_release(struct reserve_command *c)
{
    if (c->cdw10 & NVME_RESV_ANY_KEY)
        return NVME_ERR_INVALID_FIELD;
    if (!reserve_knows_key(c))
        return NVME_ERR_RESERVATION;
    switch (ACTION(c->cdw10)) {
    case NVME_RESV_RELEASE:
        if (!reserve_holds(c->n, c->me))
            return NVME_OK;
        if (c->n->type != RTYPE(c->cdw10))
            return NVME_ERR_INVALID_FIELD;
        c->n->type = 0;
        return NVME_OK;
    case NVME_RESV_CLEAR:
        c->n->type = 0;
        memset(c->n->hosts, 0, sizeof(c->n->hosts));
        c->n->generation++;
        return NVME_OK;
    default:
        return NVME_ERR_INVALID_FIELD;
    }
}

/* Fills in a Reservation Status page. Returns its length in bytes. */
static size_t reserve_fill(struct sim_reserve *n, unsigned char *page)
{
    struct nvme_resv_status *report = (struct nvme_resv_status *)page;
    unsigned found = 0;

    report->gen = htole32(n->generation);
    report->rtype = n->type;
    report->ptpls = n->persists;
    for (unsigned i = 0; i < RESERVE_HOSTS; i++) {
        struct nvme_registered_ctrl_ext *e = &report->regctl_eds[found];
        if (!n->hosts[i].used)
            continue;
        e->cntlid = htole16(SIM_CTRL_ID);
        e->rcsts = reserve_holds(n, &n->hosts[i]);
        e->rkey = htole64(n->hosts[i].key);
        memcpy(e->hostid, n->hosts[i].id, SIM_HOST_ID);
        found++;
    }
    report->regctl[0] = (uint8_t)found;
    return sizeof(*report) + found * sizeof(report->regctl_eds[0]);
}

static uint16_t reserve_run_report(struct sim_thread *th, const struct nvme_sqe *sqe)
{
    _Alignas(64) unsigned char page[REPORT_BYTES] = {0};
    struct sim_reservations *r = &th->s->reservations;

    if (sqe->cdw11 != NVME_RESV_LONG_IDS)
        return NVME_ERR_HOST_ID_FORMAT;
    if (sim_reserve_bytes(sqe) > th->s->cfg.mdts)
        return NVME_ERR_INVALID_FIELD;
    reserve_lock(r);
    size_t len = reserve_fill(&r->shared[sqe->nsid - 1], page);
    reserve_unlock(r);
    return sim_give(th, sqe, page, len, 0, sim_reserve_bytes(sqe));
}

static uint16_t reserve_change(struct reserve_command *c, uint8_t opcode)
{
    switch (opcode) {
    case NVME_IO_RESV_REGISTER:
        return reserve_register_key(c);
    case NVME_IO_RESV_ACQUIRE:
        return reserve_acquire(c);
    default:
        return reserve_release(c);
    }
}

static void reserve_note_member(struct sim *s, unsigned i)
{
    struct sim_reservations *r = &s->reservations;

    if (reserve_find(s, &r->shared[i]))
        atomic_fetch_or(&r->registered, 1u << i);
    else
        atomic_fetch_and(&r->registered, ~(1u << i));
}

uint16_t sim_reserve_run(struct sim_thread *th, const struct nvme_sqe *sqe)
{
    struct sim_reservations *r = &th->s->reservations;
    uint64_t keys[2] = {0};
    unsigned i = sqe->nsid - 1;

    if (sqe->opcode == NVME_IO_RESV_REPORT)
        return reserve_run_report(th, sqe);
    uint16_t st = sim_take(th, sqe, keys, sim_reserve_bytes(sqe));
    if (st != NVME_OK)
        return st;
    reserve_lock(r);
    struct reserve_command c = {.s = th->s,
                                .n = &r->shared[i],
                                .me = reserve_find(th->s, &r->shared[i]),
                                .cdw10 = sqe->cdw10,
                                .current = le64toh(keys[0]),
                                .other = le64toh(keys[1])};
    st = reserve_change(&c, sqe->opcode);
    reserve_note_member(th->s, i);
    atomic_fetch_add(&r->shared[i].changes, 1);
    reserve_unlock(r);
    return st;
}

/* --- Events ---------------------------------------------------------------------------------- */

bool sim_reserve_changed(const struct sim *s)
{
    const struct sim_reservations *r = &s->reservations;

    for (unsigned i = 0; r->shared && i < s->cfg.namespaces; i++)
        if (atomic_load_explicit(&r->shared[i].changes, memory_order_relaxed) != r->seen[i])
            return true;
    return false;
}

/* This host's own commands have already changed `registered`. */
void sim_reserve_look(struct sim *s)
{
    struct sim_reservations *r = &s->reservations;

    if (!sim_reserve_changed(s))
        return;
    reserve_lock(r);
    for (unsigned i = 0; i < s->cfg.namespaces; i++) {
        uint32_t before = atomic_load(&r->registered);
        reserve_note_member(s, i);
        r->preempted |= before & ~atomic_load(&r->registered);
        r->seen[i] = atomic_load(&r->shared[i].changes);
    }
    reserve_unlock(r);
}

void sim_reserve_host_changed(struct sim *s)
{
    struct sim_reservations *r = &s->reservations;

    if (!r->shared)
        return;
    reserve_lock(r);
    for (unsigned i = 0; i < s->cfg.namespaces; i++) {
        atomic_store(&r->view[i], VIEW_NONE);
        reserve_note_member(s, i);
    }
    r->preempted = 0;
    r->notified = false;
    reserve_unlock(r);
}

void sim_reserve_log(struct sim *s, void *page)
{
    struct nvme_resv_notification_log *log = page;
    uint32_t preempted = s->reservations.preempted;

    if (!preempted)
        return;
    log->lpc = htole64(1);
    log->rnlpt = NVME_RESV_NOTIFY_RNLPT_REGISTRATION_PREEMPTED;
    log->nalp = (uint8_t)(__builtin_popcount(preempted) - 1);
    log->nsid = htole32((uint32_t)__builtin_ctz(preempted) + 1);
}

void sim_reserve_log_read(struct sim *s)
{
    s->reservations.preempted &= s->reservations.preempted - 1;
    s->reservations.notified = false;
}
