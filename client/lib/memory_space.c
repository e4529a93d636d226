/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the memory space of leased queues. The space belongs to a GPU or
 * to the host.
 */
#include "client/lib/memory_space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/error.h"

int memory_space_open(struct memory_space *p, struct cuda_driver *cuda, int device)
{
    *p = (struct memory_space){.cuda = cuda, .device = device};
    return cuda ? cuda_driver_stream_new(cuda, device, false, &p->stream) : 0;
}

void memory_space_close(struct memory_space *p)
{
    if (p->stream)
        cuda_driver_stream_free(p->cuda, p->device, p->stream);
    p->stream = NULL;
}

/*
 * Copies between memory spaces. Either side may be ordinary memory of this process, because CUDA
 * finds the memory space by the address.
 */
static int memory_space_copy(const struct memory_space *p, uint64_t dst, uint64_t src, size_t len)
{
    int err = cuda_driver_copy_start(p->cuda, p->device, p->stream, dst, src, len);

    return err ? err : cuda_driver_copy_wait(p->cuda, p->device, p->stream);
}

/*
 * Copies words on a mount without a GPU, while reading threads load and store words of the memory.
 * A thread that loads a copied word sees all copied words before that word, too.
 */
static void memory_space_copy_words(uint64_t dst, uint64_t src, size_t len)
{
    if (((dst | src | len) & 7) == 0) {
        for (size_t i = 0; i < len; i += 8)
            __atomic_store_n(
                (uint64_t *)(uintptr_t)(dst + i),
                __atomic_load_n((const uint64_t *)(uintptr_t)(src + i), __ATOMIC_ACQUIRE),
                __ATOMIC_RELEASE);
    } else if (len == 4) {
        __atomic_store_n((uint32_t *)(uintptr_t)dst, *(const uint32_t *)(uintptr_t)src,
                         __ATOMIC_RELEASE);
    } else {
        memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, len);
    }
}

int memory_space_put(const struct memory_space *p, uint64_t dst, const void *src, size_t len)
{
    if (p->cuda)
        return memory_space_copy(p, dst, (uintptr_t)src, len);
    memory_space_copy_words(dst, (uintptr_t)src, len);
    return 0;
}

int memory_space_get(const struct memory_space *p, void *dst, uint64_t src, size_t len)
{
    if (p->cuda)
        return memory_space_copy(p, (uintptr_t)dst, src, len);
    memory_space_copy_words((uintptr_t)dst, src, len);
    return 0;
}

int memory_space_clear(const struct memory_space *p, uint64_t addr, size_t len)
{
    void *zeros = calloc(1, len);
    int err =
        zeros ? memory_space_put(p, addr, zeros, len) : gpunvme_fail(-ENOMEM, "out of memory");

    free(zeros);
    return err;
}

int memory_space_alloc(const struct memory_space *p, size_t len, uint64_t *addr)
{
    int err = 0;

    len = memory_space_round(len);
    *addr = 0;
    if (p->cuda)
        err = cuda_driver_alloc(p->cuda, p->device, len, addr);
    else
        *addr = (uintptr_t)aligned_alloc(MEMORY_SPACE_ALIGNMENT, len);
    if (err)
        return err;
    if (!*addr)
        return gpunvme_fail(-ENOMEM, "out of memory");
    err = memory_space_clear(p, *addr, len);
    if (err) {
        memory_space_free(p, *addr);
        *addr = 0;
    }
    return err;
}

void memory_space_free(const struct memory_space *p, uint64_t addr)
{
    if (!addr)
        return;
    if (p->cuda)
        cuda_driver_free(p->cuda, p->device, addr);
    else
        free((void *)(uintptr_t)addr);
}

/* Pins memory for the GPU. CUDA refuses registers of a drive as memory, and memory as registers. */
static int memory_space_pin(const struct memory_space *p, struct memory_space_map *m,
                            enum memory_space_access access)
{
    enum cuda_host_kind kind =
        access == MEMORY_SPACE_READ_ONLY ? CUDA_HOST_READ_ONLY : CUDA_HOST_MEMORY;
    int err = cuda_driver_map(p->cuda, p->device, m->addr, m->len, kind, &m->at);

    if (err && access == MEMORY_SPACE_DOORBELLS)
        err = cuda_driver_map(p->cuda, p->device, m->addr, m->len, CUDA_HOST_REGISTERS, &m->at);
    m->pinned = !err;
    return err;
}

/* Stores the mapping in *out, or unmaps the memory again. */
static int map_for_space(const struct memory_space *p, void *addr, size_t len,
                         enum memory_space_access access, struct memory_space_map *out)
{
    *out = (struct memory_space_map){.addr = addr, .len = len, .at = (uintptr_t)addr};
    int err = p->cuda ? memory_space_pin(p, out, access) : 0;
    if (err) {
        munmap(addr, len);
        *out = (struct memory_space_map){0};
    }
    return err;
}

int memory_space_alloc_host(const struct memory_space *p, size_t len, struct memory_space_map *out)
{
    void *addr = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (addr == MAP_FAILED)
        return gpunvme_fail(-ENOMEM, "out of memory");
    (void)madvise(addr, len, MADV_DONTFORK); /* has an effect only in a process that forks */
    return map_for_space(p, addr, len, MEMORY_SPACE_MEMORY, out);
}

/*
 * Checks that the file contains the range, because an access behind the page of the file's end
 * raises SIGBUS. Registers have no size to check.
 */
static int check_size(int fd, uint64_t end, uint64_t page)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return gpunvme_fail(-errno, "memory shared by the mount: %s", strerror(errno));
    if (S_ISREG(st.st_mode) && ((uint64_t)st.st_size + page - 1) / page * page < end)
        return gpunvme_fail(-EPROTO, "the mount shares memory that ends too early");
    return 0;
}

int memory_space_share(const struct memory_space *p, int fd, uint64_t offset, size_t len,
                       enum memory_space_access access, struct memory_space_map *out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), head = offset % page;

    *out = (struct memory_space_map){0};
    if (len == 0 || len > SIZE_MAX / 2 || offset > INT64_MAX - len)
        return gpunvme_fail(-EPROTO, "the mount shares memory of %zu bytes at %llu", len,
                            (unsigned long long)offset);
    int err = check_size(fd, offset + len, page);
    if (err)
        return err;
    size_t whole = (head + len + page - 1) / page * page;
    int rights = access == MEMORY_SPACE_READ_ONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    void *addr = mmap(NULL, whole, rights, MAP_SHARED, fd, (off_t)(offset - head));
    if (addr == MAP_FAILED)
        return gpunvme_fail(-errno, "memory shared by the mount: %s", strerror(errno));
    err = map_for_space(p, addr, whole, access, out);
    if (!err) {
        out->addr = (char *)addr + head;
        out->at += head;
    }
    return err;
}

void memory_space_unshare(const struct memory_space *p, struct memory_space_map *m)
{
    if (!m->addr)
        return;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    void *addr = (char *)m->addr - (uintptr_t)m->addr % page;
    if (m->pinned)
        cuda_driver_unpin(p->cuda, p->device, addr);
    munmap(addr, m->len);
    *m = (struct memory_space_map){0};
}
