/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Imports memory of CUDA's virtual memory management (VMM). Its allocations have
 * no address of their own: their owner has mapped them one after another, as
 * PyTorch's expandable segments are, and this process maps them likewise. The
 * driver counts the mappings, so the memory exists until the last one ends.
 */
#include <cudaTypedefs.h>
#include <stdlib.h>

#include "cuda/exec_cuda/gq_cuda_int.h"
#include "cuda/gq_segments.h"

/* This struct has the mapped segments. Each segment is mapped and unmapped by a call of its own. */
struct vmm_range {
    CUdeviceptr base;
    size_t len;
    unsigned n;
    size_t lens[GQ_SEGMENTS];
};

struct vmm {
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemImportFromShareableHandle_v10020 import;
    PFN_cuMemGetAllocationPropertiesFromHandle_v10020 properties;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemSetAccess_v10020 access;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemAddressFree_v10020 free;
};

#define LOAD(member, name) (v->member = (PFN_##name##_v10020)gq_cuda_driver_function(#name))

static bool vmm_load(struct vmm *v)
{
    return LOAD(reserve, cuMemAddressReserve) && LOAD(import, cuMemImportFromShareableHandle) &&
           LOAD(properties, cuMemGetAllocationPropertiesFromHandle) && LOAD(map, cuMemMap) &&
           LOAD(release, cuMemRelease) && LOAD(access, cuMemSetAccess) && LOAD(unmap, cuMemUnmap) &&
           LOAD(free, cuMemAddressFree);
}

/*
 * Maps one segment. The handle is released at once, because the mapping keeps
 * the memory.
 */
static int map_segment(const struct vmm *v, int device, const struct gq_segment *s, CUdeviceptr at)
{
    CUmemAllocationProp is = {.location.type = CU_MEM_LOCATION_TYPE_INVALID};
    CUmemGenericAllocationHandle handle;
    int err = -EINVAL;

    if (s->offset || v->import(&handle, (void *)(intptr_t)s->fd,
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS)
        return -EINVAL;
    if (v->properties(&is, handle) == CUDA_SUCCESS &&
        is.location.type == CU_MEM_LOCATION_TYPE_DEVICE && is.location.id == device &&
        v->map(at, (size_t)s->len, 0, handle, 0) == CUDA_SUCCESS)
        err = 0;
    v->release(handle);
    return err;
}

static void unmap_range(const struct vmm *v, const struct vmm_range *r)
{
    CUdeviceptr at = r->base;

    for (unsigned i = 0; i < r->n; at += r->lens[i++])
        v->unmap(at, r->lens[i]);
    v->free(r->base, r->len);
}

/* Adds mappings to the range. After an error it has those that were made before. */
static int map_segments(const struct vmm *v, int device, const struct gq_mem *mem,
                        struct vmm_range *r)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUdeviceptr at = r->base;

    for (; r->n < mem->n_segments; at += r->lens[r->n++]) {
        int err = map_segment(v, device, &mem->segments[r->n], at);

        if (err)
            return err;
        r->lens[r->n] = (size_t)mem->segments[r->n].len;
    }
    return v->access(r->base, r->len, &access, 1) == CUDA_SUCCESS ? 0 : -EINVAL;
}

static int import_range(const struct gq_cuda *cu, const struct vmm *v, const struct gq_mem *mem,
                        struct vmm_range *r, struct gq_import *out)
{
    if (v->reserve(&r->base, r->len, 0, 0, 0) != CUDA_SUCCESS)
        return -ENOMEM;
    int err = map_segments(v, cu->device, mem, r);
    if (!err)
        err = gq_segments_describe(mem, r->base, true, out);
    if (err)
        unmap_range(v, r);
    return err;
}

int gq_cuda_import_segments(const struct gq_cuda *cu, const struct gq_mem *mem,
                            struct gq_import *out)
{
    struct vmm_range *r;
    struct vmm v;
    uint64_t len;
    int err = gq_segments_check(mem, &len);

    if (err)
        return err;
    if (!vmm_load(&v))
        return -ENOTSUP;
    r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->len = (size_t)len;
    err = import_range(cu, &v, mem, r, out);
    if (err) {
        free(r);
        return err;
    }
    out->mapping = r;
    out->map_len = r->len;
    return 0;
}

void gq_cuda_release_segments(const struct gq_import *imp)
{
    struct vmm v;

    if (vmm_load(&v))
        unmap_range(&v, imp->mapping);
    free(imp->mapping);
}
