/* SPDX-License-Identifier: BSD-2-Clause */
/* Manages the memory of transfers, and the buffers of this memory at each mount. */
#include "client/lib/regions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "support/array.h"

struct region {
    uint64_t addr;
    size_t len;
    uint64_t id;    /* id of the CUDA allocation that contains it; 0 if there is none */
    bool spans;     /* memory continues in further allocations (VMM), whose ids differ */
    unsigned users; /* this and the rest are under regions->lock */
    bool listed;    /* false: it ends with its last user */
    bool held;      /* the caller registered it */
    SLIST_HEAD(region_buffers, gpunvme_buffer) buffers;
    struct region *next_dropped;
};

/* Stores the regions in the order of their addresses. No two regions overlap. */
struct region_list {
    struct region **at;
    size_t n, room;
};

struct regions {
    pthread_mutex_t lock; /* protects all members, also while a mount registers a buffer */
    pthread_cond_t unused;
    struct region_list held;   /* regions of the caller */
    struct region_list cached; /* regions of CUDA allocations */
    struct region *dropped;    /* unlisted regions without users; regions_unlock() ends them */
};

int regions_new(struct regions **out)
{
    struct regions *rs = calloc(1, sizeof(*rs));

    if (!rs)
        return gpunvme_fail(-ENOMEM, "out of memory");
    /* The lock is mostly held for less time than a thread needs to sleep. */
    rs->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
    pthread_cond_init(&rs->unused, NULL);
    *out = rs;
    return 0;
}

/* --- Lists ----------------------------------------------------------------------------------- */

