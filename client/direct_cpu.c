/* The queue protocol on the thread that calls: for mounts without a GPU. */
#define GQ_LANES 1
#include "client/device/gd_read.h"

#include "client/direct.h"

int64_t direct_cpu_read(const struct gpunvme_device_file *f, const struct gd_buffer *b, void *dst,
                        uint64_t n, uint64_t offset)
{
    struct gq_read read = {
        .file_offset = offset,
        .at = (uintptr_t)dst - b->addr,
        .len = gq_read_bytes(&f->map, offset, n),
    };
    int err = read.len ? gd_read_part(gq_whole_group(), f, b, read, 0, 1) : 0;
    return err ? err : (int64_t)read.len;
}