/* Returns the first region that ends after addr, or list->n. */
static size_t list_find(const struct region_list *list, uint64_t addr)
{
    size_t low = 0, high = list->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct region *r = list->at[middle];
        if (addr - r->addr < r->len || r->addr > addr)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int list_insert(struct region_list *list, struct region *r)
{
    if (array_reserve((void **)&list->at, &list->room, list->n + 1, sizeof(*list->at)))
        return gpunvme_fail(-ENOMEM, "out of memory");
    size_t i = list_find(list, r->addr);
    memmove(list->at + i + 1, list->at + i, (list->n - i) * sizeof(struct region *));
    list->at[i] = r;
    list->n++;
    r->listed = true;
    return 0;
}

static void list_remove(struct region_list *list, size_t i)
{
    list->at[i]->listed = false;
    list->n--;
    memmove(list->at + i, list->at + i + 1, (list->n - i) * sizeof(struct region *));
}

static bool regions_overlaps(const struct region *r, uint64_t addr, size_t len)
{
    return r->addr < addr + len && addr < r->addr + r->len;
}

static bool holds(const struct region *r, uint64_t addr, size_t len)
{
    return addr >= r->addr && addr - r->addr <= r->len && len <= r->len - (addr - r->addr);
}

/* --- Regions --------------------------------------------------------------------------------- */

static struct region *region_new(uint64_t addr, size_t len, uint64_t id)
{
    struct region *r = calloc(1, sizeof(*r));

    if (!r) {
        gpunvme_fail(-ENOMEM, "out of memory");
        return NULL;
    }
    r->addr = addr;
    r->len = len;
    r->id = id;
    return r;
}

static int region_end(struct region *r)
{
    int err = 0;

    while (!SLIST_EMPTY(&r->buffers)) {
        struct gpunvme_buffer *b = SLIST_FIRST(&r->buffers);
        SLIST_REMOVE_HEAD(&r->buffers, in_region);
        int failed = buffer_unregister(b);
        if (!err || failed == -ETIMEDOUT) /* after this error nobody may use the memory */
            err = failed ? failed : err;
    }
    free(r);
    return err;
}

static void regions_drop(struct regions *rs, struct region *r)
{
    r->next_dropped = rs->dropped;
    rs->dropped = r;
}

/*
 * Removes a region from the list. The region ends after the lock is released,
 * or with its last user.
 */
static void list_drop(struct regions *rs, struct region_list *list, size_t i)
{
    struct region *r = list->at[i];

    list_remove(list, i);
    if (!r->users)
        regions_drop(rs, r);
}

/*
 * Releases the lock, then ends the dropped regions. Ending a region waits for
 * the mount.
 */
static void regions_unlock(struct regions *rs)
{
    struct region *r = rs->dropped;

    rs->dropped = NULL;
    pthread_mutex_unlock(&rs->lock);
    while (r) {
        struct region *next = r->next_dropped;
        region_end(r);
        r = next;
    }
}

/*
 * Returns the region of the list that contains the memory. Removes regions that overlap the address
 * and belong to allocations that no longer exist.
 */
static struct region *find_live(struct regions *rs, struct region_list *list, uint64_t addr,
                                size_t len, uint64_t id)
{
    size_t i = list_find(list, addr);

    if (i == list->n || !regions_overlaps(list->at[i], addr, 1))
        return NULL;
    if (list->at[i]->id != id) {
        list_drop(rs, list, i);
        return NULL;
    }
    return holds(list->at[i], addr, len) ? list->at[i] : NULL;
}

/* Removes all overlapping cached regions, whose allocations no longer exist. */
static void drop_overlapping(struct regions *rs, uint64_t addr, size_t len)
{
    struct region_list *list = &rs->cached;
    size_t i = list_find(list, addr);

    while (i < list->n && regions_overlaps(list->at[i], addr, len))
        list_drop(rs, list, i);
}

static int allocation_of(struct cuda_driver *cu, const void *addr, struct cuda_allocation *out)
{
    *out = (struct cuda_allocation){.device = CUDA_NO_DEVICE};
    return cu ? cuda_driver_allocation(cu, (uintptr_t)addr, out) : 0;
}

/* --- The caller's ---------------------------------------------------------------------------- */

static bool regions_is_taken(struct regions *rs, struct cuda_driver *cu, uint64_t addr, size_t len)
{
    struct region_list *list = &rs->held;

    for (size_t i = list_find(list, addr);
         i < list->n && regions_overlaps(list->at[i], addr, len);) {
        struct cuda_allocation now;
        const void *there = (const void *)(uintptr_t)list->at[i]->addr;
        if (allocation_of(cu, there, &now) == 0 && now.id == list->at[i]->id)
            return true;
        list_drop(rs, list, i);
    }
    return false;
}

static int add_locked(struct regions *rs, struct cuda_driver *cu, struct region *r,
                      struct gpunvme_buffer *own)
{
    if (regions_is_taken(rs, cu, r->addr, r->len))
        return gpunvme_fail(-EEXIST, "the memory is registered already");
    if (own)
        SLIST_INSERT_HEAD(&r->buffers, own, in_region);
    return list_insert(&rs->held, r);
}

int regions_add(struct regions *rs, struct cuda_driver *cu, void *addr, size_t len,
                struct gpunvme_buffer *own)
{
    struct cuda_allocation a;
    uint64_t at = (uintptr_t)addr;

    if (!addr || !len || at + len < at)
        return gpunvme_fail(-EINVAL, "no memory to register");
    int err = allocation_of(cu, addr, &a);
    if (err)
        return err;
    struct region *r = region_new(at, len, a.id);
    if (!r)
        return -ENOMEM;
    r->held = true;
    r->spans = a.len && len > a.len - (at - a.base);
    pthread_mutex_lock(&rs->lock);
    err = add_locked(rs, cu, r, own);
    regions_unlock(rs);
    if (err)
        free(r);
    return err;
}

int regions_remove(struct regions *rs, void *addr)
{
    uint64_t at = (uintptr_t)addr;

    pthread_mutex_lock(&rs->lock);
    size_t i = list_find(&rs->held, at);
    struct region *r = i < rs->held.n && rs->held.at[i]->addr == at ? rs->held.at[i] : NULL;
    if (r) {
        list_remove(&rs->held, i);
        r->users++; /* this function is the last user */
        while (r->users > 1)
            pthread_cond_wait(&rs->unused, &rs->lock);
    }
    pthread_mutex_unlock(&rs->lock);
    return r ? region_end(r) : gpunvme_fail(-ENOENT, "no registered memory begins there");
}

/* --- Use ------------------------------------------------------------------------------------- */

static int cache(struct regions *rs, const struct cuda_allocation *a, struct region **out)
{
    drop_overlapping(rs, a->base, a->len);
    struct region *r = region_new(a->base, a->len, a->id);
    int err = r ? list_insert(&rs->cached, r) : -ENOMEM;
    if (err) {
        free(r);
        return err;
    }
    *out = r;
    return 0;
}

/* Stores the region for a use. It may be created for this use only. */
static int regions_get_region(struct regions *rs, const struct cuda_allocation *a, uint64_t addr,
                              size_t len, struct region **out)
{
    *out = find_live(rs, &rs->held, addr, len, a->id);
    bool cachable = a->id && addr - a->base <= a->len && len <= a->len - (addr - a->base);
    if (!*out && cachable) {
        *out = find_live(rs, &rs->cached, addr, len, a->id);
        if (!*out)
            return cache(rs, a, out);
    }
    if (!*out)
        *out = region_new(addr, len, a->id);
    return *out ? 0 : -ENOMEM;
}

static struct gpunvme_buffer *buffer_at(const struct region *r, const struct connection *g)
{
    struct gpunvme_buffer *b = SLIST_FIRST(&r->buffers);

    while (b && b->owner != g)
        b = SLIST_NEXT(b, in_region);
    return b;
}

/*
 * Called without the lock. Frees a buffer at a mount that accepts no more, and
 * returns true if it has room afterwards.
 */
static bool regions_evict(struct regions *rs, const struct connection *g)
{
    for (size_t i = 0; i < rs->cached.n; i++) {
        struct region *r = rs->cached.at[i];
        if (!r->users && buffer_at(r, g)) {
            list_drop(rs, &rs->cached, i);
            regions_unlock(rs);
            pthread_mutex_lock(&rs->lock);
            return true;
        }
    }
    return false;
}

/*
 * Called by a user of the region. Another thread may register the region during
 * an eviction.
 */
static int get_buffer(struct regions *rs, struct region *r, struct connection *g, bool is_host,
                      struct gpunvme_buffer **out)
{
    int err;

    do {
        *out = buffer_at(r, g);
        if (*out)
            return 0;
        err = buffer_register_known(g, (void *)(uintptr_t)r->addr, r->len, is_host,
                                    is_host || r->held, out);
    } while (err == -EMFILE && regions_evict(rs, g));
    if (!err)
        SLIST_INSERT_HEAD(&r->buffers, *out, in_region);
    return err;
}

static void release_locked(struct regions *rs, struct region *r)
{
    if (--r->users == 0 && !r->listed)
        regions_drop(rs, r);
    else
        pthread_cond_broadcast(&rs->unused);
}

/*
 * The caller holds the lock. Returns the region that contains memory of this CUDA allocation and
 * has a buffer at the mount.
 */
static struct region *find_ready(const struct regions *rs, const struct connection *g,
                                 uint64_t addr, size_t len, uint64_t id)
{
    const struct region_list *const lists[] = {&rs->held, &rs->cached};

    for (int i = 0; i < 2; i++) {
        size_t k = list_find(lists[i], addr);
        struct region *r = k < lists[i]->n ? lists[i]->at[k] : NULL;
        if (r && r->id == id && holds(r, addr, len))
            return buffer_at(r, g) ? r : NULL;
    }
    return NULL;
}

/*
 * Returns the id of the memory's region if the region has several allocations and the first
 * allocation still exists. Otherwise returns `id`, the id of the allocation at addr. The caller
 * holds the lock.
 */
static uint64_t id_of_region(const struct regions *rs, struct cuda_driver *cu, uint64_t addr,
                             uint64_t id)
{
    size_t i = list_find(&rs->held, addr);
    const struct region *r = i < rs->held.n ? rs->held.at[i] : NULL;

    if (!r || !r->spans || !holds(r, addr, 1))
        return id;
    return cuda_driver_allocation_id(cu, r->addr) == r->id ? r->id : id;
}

/*
 * Handles the usual case with one call of CUDA, which shows that the memory still has the id with
 * which it was used.
 */
static bool use_again(struct regions *rs, struct cuda_driver *cu, const struct connection *g,
                      uint64_t addr, size_t len, struct region_use *out)
{
    uint64_t id = cu ? cuda_driver_allocation_id(cu, addr) : 0;

    if (!id)
        return false;
    pthread_mutex_lock(&rs->lock);
    struct region *r = find_ready(rs, g, addr, len, id_of_region(rs, cu, addr, id));
    if (r) {
        r->users++;
        *out = (struct region_use){r, buffer_at(r, g), addr - r->addr, r->held};
    }
    pthread_mutex_unlock(&rs->lock);
    return r != NULL;
}

int regions_use(struct regions *rs, struct cuda_driver *cu, struct connection *g, void *addr,
                size_t len, struct region_use *out)
{
    struct cuda_allocation a;
    uint64_t at = (uintptr_t)addr;

    if (at + len < at)
        return gpunvme_fail(-EFAULT, "memory past the end of the address space");
    if (use_again(rs, cu, g, at, len, out))
        return 0;
    int err = allocation_of(cu, addr, &a);
    if (err)
        return err;
    pthread_mutex_lock(&rs->lock);
    a.id = id_of_region(rs, cu, at, a.id);
    err = regions_get_region(rs, &a, at, len, &out->region);
    if (!err) {
        out->region->users++;
        if (rs->dropped) { /* the dropped regions end first, since they count against the same
                              limits */
            regions_unlock(rs);
            pthread_mutex_lock(&rs->lock);
        }
        err = get_buffer(rs, out->region, g, a.device == CUDA_NO_DEVICE, &out->buffer);
        if (err)
            release_locked(rs, out->region);
    }
    regions_unlock(rs);
    if (!err) {
        out->offset = at - out->region->addr;
        out->held = out->region->held;
    }
    return err;
}

/* The caller holds the lock. Returns a region of g without a buffer at the mount, or NULL. */
static struct region *regions_unreached(const struct regions *rs, const struct connection *g)
{
    for (size_t i = 0; i < rs->held.n; i++) {
        if (!buffer_at(rs->held.at[i], g))
            return rs->held.at[i];
    }
    return NULL;
}

int regions_reach(struct regions *rs, struct cuda_driver *cu, struct connection *g)
{
    struct gpunvme_buffer *b;
    struct region *r;
    int err = 0;

    pthread_mutex_lock(&rs->lock);
    while (!err && (r = regions_unreached(rs, g))) {
        struct cuda_allocation a;
        err = allocation_of(cu, (const void *)(uintptr_t)r->addr, &a);
        r->users++;
        if (!err)
            err = get_buffer(rs, r, g, a.device == CUDA_NO_DEVICE, &b);
        release_locked(rs, r);
    }
    regions_unlock(rs);
    return err;
}

void regions_release(struct regions *rs, struct region_use *use)
{
    pthread_mutex_lock(&rs->lock);
    release_locked(rs, use->region);
    regions_unlock(rs);
}

void regions_free(struct regions *rs)
{
    if (!rs)
        return;
    while (rs->held.n)
        list_drop(rs, &rs->held, rs->held.n - 1);
    while (rs->cached.n)
        list_drop(rs, &rs->cached, rs->cached.n - 1);
    pthread_mutex_lock(&rs->lock);
    regions_unlock(rs);
    free(rs->held.at);
    free(rs->cached.at);
    pthread_cond_destroy(&rs->unused);
    pthread_mutex_destroy(&rs->lock);
    free(rs);
}
